package main

// The ABIs that an amd64 kernel has besides its own do not exist here.

//go:nosplit
func int80(nr, a1, a2, a3, a4, a5 uint32) int32 { return -38 }

func (r *report) i386(name string, nr uintptr, args ...uintptr) { r.got(name, "ENOSYS") }
func (r *report) x32(name string, nr uintptr, args ...uintptr)  { r.got(name, "ENOSYS") }

const map32Bit = 0

func k09amd64(r *report) {}
