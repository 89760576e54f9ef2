package files

import (
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// unnamed makes a file without a name in a directory: nothing stays of it if this process
// is killed. Not every file system has those.
func unnamed(dir string, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, mode)
}

// named gives it a name. Tests let it fail.
var named = func(f *os.File, path string) error {
	own := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	return unix.Linkat(unix.AT_FDCWD, own, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
}
