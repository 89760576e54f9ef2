// Package rlimit appends resource limits (setrlimit(2)) to the program of a
// process that becomes a command.
package rlimit

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// NoCore returns limits of which that on cores, if it is 0, is 1: 0 does not keep a
// core from a handler that core_pattern pipes to, and 1 does, and is too little for a
// file. See core(5) and do_coredump in fs/coredump.c.
func NoCore(list []specs.POSIXRlimit) []specs.POSIXRlimit {
	list = slices.Clone(list)
	for i, r := range list {
		if r.Type == "RLIMIT_CORE" && r.Hard == 0 {
			list[i].Soft, list[i].Hard = 1, 1
		}
	}
	return list
}

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
