// Package rlimit appends resource limits (setrlimit(2)) to the program of a
// process that becomes a command.
package rlimit

// Number returns the number of a resource by its OCI name ("RLIMIT_NOFILE"),
// which is the same on every architecture that Linux drivers are built for.
func Number(name string) (int, bool) {
	for i, n := range [...]string{
		"CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE",
		"MEMLOCK", "AS", "LOCKS", "SIGPENDING", "MSGQUEUE", "NICE", "RTPRIO", "RTTIME",
	} {
		if name == "RLIMIT_"+n {
			return i, true
		}
	}
	return 0, false
}
