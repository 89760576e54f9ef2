package main

// The ABIs that an amd64 kernel has besides its own do not exist here.

func (r *report) i386(name string, nr uint32, args ...uint32)  { r.got(name, "ENOSYS") }
func (r *report) x32(name string, nr uintptr, args ...uintptr) { r.got(name, "ENOSYS") }

const map32Bit = 0

func k09amd64(r *report) {}
