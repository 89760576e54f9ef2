//go:build !linux || !(amd64 || arm64)

package sigpipe

import (
	"os"
	"syscall"
)

// Notify sends the signals to the channel from now on, but for those that the
// program was started with ignored.
func Notify(to chan<- os.Signal, signals ...syscall.Signal) { fallback(to, signals) }
