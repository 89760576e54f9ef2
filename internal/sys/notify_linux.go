package sys

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Call makes a system call that may take long: the Go scheduler is told, so that
// other goroutines run meanwhile.
func Call(nr, a, b, c, d, e, f uintptr) (r, errno uintptr) {
	r1, _, e1 := syscall.Syscall6(nr, a, b, c, d, e, f)
	return r1, uintptr(e1)
}

// A Notification is a system call that a filter held back, struct seccomp_notif
// of seccomp_unotify(2).
type Notification struct {
	ID    uint64
	PID   uint32 // the thread, in the pid namespace of who receives
	Flags uint32
	NR    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

// notifyResponse is struct seccomp_notif_resp.
type notifyResponse struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// notifyAddFD is struct seccomp_notif_addfd.
type notifyAddFD struct {
	id         uint64
	flags      uint32
	srcfd      uint32
	newfd      uint32
	newfdFlags uint32
}

// Requests of ioctl(2) on a listener that golang.org/x/sys/unix has no names or
// sizes for; see linux/seccomp.h.
const (
	notifyRecv     = 0xc0502100
	notifySend     = 0xc0182101
	notifyIDValid  = 0x40082102
	notifyAdd      = 0x40182103
	notifySetFlags = 0x40082104
)

// A Listener answers the system calls that a filter holds back. It has memory of
// its own for each request, so that answering does not allocate; one goroutine
// uses it at a time.
type Listener struct {
	FD   int
	resp notifyResponse
	add  notifyAddFD
	id   uint64
	near bool // Near holds the thread on cpu
	cpu  uint32
	size int // of a mask of this thread's
	cpus struct{ all, here, own, caller, now cpuSet }
}

// Receive waits for the next call. The error is ENOENT when nobody is left to
// make one (Linux 6.11; before, only poll(2) tells), or when the caller was
// killed meanwhile.
func (l *Listener) Receive(n *Notification) error {
	*n = Notification{}
	return errnoError(Call(unix.SYS_IOCTL, uintptr(l.FD), notifyRecv, Addr(n), 0, 0, 0))
}

// Reply ends a call with a result or, if errno is not 0, with that.
func (l *Listener) Reply(id uint64, val int64, errno syscall.Errno) error {
	l.resp = notifyResponse{id: id, val: val, err: -int32(errno)}
	return errnoError(l.request(notifySend, Addr(&l.resp)))
}

// Continue lets the kernel make the call. Only for calls that no check depends
// on: what their arguments point to can change at any time.
func (l *Listener) Continue(id uint64) error {
	l.resp = notifyResponse{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	return errnoError(l.request(notifySend, Addr(&l.resp)))
}

// AddFD installs a copy of fd in the caller and returns its number there.
func (l *Listener) AddFD(id uint64, fd int, flags uint32) (int, error) {
	l.add = notifyAddFD{id: id, srcfd: uint32(fd), newfdFlags: flags}
	r, e := l.request(notifyAdd, Addr(&l.add))
	return int(r), errnoError(r, e)
}

// cpuSet is an affinity mask, of as many processors as a kernel can be built for.
type cpuSet [1024]byte

// Near holds this thread on the processor that it is on, until Far.
//
// Preconditions: the caller holds runtime.LockOSThread.
func (l *Listener) Near() {
	m := &l.cpus
	if l.near {
		return
	}
	if _, e := Raw(unix.SYS_GETCPU, Addr(&l.cpu), 0, 0, 0, 0, 0); e != 0 || int(l.cpu) >= 8*len(m.here) {
		return
	}
	for i := range m.all {
		m.all[i] = 0xff
	}
	m.here = cpuSet{}
	m.here[l.cpu/8] = 1 << (l.cpu % 8)
	l.size, l.near = l.hold(0, &m.own)
}

// Far undoes Near.
func (l *Listener) Far() {
	if l.near {
		l.release(0, &l.cpus.own, l.size)
		l.near = false
	}
}

// AddNear is AddFD for a thread that Near holds, with the caller, thread pid, on the same
// processor for as long as it takes. SECCOMP_IOCTL_NOTIF_ADDFD wakes the caller, and the
// caller this thread, as if each had more to do than to wait for the other: the kernel
// sends for an idle processor, which takes 40 µs and more in a virtual machine where that
// is halted. SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP is about the other requests alone.
//
// The caller's mask is as before afterwards, unless somebody else changed it meanwhile:
// then it stays. A change between a look at the mask and what is set by that is lost, for
// no call compares the two.
func (l *Listener) AddNear(id uint64, pid uint32, fd int, flags uint32) (int, error) {
	m := &l.cpus
	// If the caller is gone, its number may be another process's.
	if !l.near || !l.Valid(id) {
		return l.AddFD(id, fd, flags)
	}
	size, ok := l.hold(pid, &m.caller)
	n, err := l.AddFD(id, fd, flags)
	if ok {
		l.release(pid, &m.caller, size)
	}
	return n, err
}

// hold leaves a thread, 0 for this one, the processor of Near alone, if it may be there. In
// was is the mask that release is to give back.
//
// What a thread asks for is remembered, and no cpuset or processor that comes later gives
// it more (Linux 6.2). One that has all that its cpuset has, has asked for nothing, as far
// as can be told: all is what it gets back.
func (l *Listener) hold(pid uint32, was *cpuSet) (size int, ok bool) {
	m := &l.cpus
	*was = cpuSet{}
	if size, ok = affinity(pid, was); !ok || was[l.cpu/8]&(1<<(l.cpu%8)) == 0 || !setAffinity(pid, &m.all, size) {
		return size, false
	}
	if n, ok := affinity(pid, &m.now); ok && n == size && m.now == *was {
		*was = m.all
	}
	if ok = setAffinity(pid, &m.here, size); !ok {
		setAffinity(pid, was, size)
	}
	return size, ok
}

// release gives a thread its mask back, unless it has another than that of hold by now.
func (l *Listener) release(pid uint32, was *cpuSet, size int) {
	if n, ok := affinity(pid, &l.cpus.now); ok && n == size && l.cpus.now == l.cpus.here {
		setAffinity(pid, was, size)
	}
}

// affinity reads the mask of a thread, 0 for this one, and returns its size.
//
//	int sched_getaffinity(pid_t pid, size_t cpusetsize, cpu_set_t *mask);
func affinity(pid uint32, set *cpuSet) (int, bool) {
	n, e := Raw(unix.SYS_SCHED_GETAFFINITY, uintptr(pid), uintptr(len(set)), Addr(set), 0, 0, 0)
	return int(n), e == 0
}

func setAffinity(pid uint32, set *cpuSet, size int) bool {
	_, e := Raw(unix.SYS_SCHED_SETAFFINITY, uintptr(pid), uintptr(size), Addr(set), 0, 0, 0)
	return e == 0
}

// Replace installs a copy of fd in the caller in the place of its descriptor at.
func (l *Listener) Replace(id uint64, fd, at int, flags uint32) error {
	l.add = notifyAddFD{id: id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcfd: uint32(fd), newfd: uint32(at),
		newfdFlags: flags}
	return errnoError(l.request(notifyAdd, Addr(&l.add)))
}

// Valid reports whether the caller still waits, so that what was read of it by
// its number was its own.
func (l *Listener) Valid(id uint64) bool {
	l.id = id
	_, e := l.request(notifyIDValid, Addr(&l.id))
	return e == 0
}

// request makes a request of a call. A signal that comes while another thread has the
// listener's lock ends it before anything was done; the runtime sends such signals.
func (l *Listener) request(request, arg uintptr) (r, e uintptr) {
	for {
		if request == notifyAdd {
			r, e = Call(unix.SYS_IOCTL, uintptr(l.FD), request, arg, 0, 0, 0)
		} else {
			r, e = Raw(unix.SYS_IOCTL, uintptr(l.FD), request, arg, 0, 0, 0)
		}
		if syscall.Errno(e) != syscall.EINTR {
			return r, e
		}
	}
}

// Synchronous tells the kernel that caller and listener take turns, so that it
// need not wake another processor (Linux 6.6). An older kernel refuses, and
// nothing is lost.
func (l *Listener) Synchronous() {
	Raw(unix.SYS_IOCTL, uintptr(l.FD), notifySetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, 0, 0, 0)
}

// NotifyFlags are those with which a filter's listener is made.
const NotifyFlags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV

// CanNotify reports whether the kernel has listeners whose callers only a deadly
// signal interrupts once their call was received (Linux 5.19). Without that, a
// call could be made twice.
var CanNotify = sync.OnceValue(func() bool {
	// EFAULT: the flags are known, and the program would be looked at next.
	_, e := Raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, NotifyFlags, 0, 0, 0, 0)
	return syscall.Errno(e) == unix.EFAULT
})

func errnoError(_, e uintptr) error {
	if e == 0 {
		return nil
	}
	return syscall.Errno(e)
}
