//go:build amd64 || arm64

package sigpipe

import (
	"os"
	"os/signal"
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
// mean it. It is called at most once, and not undone: a signal that arrives when
// nobody reads the channel any more is dropped.
func Notify(to chan<- os.Signal, signals ...syscall.Signal) {
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		fallback(to, signals)
		return
	}
	for _, s := range signals {
		if !signal.Ignored(s) && sys.WriteOnSignal(s, fds[1]) != nil {
			signal.Notify(to, s)
		}
	}
	// Non-blocking: the goroutine waits in the runtime's poller.
	r := os.NewFile(uintptr(fds[0]), "signals")
	go func() {
		buf := make([]byte, 16)
		for {
			n, err := r.Read(buf)
			if err != nil {
				return
			}
			for _, b := range buf[:n] {
				select {
				case to <- syscall.Signal(b):
				default:
				}
			}
		}
	}()
}
