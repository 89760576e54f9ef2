package engine

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// openUnlinked opens a path in which no part is a symbolic link; see openat2(2).
func openUnlinked(name string, flags int, mode uint32) (int, error) {
	how := &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	if flags&syscall.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, name, how)
		if err == unix.EINTR || err == unix.EAGAIN { // a rename somewhere
			continue
		}
		return fd, err
	}
}

// OpenRoot opens a directory by a path in which no part is a symbolic link.
func OpenRoot(dir string) (*os.Root, error) {
	fd, err := openUnlinked(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return os.OpenRoot("/proc/self/fd/" + strconv.Itoa(fd))
}
