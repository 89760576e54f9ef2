package supervisor

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Children lists the children of a process, oldest first, of all its threads.
func Children(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []int
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil && n > 1 {
				out = append(out, n)
			}
		}
	}
	return out
}

// SignalChild sends signals to a process, if that is a child of parent: what has
// ended meanwhile may have left its number to another.
func SignalChild(parent, pid int, sigs ...syscall.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !slices.Contains(Children(parent), pid) {
		return syscall.ESRCH
	}
	for _, sig := range sigs {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
			return err
		}
	}
	return nil
}

// SignalBelow sends signals to every process below one. The error is ESRCH if
// there is none.
func SignalBelow(pid int, sigs ...syscall.Signal) error {
	err := error(syscall.ESRCH)
	// Children first: a parent that ends at once hands its children to another.
	for _, c := range Children(pid) {
		if e := SignalBelow(c, sigs...); e == nil {
			err = nil
		}
		if e := SignalChild(pid, c, sigs...); e == nil {
			err = nil
		} else if !errors.Is(e, syscall.ESRCH) && err != nil {
			err = e
		}
	}
	return err
}

// openPty opens a new terminal; see pty(7).
func openPty(size *specs.Box) (master, slave *os.File, err error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	fail := func(err error) (*os.File, *os.File, error) {
		unix.Close(m)
		return nil, nil, os.NewSyscallError("ioctl", err)
	}
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		return fail(err)
	}
	// Opens the other end without a path; Linux 4.13. See ioctl_tty(2).
	s, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return fail(errno)
	}
	if size != nil {
		unix.IoctlSetWinsize(m, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)})
	}
	// Non-blocking, so that reads end when the caller closes the file.
	if err := unix.SetNonblock(m, true); err != nil {
		unix.Close(int(s))
		return fail(err)
	}
	return os.NewFile(uintptr(m), "pty"), os.NewFile(s, "tty"), nil
}
