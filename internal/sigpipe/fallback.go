package sigpipe

import (
	"os"
	"os/signal"
	"syscall"
)

// fallback has room of its own for each signal: os/signal drops what there is none for.
func fallback(to chan<- os.Signal, signals []syscall.Signal) {
	for _, s := range signals {
		if signal.Ignored(s) {
			continue
		}
		own := make(chan os.Signal, 2)
		signal.Notify(own, s)
		go func() {
			for s := range own {
				to <- s
			}
		}()
	}
}
