package pty

import (
	"os"

	"golang.org/x/sys/unix"
)

func open() (master, slave int, name string, err error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, "", &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		unix.Close(m)
		return 0, 0, "", os.NewSyscallError("ioctl", err)
	}
	// TIOCGPTPEER opens the other end without a path, so that /dev/pts need not be
	// the instance that the master is from; Linux 4.13. See ioctl_tty(2).
	s, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		unix.Close(m)
		return 0, 0, "", os.NewSyscallError("ioctl", errno)
	}
	return m, int(s), "tty", nil
}
