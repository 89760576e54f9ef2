package guard

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// A waiter is an open that waits for the other end of a FIFO, or for the holder
// of a lease: in the kernel, on a thread of its own, so that it costs nothing
// until it ends. The work of a guard is not in the command's cgroup.
type waiter struct {
	l     sys.Listener // with memory of its own
	id    uint64
	pid   uint32
	fd    int
	flags uint32

	ended atomic.Bool   // the call was answered, or nobody waits for that
	done  chan struct{} // closed when the thread is done; nil without a thread
	mu    sync.Mutex    // guards tid
	tid   int           // of the thread while it waits
}

const (
	// maxBlocked is how many threads of a guard wait. What waits beside those is
	// tried again.
	maxBlocked = 64

	// lookEvery is how often waiters are looked at, a few at a time, whatever their
	// number: one whether it has a signal pending, of which nothing tells, and
	// retries of those without a thread.
	lookEvery = 16 * time.Millisecond
	retries   = 16

	// interrupts ends the waiting of a thread. The last real-time signal is nobody's.
	interrupts = syscall.Signal(64)
)

var interruptible = sync.OnceValue(func() error { return sys.InterruptOn(interrupts) })

// wait leaves an open to the kernel, on another thread. fd is a place, which it
// takes.
func (w *worker) wait(fd int, flags uint32, errno syscall.Errno) (int64, syscall.Errno) {
	if err := unix.Fstat(fd, &w.stat); err != nil {
		closeFD(fd)
		return failed(err.(syscall.Errno))
	}
	switch kind := w.stat.Mode & unix.S_IFMT; {
	case kind == unix.S_IFIFO, kind == unix.S_IFREG && errno == unix.EAGAIN:
	default:
		closeFD(fd)
		return failed(errno)
	}
	wt := &waiter{l: sys.Listener{FD: w.l.FD}, id: w.n.ID, pid: w.n.PID, fd: fd, flags: flags &^ (unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW)}
	w.waiting = append(w.waiting, wt)
	w.occupy()
	return 0, waits
}

// occupy forgets the waiters that are done, and gives threads to others.
func (w *worker) occupy() {
	kept, blocked := w.waiting[:0], 0
	for _, wt := range w.waiting {
		switch {
		case wt.ended.Load():
			wt.drop()
			continue
		case wt.done != nil:
			blocked++
		}
		kept = append(kept, wt)
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
	for _, wt := range w.waiting {
		if wt.done == nil && blocked < maxBlocked && interruptible() == nil {
			wt.done = make(chan struct{})
			employ(wt.block, wt.done)
			blocked++
		}
	}
}

// block opens, on a thread that waits as long as the kernel does.
func (wt *waiter) block(w *worker, err error) {
	wt.mu.Lock()
	wt.tid = unix.Gettid()
	wt.mu.Unlock()
	for !wt.ended.Load() {
		file, errno := -1, syscall.Errno(unix.EACCES)
		if err == nil {
			cwd := unix.AT_FDCWD
			r, e := sys.Call(unix.SYS_OPENAT, uintptr(cwd), w.selfPath(wt.fd), uintptr(wt.flags|unix.O_CLOEXEC|unix.O_NOCTTY), 0, 0, 0)
			file, errno = int(r), syscall.Errno(e)
		}
		if errno == unix.EINTR {
			continue // see end
		}
		wt.answer(file, errno)
	}
	wt.mu.Lock()
	wt.tid = 0
	wt.mu.Unlock()
}

// answer ends the call, if that has not ended.
func (wt *waiter) answer(file int, errno syscall.Errno) {
	first := wt.ended.CompareAndSwap(false, true)
	var res int64
	if errno == 0 {
		if first {
			n, err := wt.l.AddFD(wt.id, file, wt.flags&unix.O_CLOEXEC)
			if err != nil {
				errno = err.(syscall.Errno)
			}
			res = int64(n)
		}
		closeFD(file)
	}
	if first {
		wt.l.Reply(wt.id, res, errno)
	}
}

// drop ends the waiting, however it stands with the call.
func (wt *waiter) drop() {
	wt.ended.Store(true)
	for wt.done != nil {
		wt.mu.Lock()
		if wt.tid != 0 {
			unix.Tgkill(unix.Getpid(), wt.tid, interrupts)
		}
		wt.mu.Unlock()
		select {
		case <-wt.done:
			wt.done = nil
		case <-time.After(time.Millisecond): // it came before the thread waited
		}
	}
	closeFD(wt.fd)
}

// restart is ERESTARTSYS: the kernel ends the call with EINTR, or has it made
// again, as the signal's handler says. The caller must have a signal pending.
const restart syscall.Errno = 512

// attend looks at the next waiters, if it is time to, and returns for how long there
// is nothing to do but to wait for a call, ms; -1 is for ever.
func (w *worker) attend() int {
	if len(w.waiting) == 0 {
		return -1
	}
	if left := time.Until(w.looks); left > 0 {
		return int(left.Milliseconds()) + 1
	}
	w.looks = time.Now().Add(lookEvery)
	if w.occupy(); len(w.waiting) == 0 {
		return -1
	}
	w.asked = (w.asked + 1) % len(w.waiting)
	wt := w.waiting[w.asked]
	w.n.ID, w.n.PID = wt.id, wt.pid
	switch {
	case !w.l.Valid(wt.id):
		wt.ended.Store(true)
	case w.signalled() && wt.ended.CompareAndSwap(false, true):
		// While a call is held, only deadly signals interrupt it.
		w.l.Reply(wt.id, 0, restart)
	}
	for i := 0; i < min(retries, len(w.waiting)); i++ {
		w.next = (w.next + 1) % len(w.waiting)
		if wt := w.waiting[w.next]; wt.done == nil && !wt.ended.Load() {
			if file, errno := w.again(wt.fd, wt.flags); errno != unix.ENXIO && errno != unix.EAGAIN {
				w.own(file, wt.flags)
				wt.answer(file, errno)
			}
		}
	}
	return int(lookEvery.Milliseconds())
}

// signalled reports whether a signal waits for the caller that would interrupt a
// call of its own. Those for the whole process are the main thread's unless it
// blocks them: of another thread it cannot be told whether it would get one.
func (w *worker) signalled() bool {
	text, err := w.readProc("/status")
	return err == nil && w.l.Valid(w.n.ID) && pending(text)
}
