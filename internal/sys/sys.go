// Package sys is the layer right above the kernel: a program of system calls
// that a freshly cloned process runs without the Go runtime ([Program]), the
// two ways to clone such a process ([Clone], [Vfork]), and the few raw calls
// that golang.org/x/sys/unix does not wrap.
//
// A child of clone(2) that does not execve(2) runs a Go program's code without
// its runtime: it may not allocate, grow its stack, or take a lock.
// So it gets its work as data. The supervisor builds a Program with ordinary
// Go code, where errors and strings are cheap; the child only walks it, one
// system call after the other, and reports the index of the one that failed.
//
// The package knows nothing of sandboxes: what a program does is decided by
// those who build it. It is the only package that imports unsafe.
package sys
