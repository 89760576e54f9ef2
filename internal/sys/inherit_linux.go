package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// CoreCookie is what this thread shares a processor's core by, and passes on; 0 is none,
// or none in this kernel. See core-scheduling.rst; Linux 5.14.
func CoreCookie() (cookie uint64) {
	// int prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0, PIDTYPE_PID, &cookie);
	unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_GET, 0, 0, uintptr(unsafe.Pointer(&cookie)), 0)
	return cookie
}

// MemoryPolicy is from which NUMA nodes this thread, and what it starts, gets memory. It is
// zero where the kernel has none.
func MemoryPolicy() (mode int32, nodes [16]uint64) {
	// long get_mempolicy(int *mode, unsigned long *nodes, unsigned long max, void *addr, unsigned long flags);
	// EINVAL: max is less than the kernel's number of nodes, which is 1024 at most.
	unix.RawSyscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), uintptr(unsafe.Pointer(&nodes)),
		64*uintptr(len(nodes)), 0, 0, 0)
	return mode, nodes
}
