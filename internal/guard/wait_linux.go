package guard

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// A waiter is an open that waits for the other end of a FIFO, or for the holder
// of a lease: in the kernel, on a thread of its own, so that it costs nothing
// until it ends. The work of a guard is not in the command's cgroup.
//
// The thread is none of the Go runtime's, which ends the process where the system
// has no thread for it: a command can take all that its user or group may have.
type waiter struct {
	id    uint64
	pid   uint32
	fd    int
	flags uint32
	ended bool // the call was answered, or nobody waits for that

	opening sys.Opening
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

	// interrupts ends the waiting of a thread. It is nobody's, and none of the real-time
	// signals: a user can fill the queue that those need.
	interrupts = syscall.SIGSTKFLT
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
		if errno == 0 { // it was a FIFO before
			errno = unix.ENXIO
		}
		return failed(errno)
	}
	wt := &waiter{id: w.n.ID, pid: w.n.PID, fd: fd, flags: flags &^ (unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW)}
	w.waiting = append(w.waiting, wt)
	w.occupy()
	return 0, waits
}

// occupy answers for the threads that are done, forgets the waiters that ended, and
// gives threads to others.
func (w *worker) occupy() {
	kept, threads := w.waiting[:0], 0
	for _, wt := range w.waiting {
		if file, errno, ok := wt.opening.Result(); ok {
			wt.answer(w, file, errno)
		}
		switch {
		case wt.ended && (!wt.opening.Started() || wt.opening.End(interrupts)):
			closeFD(wt.fd)
			continue
		case wt.opening.Started():
			threads++
		}
		kept = append(kept, wt)
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
	for _, wt := range w.waiting {
		if wt.opening.Started() || wt.ended {
			continue
		}
		if threads < maxBlocked && w.block(wt) == nil {
			threads++
			continue
		}
		if wt.flags&unix.O_ACCMODE == unix.O_RDONLY && w.reads(wt) {
			wt.answer(w, -1, unix.ENOMEM) // to try would be to open: who reads does not wait then
			continue
		}
		threads = maxBlocked
	}
}

// reads reports whether a waiter is to read from a FIFO.
func (w *worker) reads(wt *waiter) bool {
	return unix.Fstat(wt.fd, &w.stat) == nil && w.stat.Mode&unix.S_IFMT == unix.S_IFIFO
}

// block gives a waiter a thread, which has the rights of this one.
func (w *worker) block(wt *waiter) error {
	if err := interruptible(); err != nil {
		return err
	}
	if w.event < 0 {
		var err error
		if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return err
		}
	}
	path := appendInt(append(w.num[:0], "/proc/self/fd/"...), wt.fd)
	return wt.opening.Open(string(path), wt.flags|unix.O_CLOEXEC|unix.O_NOCTTY, w.event, interrupts)
}

// answer ends the call, if that has not ended, and closes the file.
func (wt *waiter) answer(w *worker, file int, errno syscall.Errno) {
	var res int64
	if errno == 0 {
		if !wt.ended {
			n, err := w.l.AddFD(wt.id, file, wt.flags&unix.O_CLOEXEC)
			if err != nil {
				errno = err.(syscall.Errno)
			}
			res = int64(n)
		}
		closeFD(file)
	}
	if !wt.ended {
		wt.ended = true
		w.l.Reply(wt.id, res, errno)
	}
}

// forget ends all waiting.
func (w *worker) forget() {
	for _, q := range w.doubts {
		q.cancel()
		w.denied(q.denial)
	}
	w.g.doubts.Add(-int32(len(w.doubts)))
	w.doubts = nil
	for {
		for _, wt := range w.waiting {
			wt.ended = true
		}
		if w.occupy(); len(w.waiting) == 0 {
			break
		}
		time.Sleep(100 * time.Microsecond) // the signal came before the thread waited, or it still ends
	}
	closeFD(w.event)
	w.event = -1
}

// restart is ERESTARTSYS: the kernel ends the call with EINTR, or has it made
// again, as the signal's handler says. The caller must have a signal pending.
const restart syscall.Errno = 512

// attend looks at the next waiters, if it is time to, and returns for how long there
// is nothing to do but to wait for a call, ms; -1 is for ever.
func (w *worker) attend() int {
	if len(w.doubts) > 0 {
		w.settle()
	}
	if len(w.waiting) == 0 {
		if len(w.doubts) > 0 {
			return int(lookEvery.Milliseconds())
		}
		return -1
	}
	if left := time.Until(w.looks); left > 0 {
		if w.event >= 0 && w.done() {
			w.occupy()
		}
		return int(left.Milliseconds()) + 1
	}
	w.looks = time.Now().Add(lookEvery)
	if w.occupy(); len(w.waiting) == 0 {
		return 0
	}
	w.asked = (w.asked + 1) % len(w.waiting)
	wt := w.waiting[w.asked]
	w.n.ID, w.n.PID = wt.id, wt.pid
	switch {
	case wt.ended:
	case !w.l.Valid(wt.id):
		wt.ended = true
	case w.signalled():
		// While a call is held, only deadly signals interrupt it.
		wt.ended = true
		w.l.Reply(wt.id, 0, restart)
	}
	for i := 0; i < min(retries, len(w.waiting)); i++ {
		w.next = (w.next + 1) % len(w.waiting)
		if wt := w.waiting[w.next]; !wt.opening.Started() && !wt.ended {
			if file, errno := w.again(wt.fd, wt.flags); errno != unix.ENXIO && errno != unix.EAGAIN {
				w.own(file, wt.flags)
				wt.answer(w, file, errno)
			}
		}
	}
	return int(lookEvery.Milliseconds())
}

// done reports whether a thread was done since it was asked last.
func (w *worker) done() bool {
	_, err := unix.Read(w.event, w.num[:8])
	return err == nil
}

// signalled reports whether a signal waits for the caller that would interrupt a
// call of its own. Those for the whole process are the main thread's unless it
// blocks them: of another thread it cannot be told whether it would get one.
func (w *worker) signalled() bool {
	text, err := w.readProc("/status")
	return err == nil && w.l.Valid(w.n.ID) && pending(text)
}
