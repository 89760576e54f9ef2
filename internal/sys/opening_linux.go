//go:build amd64 || arm64

package sys

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An Opening is an open(2) that waits as long as the kernel has it wait, on a thread
// of its own: see [Thread].
type Opening struct {
	task *Task
	blocked
}

// blocked is what the thread uses: numbers only, and addresses of what the Opening
// holds.
type blocked struct {
	path        [32]byte
	how, event  uintptr
	one         uint64
	mask        uint64
	over        atomic.Uint32 // to end without a result
	done        atomic.Uint32 // file and errno are the call's
	file, errno uintptr
}

// Open opens a path for nobody to wait for. When it is done, it writes to the eventfd
// event. The Opening must be reachable until End has reported true.
func (o *Opening) Open(path string, flags uint32, event int, interrupt syscall.Signal) (err error) {
	copy(o.path[:len(o.path)-1], path)
	o.how, o.event, o.one, o.mask = uintptr(flags), uintptr(event), 1, ^(uint64(1) << (interrupt - 1))
	o.task, err = Thread(openBlocked, Addr(&o.blocked))
	return err
}

// Started reports whether there is a thread.
func (o *Opening) Started() bool { return o.task != nil }

// Result is what came of the open, once.
func (o *Opening) Result() (file int, errno syscall.Errno, ok bool) {
	if !o.done.CompareAndSwap(1, 2) {
		return -1, 0, false
	}
	return int(o.file), syscall.Errno(o.errno), true
}

// End tells the thread to end, and reports whether it has. It has to be called
// again: the signal may come before the thread waits.
func (o *Opening) End(interrupt syscall.Signal) bool {
	o.over.Store(1)
	return unix.Tgkill(unix.Getpid(), o.task.Pid, interrupt) == unix.ESRCH
}

//go:nosplit
//go:norace
//go:nocheckptr
func openBlocked(arg uintptr) {
	b := (*blocked)(*(*unsafe.Pointer)(unsafe.Pointer(&arg)))
	cwd := unix.AT_FDCWD
	Raw(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&b.mask)), 0, 8, 0, 0)
	for {
		b.file, b.errno = Raw(unix.SYS_OPENAT, uintptr(cwd), uintptr(unsafe.Pointer(&b.path)), b.how, 0, 0, 0)
		if b.errno != uintptr(unix.EINTR) || b.over.Load() != 0 {
			break
		}
	}
	b.done.Store(1)
	Raw(unix.SYS_WRITE, b.event, uintptr(unsafe.Pointer(&b.one)), 8, 0, 0, 0)
	exit(0)
}
