package engine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reserve gives a regular file room for a result. Where that cannot be had, and for
// what is no regular file, it does nothing.
func reserve(f *os.File) error {
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return err
	}
	at, err := f.Seek(0, 1)
	if err != nil {
		return err
	}
	for {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, at, room)
		if err != unix.EINTR {
			break
		}
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return err
	}
	return nil // EOPNOTSUPP, or a descriptor that cannot be written: that is told later
}

// unnamedIn makes a file with room for a result that has no name yet, so that nothing
// stays of it if the run is killed. It is nil on a file system without such files.
func unnamedIn(dir *os.Root) (*os.File, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Openat(int(d.Fd()), ".", unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, 0o644)
	switch err {
	case nil:
	case unix.EOPNOTSUPP, unix.EISDIR, unix.ENOENT, unix.EINVAL: // see open(2)
		return nil, nil
	default:
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "result")
	if err := reserve(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// giveName ends a file after size bytes and gives it a name.
func giveName(f *os.File, size int64, dir *os.Root, name string) error {
	if err := f.Truncate(size); err != nil { // gives back the room that was not needed
		return err
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), int(d.Fd()), name, unix.AT_SYMLINK_FOLLOW)
}
