package rootfs

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HostFS is this host's file system as [Host].
type HostFS struct{}

// Lookup describes what is at a path.
func (HostFS) Lookup(p string) (Node, error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		switch err {
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES:
			// What the caller may not look at is not shown to the command.
			return Node{}, nil
		}
		return Node{}, &os.PathError{Op: "lstat", Path: p, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return Node{Kind: NodeDir, Mode: st.Mode & 0o777}, nil
	case unix.S_IFLNK:
		link, err := os.Readlink(p)
		if err != nil {
			return Node{}, err
		}
		return Node{Kind: NodeSymlink, Link: link, Real: realPath(p)}, nil
	}
	return Node{Kind: NodeFile, Socket: st.Mode&unix.S_IFMT == unix.S_IFSOCK}, nil
}

// realPath resolves a symbolic link completely, "" if it leads nowhere.
func realPath(p string) string {
	fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || !strings.HasPrefix(real, "/") {
		return ""
	}
	return real
}

// List names what a directory holds.
func (HostFS) List(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
