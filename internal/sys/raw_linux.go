package sys

import (
	"fmt"
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
	//lint:ignore U1000 written to is all that it is for
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

// rawVfork makes the call nr, which is clone3(2) or clone(2), with memory and stack
// shared with the parent, which is why it keeps its return address in a register;
// implemented in assembly.
//
//go:noescape
func rawVfork(nr, a, b uintptr) (pid, errno uintptr)

// rawClone makes the call nr, which is clone3(2) or clone(2), with memory shared
// with the parent and a stack of the child's own, on which the child calls start's
// function, a *childStart; implemented in assembly.
//
//go:noescape
func rawClone(nr, a, b, c, start uintptr) (pid, errno uintptr)

// HasClone3 reports whether clone3(2) is there. The filters of containers have it
// missing, because they cannot see its flags.
func HasClone3() bool {
	// EINVAL: no kernel's structure is that small.
	_, e := Raw(unix.SYS_CLONE3, 0, 0, 0, 0, 0, 0)
	return syscall.Errno(e) == unix.EINVAL
}

// childStart is what a child of rawClone runs. Assembly knows its layout.
type childStart struct {
	fn  func(arg uintptr)
	arg uintptr
}

// stackSize is room for what a child runs. None of it splits the stack, so that
// the linker bounds it at 800 bytes.
const stackSize = 16 << 10

// A Task is a process that Clone started. It runs in memory that belongs to this
// process; who holds the Task keeps that alive.
type Task struct {
	Pid   int
	start *childStart
	stack []byte
}

// Clone clones a process that shares this one's memory and nothing else that it
// could write (not descriptors, not the working directory), and runs child(arg)
// in it, on a stack of its own. Sharing is what makes it cheap: no page tables
// are copied, and neither side meets a fault for a page that both had.
//
// The child starts with every signal blocked; child must not return, and is
// bound by what [Runnable.Run] is bound by. It must touch only memory that was
// set aside for it, and the caller must not: both run at once. All that it
// touches, and the Task, must be reachable until the process has been waited for.
//
//	long clone3(struct clone_args *args, size_t size);
//
// With old it is done by clone(2), which knows the flags of 32 bits: signal handlers
// stay, unless child resets them.
//
//	long clone(unsigned long flags, void *stack, int *parent_tid, …);
//
// Preconditions: args has neither a stack nor CLONE_VM in its flags.
//
//go:norace
func Clone(args *CloneArgs, child func(arg uintptr), arg uintptr, old bool) (*Task, error) {
	t := &Task{start: &childStart{child, arg}, stack: make([]byte, stackSize)}
	a := *args
	a.Flags |= unix.CLONE_VM
	a.Stack = uint64(address(unsafe.Pointer(&t.stack[0]))) &^ 15
	a.StackSize = stackSize - 16
	nr, x, y, z, start := uintptr(unix.SYS_CLONE3), Addr(&a), uintptr(CloneArgsSize), uintptr(0), Addr(t.start)
	if old {
		nr, x, y, z = unix.SYS_CLONE, uintptr(uint32(a.Flags)|uint32(a.ExitSignal)), uintptr(a.Stack+a.StackSize),
			uintptr(a.PidFD)
	}
	// As in syscall.forkExec: no other goroutine creates a descriptor between
	// its creation and its close-on-exec flag while a clone is under way.
	syscall.ForkLock.Lock()
	pid, errno := clone(nr, x, y, z, start)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(&a)
	if errno != 0 {
		return nil, syscall.Errno(errno)
	}
	t.Pid = int(pid)
	return t, nil
}

// Thread starts a thread of this process that the runtime knows nothing of: where none
// is to be had, it returns EAGAIN, and the runtime would end the process. The thread
// has the caller's credentials and directories, and runs child(arg), which is bound
// by what Clone says and ends by exit(2). The Task must be reachable until the thread
// is gone.
//
//	long clone(unsigned long flags, void *stack, …);
//
//go:norace
func Thread(child func(arg uintptr), arg uintptr) (*Task, error) {
	const flags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
		unix.CLONE_SYSVSEM
	t := &Task{start: &childStart{child, arg}, stack: make([]byte, stackSize)}
	top := address(unsafe.Pointer(&t.stack[0]))&^15 + stackSize - 16
	// The thread begins with every signal blocked: the runtime's handlers would take
	// it for the caller, whose thread-local storage it has.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, mask := ^uint64(0), uint64(0)
	Raw(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, Addr(&all), Addr(&mask), 8, 0, 0)
	pid, errno := clone(unix.SYS_CLONE, flags, top, 0, Addr(t.start))
	Raw(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, Addr(&mask), 0, 8, 0, 0)
	if errno != 0 {
		return nil, syscall.Errno(errno)
	}
	t.Pid = int(pid)
	return t, nil
}

// CanThread finds out whether this process can have another thread.
func CanThread() error {
	t, err := Thread(exit, 0)
	for err == nil && unix.Tgkill(unix.Getpid(), t.Pid, 0) == nil {
		unix.Nanosleep(&unix.Timespec{Nsec: 10_000}, nil) // its stack is in use
	}
	runtime.KeepAlive(t)
	return err
}

//go:nosplit
//go:norace
func exit(uintptr) {
	for {
		Raw(unix.SYS_EXIT, 0, 0, 0, 0, 0, 0)
	}
}

//go:noinline
//go:norace
func clone(nr, a, b, c, start uintptr) (pid, errno uintptr) {
	beforeFork()
	pid, errno = rawClone(nr, a, b, c, start)
	afterFork()
	return pid, errno
}

// Vfork clones a process that shares the caller's memory and stack, runs
// child(arg) in it, and suspends the caller until the child calls execve(2) or
// exits. The child must not return: by the time that the parent goes on, it has
// overwritten every frame below this one.
//
// Preconditions: the caller is a child of Clone, and args is the address of a
// CloneArgs with CLONE_VM|CLONE_VFORK and no stack; or, for clone(2), 0.
//
//go:nosplit
//go:noinline
//go:norace
func Vfork(args uintptr, child func(arg uintptr), arg uintptr) (pid, errno uintptr) {
	if args != 0 {
		pid, errno = rawVfork(unix.SYS_CLONE3, args, CloneArgsSize)
	} else {
		pid, errno = rawVfork(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0)
	}
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	child(arg)
	for {
		Raw(unix.SYS_EXIT_GROUP, 253, 0, 0, 0, 0, 0)
	}
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

// NoLandlock says why LandlockABI is 0 and what to do about it, from evidence: what
// the kernel answers, and whether this process is under a system call filter, whose
// answer it may be.
func NoLandlock() (cause, fix string) {
	_, e := Raw(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION, 0, 0, 0)
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return noLandlock(syscall.Errno(e), err != nil || mode != 0)
}

func noLandlock(e syscall.Errno, filtered bool) (cause, fix string) {
	switch {
	case e == unix.EOPNOTSUPP && !filtered:
		return "the kernel has Landlock, and it was not enabled at boot", "boot with lsm=landlock,…"
	case e == unix.ENOSYS && !filtered:
		return "this kernel has no Landlock",
			"run Linux 5.13 or later, 6.2 for --driver landlock, with CONFIG_SECURITY_LANDLOCK"
	}
	return "Landlock cannot be had here: this process is under a system call filter, of a sandbox or a container, that denies it, or the kernel has none",
		"start sbxrun outside of that sandbox, or let its filter allow the landlock_ calls"
}

// Release is the kernel's version as it says it, such as 6.1.0-13-amd64.
func Release() string {
	var u unix.Utsname
	unix.Uname(&u) // fails only if u cannot be written
	return unix.ByteSliceToString(u.Release[:])
}

// TooOld says why no sandbox can be made on this kernel because of its age, and what to
// do about it; "" if that is not so. mount_setattr(2) is the newest call that nothing
// replaces.
func TooOld() (cause, fix string) {
	_, e := Raw(unix.SYS_MOUNT_SETATTR, 0, 0, 0, 0, 0, 0) // EINVAL: no attributes
	return tooOld(syscall.Errno(e), Release())
}

// A newer kernel has the call, and a system call filter answers for it.
func tooOld(e syscall.Errno, release string) (cause, fix string) {
	major, minor, ok := kernelVersion(release)
	if e != unix.ENOSYS || !ok || major > 5 || major == 5 && minor >= 12 {
		return "", ""
	}
	return "this is Linux " + release + ", and mounts are set up with mount_setattr(2), which Linux has since 5.12",
		"run on Linux 6.1 or later; or by bubblewrap, which is weaker: --driver bwrap --allow-degraded landlock,protect"
}

// kernelVersion reads the first two numbers of "6.1.0-13-amd64".
func kernelVersion(release string) (major, minor int, ok bool) {
	n, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, n == 2 && err == nil
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
