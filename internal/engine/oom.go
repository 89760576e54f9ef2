package engine

import "syscall"

// Killable undoes a protection from the kernel's out-of-memory killer that the
// caller has (a service with OOMScoreAdjust=-1000, say), for this process and all
// that it starts: a command that cannot be killed for memory cannot be held to a
// limit of memory. A value that makes the caller more likely to be killed stays.
// See proc_pid_oom_score_adj(5); where there is none, nothing is undone.
func Killable() {
	const file = "/proc/self/oom_score_adj"
	// Not os.ReadFile, which would start the runtime's poller in every run.
	fd, err := syscall.Open(file, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var b [1]byte
	n, _ := syscall.Read(fd, b[:])
	syscall.Close(fd)
	if n == 0 || b[0] != '-' {
		return
	}
	if fd, err = syscall.Open(file, syscall.O_WRONLY|syscall.O_CLOEXEC, 0); err == nil {
		syscall.Write(fd, []byte("0")) // raising it is always allowed
		syscall.Close(fd)
	}
}
