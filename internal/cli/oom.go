package cli

import "os"

// killable undoes a protection from the kernel's out-of-memory killer that the
// caller has (a service with OOMScoreAdjust=-1000, say), for this process and all
// that it starts: a command that cannot be killed for memory cannot be held to a
// limit of memory. A value that makes the caller more likely to be killed stays.
// See proc_pid_oom_score_adj(5); where there is none, nothing is undone.
func killable() {
	const file = "/proc/self/oom_score_adj"
	if b, err := os.ReadFile(file); err == nil && len(b) > 0 && b[0] == '-' {
		os.WriteFile(file, []byte("0"), 0) // raising it is always allowed
	}
}
