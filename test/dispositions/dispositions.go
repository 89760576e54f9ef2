// Package dispositions gives the programs that a test starts the signal
// dispositions that the test is about, whoever runs the tests.
//
// A signal that is ignored stays ignored in what is executed; see signal(7). Under
// nohup(1), or in the background of a shell without job control, tests that send
// SIGHUP or SIGINT would otherwise test a program that is right to ignore it.
package dispositions

import (
	"os"
	"os/signal"
	"syscall"
)

// Default makes signals that this process ignores be caught, and dropped: execve(2)
// sets what is caught to the default.
func Default() {
	drop := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE} {
		if signal.Ignored(s) {
			signal.Notify(drop, s)
		}
	}
}
