package pty

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// open does what posix_openpt(3), grantpt(3), unlockpt(3) and ptsname(3) do.
// The name is the other end's path.
func open() (master, slave int, name string, err error) {
	// Nothing else of this process may be forked between open and fcntl: macOS has
	// O_CLOEXEC for open(2), but not for what the kernel clones for /dev/ptmx.
	syscall.ForkLock.RLock()
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err == nil {
		unix.CloseOnExec(m)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, 0, "", &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	for _, req := range [...]uint{unix.TIOCPTYGRANT, unix.TIOCPTYUNLK} {
		if err := unix.IoctlSetInt(m, req, 0); err != nil {
			unix.Close(m)
			return 0, 0, "", os.NewSyscallError("ioctl", err)
		}
	}
	name, err = sys.PtyName(m)
	if err != nil {
		unix.Close(m)
		return 0, 0, "", os.NewSyscallError("ioctl", err)
	}
	s, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(m)
		return 0, 0, "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	return m, s, name, nil
}
