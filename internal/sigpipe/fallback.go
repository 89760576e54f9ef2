package sigpipe

import (
	"os"
	"os/signal"
	"syscall"
)

func fallback(to chan<- os.Signal, signals []syscall.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
}
