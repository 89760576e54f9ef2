package host

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const maxrssUnit = 1 // ru_maxrss is in bytes; see getrusage(2)

// adopt does nothing: macOS has no subreaper, so a process that leaves the
// command's process group is out of reach.
func adopt(*syscall.SysProcAttr) error { return nil }

// awaitExit returns when the child has ended, and leaves it to be reaped; see
// EVFILT_PROC in kqueue(2).
func awaitExit(pid int) {
	kq, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer unix.Close(kq)
	change := []unix.Kevent_t{{
		Ident:  uint64(pid),
		Filter: unix.EVFILT_PROC,
		Flags:  unix.EV_ADD | unix.EV_ONESHOT,
		Fflags: unix.NOTE_EXIT,
	}}
	// ESRCH: it has ended already.
	for {
		if _, err := unix.Kevent(kq, change, make([]unix.Kevent_t, 1), nil); err != unix.EINTR {
			return
		}
	}
}

func hasExited(int) bool               { return false } // Wait notices
func signalDescendants(syscall.Signal) {}
func sweepDescendants()                {}
