package workspace

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Base is a workspace at the moment when an overlay is taken of it.
type Base struct {
	Path     string // without symbolic links
	Dev, Ino uint64
	Taken    time.Time

	root int
}

// Take opens a workspace, before the overlay of it is mounted.
func Take(dir string) (*Base, error) {
	b, err := openBase(dir)
	if err != nil {
		return nil, err
	}
	// What was changed before has an older time of change, and what is changed
	// from now on does not: the clock that the kernel stamps files by, which lags
	// behind the time, has come to be past it. (Some stamps are the time itself:
	// multigrain timestamps, Linux 6.13.)
	begin := time.Now()
	for i := 0; b.Taken.IsZero() || !b.Taken.After(begin); i++ {
		if i == 200 {
			break // a clock that stands still: at worst a conflict that is none
		}
		time.Sleep(500 * time.Microsecond)
		b.Taken = coarse()
	}
	return b, nil
}

func coarse() time.Time {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts)
	return time.Unix(ts.Unix())
}

// openBase opens a workspace, through no symbolic link.
func openBase(dir string) (*Base, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return &Base{Path: dir, Dev: st.Dev, Ino: st.Ino, root: fd}, nil
}

// Close closes the workspace.
func (b *Base) Close() error { return unix.Close(b.root) }

// openDir opens a directory below an open one, through no symbolic link and no
// mount. The caller closes it.
func openDir(root int, rel string) (int, error) {
	rel = cmp.Or(rel, ".")
	return openBelow(root, rel, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openSearchable is openDir of a directory in which names can be looked up, too: else
// EACCES.
func openSearchable(root int, rel string) (int, error) {
	fd, err := openDir(root, rel)
	if err == nil && unix.Faccessat(fd, ".", unix.X_OK, unix.AT_EACCESS) != nil {
		unix.Close(fd)
		return -1, unix.EACCES
	}
	return fd, err
}

func openBelow(root int, rel string, flags uint64) (int, error) {
	for {
		fd, err := unix.Openat2(root, rel, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV})
		// EAGAIN: something was renamed while ".." was looked at; see openat2(2).
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		return fd, err
	}
}

// openFile opens a regular file to read it, and nothing else: not a FIFO, which
// would wait for a writer.
func openFile(dir int, name string) (*os.File, error) {
	fd, err := openBelow(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, errors.Join(err, unix.ESTALE)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// names lists an open directory, sorted.
func names(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	list, err := f.Readdirnames(-1)
	slices.Sort(list)
	return list, err
}

// lookup describes what is at a name in an open directory: nil if there is
// nothing. A type that changes are not made of has a node with Type "". The content
// of files is not looked at.
func lookup(dir int, name string) (*Node, *unix.Stat_t, error) {
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err {
	case nil:
	case unix.ENOENT:
		return nil, nil, nil
	default:
		return nil, nil, err
	}
	n := &Node{Mode: st.Mode & 0o777, ModTime: st.Mtim.Nano(), Dev: st.Dev, Ino: st.Ino, ChangeTime: st.Ctim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Type, n.Size = File, st.Size
	case unix.S_IFDIR:
		n.Type = Dir
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		k, err := unix.Readlinkat(dir, name, buf)
		if err == unix.ENOENT || err == unix.EINVAL {
			return lookup(dir, name) // something else by now
		}
		if err != nil {
			return nil, nil, err
		}
		n.Type, n.Target, n.Mode = Symlink, string(buf[:k]), 0o777
	}
	return n, &st, nil
}

// sum returns the digest of a file's content.
func sum(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sumOf is sum of a file in an open directory.
func sumOf(dir int, name string) (string, error) {
	f, err := openFile(dir, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return sum(f)
}

// procPath is a path of what a descriptor is open for.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// split is the directory of a path, "" for the workspace, and the name in it.
func split(rel string) (dir, name string) {
	dir, name = path.Split(rel)
	if dir != "" {
		dir = dir[:len(dir)-1]
	}
	return dir, name
}

func isGone(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}
