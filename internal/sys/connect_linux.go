package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Connect is connect(2) on a blocking stream socket, within a time. A signal does
// not end it: the Go runtime sends its threads SIGURG, and SO_SNDTIMEO, which bounds
// the call, also makes it fail with EINTR whatever SA_RESTART says (signal(7)).
// The kernel goes on connecting meanwhile, and the same call waits for it again.
func Connect(fd int, to unix.Sockaddr, within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		// Rounded up: a timeout of 0 would be none.
		tv := unix.NsecToTimeval((left + time.Microsecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
			return err
		}
		if err := unix.Connect(fd, to); err != unix.EINTR {
			if err != nil {
				return err
			}
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{})
		}
	}
}
