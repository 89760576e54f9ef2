//go:build !linux || !(amd64 || arm64)

package sigpipe

import (
	"os"
	"syscall"
)

// Default does nothing: there is no way that the Go runtime knows of.
func Default(syscall.Signal) {}

// Notify sends the signals to the channel from now on, but for those that the
// program was started with ignored.
func Notify(to chan<- os.Signal, signals ...syscall.Signal) { fallback(to, signals) }
