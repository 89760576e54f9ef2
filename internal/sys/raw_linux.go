package sys

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Raw makes a system call without telling the Go scheduler. Errors come back as
// the second result.
//
//go:nosplit
//go:norace
func Raw(nr, a, b, c, d, e, f uintptr) (r, errno uintptr) {
	r1, _, e1 := syscall.RawSyscall6(nr, a, b, c, d, e, f)
	return r1, uintptr(e1)
}

// Addr is the address of *p as a number, for calls that a child makes. The
// caller keeps *p alive: heap objects do not move in Go, but a number does not
// hold them.
func Addr[T any](p *T) uintptr { return address(unsafe.Pointer(p)) }

// address turns a pointer into a number that stays right. What does not escape
// lives on a goroutine's stack, and stacks move; a pointer that is stored here,
// for all that the compiler knows, escapes.
func address(p unsafe.Pointer) uintptr {
	if escapes {
		escaped = p
	}
	return uintptr(p)
}

var (
	escapes bool // always false
	escaped unsafe.Pointer
)

// Pointer undoes Addr.
//
//go:nosplit
//go:norace
//go:nocheckptr
func Pointer(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// CloneArgs is struct clone_args of clone3(2).
type CloneArgs struct {
	Flags      uint64
	PidFD      uint64
	ChildTID   uint64
	ParentTID  uint64
	ExitSignal uint64
	Stack      uint64
	StackSize  uint64
	TLS        uint64
	SetTID     uint64
	SetTIDSize uint64
	Cgroup     uint64
}

// CloneArgsSize is the size of CloneArgs (CLONE_ARGS_SIZE_VER2, Linux 5.7).
const CloneArgsSize = unsafe.Sizeof(CloneArgs{})

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

// rawVfork makes clone3(2) with memory shared with the parent, which is why it
// keeps its return address in a register; implemented in assembly.
//
//go:noescape
func rawVfork(args uintptr, size uintptr) (pid, errno uintptr)

// Fork clones a process that shares nothing it could write with the caller and
// runs child(arg) in it. The child starts with every signal blocked; child must
// not return, and is bound by what [Runnable.Run] is bound by. The caller gets
// the child's pid.
//
//	long clone3(struct clone_args *args, size_t size);
//
// Preconditions: args.Stack is 0 and CLONE_VM is not in args.Flags.
//
//go:norace
func Fork(args *CloneArgs, child func(arg uintptr), arg uintptr) (pid int, err error) {
	// As in syscall.forkExec: no other goroutine creates a descriptor between
	// its creation and its close-on-exec flag while a fork is under way.
	syscall.ForkLock.Lock()
	pid, errno := fork(args, child, arg)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(args)
	if errno != 0 {
		return 0, syscall.Errno(errno)
	}
	return pid, nil
}

//go:noinline
//go:norace
//go:nocheckptr
func fork(args *CloneArgs, child func(arg uintptr), arg uintptr) (int, uintptr) {
	beforeFork()
	pid, errno := Raw(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), CloneArgsSize, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		afterFork()
		return int(pid), errno
	}
	child(arg)
	for {
		Raw(unix.SYS_EXIT_GROUP, 253, 0, 0, 0, 0, 0)
	}
}

// Vfork clones a process that shares the caller's memory and stack, runs
// child(arg) in it, and suspends the caller until the child calls execve(2) or
// exits. The child must not return: by the time that the parent goes on, it has
// overwritten every frame below this one.
//
// Preconditions: the caller is a child of Fork, and args is the address of a
// CloneArgs with CLONE_VM|CLONE_VFORK and no stack.
//
//go:nosplit
//go:noinline
//go:norace
func Vfork(args uintptr, child func(arg uintptr), arg uintptr) (pid, errno uintptr) {
	pid, errno = rawVfork(args, CloneArgsSize)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	child(arg)
	for {
		Raw(unix.SYS_EXIT_GROUP, 253, 0, 0, 0, 0, 0)
	}
}

// ArgvArea returns where the kernel put this process's arguments and
// environment: what /proc/PID/cmdline and /proc/PID/environ show. A forked
// child that lives on clears it, because its cmdline is readable to anyone who
// sees the process.
func ArgvArea() (addr uintptr, size int) {
	if len(os.Args) == 0 || os.Args[0] == "" {
		return 0, 0
	}
	// The runtime does not copy the strings of os.Args and os.Environ: they
	// are the kernel's, in one piece, the arguments first (execve(2)).
	start := uintptr(unsafe.Pointer(unsafe.StringData(os.Args[0])))
	end := start
	grow := func(s string) {
		if s == "" {
			return
		}
		a := uintptr(unsafe.Pointer(unsafe.StringData(s)))
		// A caller may have replaced elements by strings of its own; the
		// kernel's area is contiguous, so anything else breaks the chain.
		if a >= end && a-end <= 64 {
			end = a + uintptr(len(s)) + 1
		}
	}
	for _, s := range os.Args {
		grow(s)
	}
	return start, int(end - start)
}

// Prctl is prctl(2).
//
//	int prctl(int op, unsigned long a, unsigned long b, unsigned long c, unsigned long d);
func Prctl(op int, a, b, c, d uintptr) error {
	_, e := Raw(unix.SYS_PRCTL, uintptr(op), a, b, c, d, 0)
	if e != 0 {
		return syscall.Errno(e)
	}
	return nil
}

// LandlockABI returns the version of the Landlock interface that the kernel
// has, 0 for none.
//
//	int landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
func LandlockABI() int {
	v, e := Raw(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION, 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(v)
}

// SetThreadGroups sets the supplementary groups of the calling thread alone, as
// the kernel keeps them.
//
//	int setgroups(size_t size, const gid_t *list);
//
// Preconditions: the caller holds runtime.LockOSThread.
func SetThreadGroups(groups []int) error {
	list := make([]uint32, len(groups)+1)
	for i, g := range groups {
		list[i] = uint32(g)
	}
	_, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	if e != 0 {
		return e
	}
	return nil
}
