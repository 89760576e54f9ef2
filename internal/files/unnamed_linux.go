package files

import (
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// unnamed makes a file without a name in a directory: nothing stays of it if this process
// is killed. Not every file system has those.
func unnamed(dir *os.File, mode fs.FileMode) (*os.File, error) {
	fd, err := openAt(int(dir.Fd()), ".", unix.O_RDWR|unix.O_TMPFILE, uint32(mode))
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir.Name()), nil
}

// named gives it a name. Tests let it fail.
var named = func(f, dir *os.File, name string) error {
	own := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	return unix.Linkat(unix.AT_FDCWD, own, int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
}
