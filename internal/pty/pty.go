// Package pty opens terminals for commands that do not get one of a sandbox's
// own devpts: both ends, by the kernel's own calls and without a path that could
// be another's.
package pty

import (
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Open opens a new terminal of the given size, which may be nil; see pty(7) and,
// for macOS, pty(4). The master does not block, so that reads end when it is
// closed. Both ends are the caller's to close. On macOS the slave's name is its path.
func Open(size *specs.Box) (master, slave *os.File, err error) {
	m, s, name, err := open()
	if err != nil {
		return nil, nil, err
	}
	if size != nil {
		unix.IoctlSetWinsize(s, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)})
	}
	if err := unix.SetNonblock(m, true); err != nil {
		unix.Close(m)
		unix.Close(s)
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(m), "pty"), os.NewFile(uintptr(s), name), nil
}
