//go:build unix

package files

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links may lead to a file, one to the other. Linux follows no
// more either; see path_resolution(7).
const maxLinks = 40

var errNoName = errors.New("leads to a file that has no name, or has none any more")

// A place is a name in a directory that is open. Whoever moves the directory moves what is
// made in it too, so that all of it can be found and removed.
type place struct {
	dir    *os.File
	name   string
	linked bool // by a symbolic link
}

func (p *place) fd() int { return int(p.dir.Fd()) }

// find returns where a shell's redirection to a path would write: also at the end of links
// that lead to nothing yet.
func find(to string) (*place, error) {
	p := &place{}
	at := unix.AT_FDCWD
	for range maxLinks + 1 {
		dir, name := path.Split(to)
		if name == "" {
			p.close()
			return nil, unix.EISDIR
		}
		fd, err := openAt(at, cmp.Or(dir, "."), passing|unix.O_DIRECTORY, 0)
		p.close()
		if err != nil {
			return nil, err
		}
		p.dir, p.name, at = os.NewFile(uintptr(fd), dir), name, fd
		if to, err = linkAt(fd, name); err == unix.EINVAL || err == unix.ENOENT { // no link, or nothing
			return p, nil
		}
		if err != nil {
			p.close()
			return nil, err
		}
		p.linked = true
	}
	p.close()
	return nil, unix.ELOOP
}

func (p *place) close() {
	if p.dir != nil {
		p.dir.Close()
	}
}

// whole does a system call again that a signal broke off, as on FUSE.
func whole(call func() error) (err error) {
	for err = call(); err == unix.EINTR; err = call() {
	}
	return err
}

// linkAt returns what a symbolic link leads to.
func linkAt(dir int, name string) (string, error) {
	var b [4096]byte // PATH_MAX; see symlink(2)
	var n int
	err := whole(func() (err error) {
		n, err = unix.Readlinkat(dir, name, b[:])
		return err
	})
	if err == nil && n == len(b) {
		err = unix.ENAMETOOLONG
	}
	return string(b[:max(n, 0)]), err
}

// mode returns the permissions of the file that is there, and whether one is. What is
// something else is not replaced.
func (p *place) mode() (mode fs.FileMode, is bool, err error) {
	var st unix.Stat_t
	err = whole(func() error { return unix.Fstatat(p.fd(), p.name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case err == unix.ENOENT:
		return 0, false, nil
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errors.New("is no regular file any more")
	}
	return fs.FileMode(st.Mode & 0o777), err == nil, err
}

// replaceable says why what a path leads to cannot be replaced by a file. What somebody reads
// from, or a device, is written to by a shell, but never as a whole.
func replaceable(fi fs.FileInfo) error {
	switch t := typeOf(fi.Mode()); t {
	case "file":
		return nil
	case "dir":
		return syscall.EISDIR
	default:
		return fmt.Errorf("is a %s, and only a regular file can be replaced", t)
	}
}

// write replaces a file as a whole: readers see the old or the new one. The mode is
// a new file's; one that is there keeps its own. What a link leads to is written, as by a
// shell's redirection, and is a regular file if it is there.
func write(path string, mode fs.FileMode, r io.Reader) error {
	// The kernel's word on the links: too many, or one that it lets nobody follow.
	fi, err := os.Stat(path)
	there := err == nil
	if there {
		err = replaceable(fi)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p, err := find(path)
	if err != nil {
		return err
	}
	defer p.close()
	was, keep, err := p.mode()
	if err != nil {
		return err
	}
	if keep {
		mode = was
	} else if there && p.linked {
		return errNoName // a link of /proc, for one, whose text is no path
	}
	return p.replace(mode, keep, r)
}

// replace makes a file beside the one that is there, and gives it that one's name.
func (p *place) replace(mode fs.FileMode, keep bool, r io.Reader) error {
	// Not made of the name, which may be as long as one can be.
	var random [8]byte
	rand.Read(random[:])
	tmp := ".sbxrun-" + hex.EncodeToString(random[:])
	err := p.filled(tmp, mode, keep, r)
	if err == nil {
		err = whole(func() error { return unix.Renameat(p.fd(), tmp, p.fd(), p.name) })
	}
	if err != nil {
		unix.Unlinkat(p.fd(), tmp, 0)
	}
	return err
}

// filled makes a file, which has its name once it is whole, where that can be had: not on
// every file system, and not under Landlock before Linux 5.19, to which a file without a name
// is one of another directory.
func (p *place) filled(tmp string, mode fs.FileMode, keep bool, r io.Reader) error {
	f, err := unnamed(p.dir, mode)
	if err == nil {
		if err = fill(f, mode, keep, r); err != nil {
			f.Close()
			return err
		}
		err = named(f, p.dir, tmp)
		if _, serr := f.Seek(0, io.SeekStart); err == nil || serr != nil {
			return cmp.Or(err, f.Close())
		}
		defer f.Close()
		r = f
	}
	fd, err := openAt(p.fd(), tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, uint32(mode))
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), tmp)
	err = fill(to, mode, keep, r)
	return cmp.Or(err, to.Close())
}

func fill(f *os.File, mode fs.FileMode, keep bool, r io.Reader) error {
	_, err := io.Copy(f, r)
	if err == nil && keep {
		err = f.Chmod(mode) // of which the umask took bits
	}
	return err
}
