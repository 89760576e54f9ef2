package main

import "golang.org/x/sys/unix"

// int80 makes a system call by the i386 ABI, by its numbers.
//
//go:noescape
func int80(nr, a1, a2, a3, a4, a5 uint32) int32

// i386 makes a call by that ABI in a forked process: the kernel may kill it.
func (r *report) i386(name string, nr uintptr, args ...uintptr) {
	c := raw6(nr, args...)
	c.i386 = true
	r.got(name, fork(c))
}

// x32 makes a call by the x32 ABI: the native number with a bit of its own.
func (r *report) x32(name string, nr uintptr, args ...uintptr) {
	r.forked(name, nr|0x40000000, args...)
}

// map32Bit maps memory where 32-bit pointers reach it; see mmap(2).
const map32Bit = unix.MAP_32BIT

// k09amd64 asks for the calls of k09 that only this architecture has.
func k09amd64(r *report) {
	r.call("iopl", unix.SYS_IOPL, 3)
	r.call("ioperm", unix.SYS_IOPERM, 0x80, 1, 1)
}
