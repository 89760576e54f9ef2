//go:build amd64 || arm64

package sigpipe

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// Default has a signal end the program as it ends one that says nothing of it, unless it is
// ignored. The Go runtime's handler for SIGQUIT prints what goroutines do, and exits with 2.
func Default(s syscall.Signal) {
	if !signal.Ignored(s) {
		sys.DefaultOn(s)
	}
}

// Notify sends the signals to the channel from now on, but for those that the
// program was started with ignored: nohup(1), and shells without job control,
// mean it. It is called at most once, and not undone. However many come, none keeps another
// out: of each, two wait at least, for the second may mean more than the first.
func Notify(to chan<- os.Signal, signals ...syscall.Signal) {
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		fallback(to, signals)
		return
	}
	for _, s := range signals {
		if !signal.Ignored(s) && sys.WriteOnSignal(s, fds[1]) != nil {
			fallback(to, []syscall.Signal{s})
		}
	}
	// Non-blocking: the goroutine waits in the runtime's poller.
	r := os.NewFile(uintptr(fds[0]), "signals")
	go func() {
		var buf [16]byte
		var q queue
		for {
			n, err := r.Read(buf[:])
			if err != nil {
				return
			}
			q.mu.Lock()
			for _, b := range buf[:n] {
				q.put(to, syscall.Signal(b))
			}
			q.mu.Unlock()
		}
	}()
}

// A queue has the signals for which there was no room in the channel.
type queue struct {
	mu   sync.Mutex
	list []syscall.Signal
}

// put sends the signal, or leaves it to a goroutine that waits for room.
//
// Preconditions: mu is held.
func (q *queue) put(to chan<- os.Signal, s syscall.Signal) {
	if len(q.list) == 0 {
		select {
		case to <- s:
			return
		default:
		}
		go q.send(to)
	}
	waiting := 0
	for _, w := range q.list {
		if w == s {
			waiting++
		}
	}
	if waiting < 2 {
		q.list = append(q.list, s)
	}
}

func (q *queue) send(to chan<- os.Signal) {
	for {
		q.mu.Lock()
		s := q.list[0]
		q.mu.Unlock()
		to <- s
		q.mu.Lock()
		q.list = q.list[1:]
		empty := len(q.list) == 0
		q.mu.Unlock()
		if empty {
			return
		}
	}
}
