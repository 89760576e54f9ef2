//go:build unix

package files

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sparse"
)

// maxEntries bounds the entries of a tree that is extracted: each costs an inode.
const maxEntries = 1 << 20

// ErrUnsafe says that an entry of a tar stream would lead out of the directory.
var ErrUnsafe = errors.New("leads out of the directory")

// Extract writes a tar stream below a directory of the host, which must exist.
// Files get the caller's ownership and lose set-user-id and the like; a symbolic
// link is made as it is, but nothing is ever written through one, nor removed or
// changed, also if a directory is swapped for one meanwhile; hard links,
// devices and FIFOs are refused. What is there is replaced, but a directory only
// by a directory, and that keeps its mode.
func Extract(dir string, r io.Reader) error { return extract(dir, r, nil) }

// A Check is asked of a path, relative to the directory that is written to, that is about
// to be made or gone through. Parent is the open directory that the path is in.
type Check func(path string, link bool, parent int) error

func extract(dir string, from io.Reader, check Check) error {
	var root int
	var err error
	r := bufio.NewReader(from)
	if _, perr := r.Peek(1); perr == io.EOF && check != nil {
		return nil // whoever was to send failed, and no directory is made for it
	}
	if check == nil {
		root, err = openDir(unix.AT_FDCWD, dir, 0)
	} else {
		root, err = makeReal(dir)
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		if n == maxEntries {
			return fmt.Errorf("more than %d files", maxEntries)
		}
		name, err := local(h.Name)
		if err == nil {
			err = extractOne(root, name, h, t, check)
		}
		if refused := (*refusedError)(nil); errors.As(err, &refused) {
			return refused.error
		}
		if err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

// refusedError is a Check's error, which names the path itself.
type refusedError struct{ error }

// makeReal opens a directory by a whole path, through no symbolic link, and makes what
// is missing of it.
func makeReal(dir string) (int, error) {
	at, err := openReal(dir, true)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	return openDir(at, ".", 0)
}

// openReal opens a directory by a whole path, through no symbolic link, to look up names
// in it.
func openReal(dir string, make bool) (int, error) {
	at, err := openAt(unix.AT_FDCWD, "/", passing|unix.O_DIRECTORY, 0)
	for part := range strings.SplitSeq(path.Clean(dir)[1:], "/") {
		if err != nil || part == "" {
			break
		}
		was := at
		const flags = passing | unix.O_DIRECTORY | unix.O_NOFOLLOW
		if at, err = openAt(was, part, flags, 0); err == unix.ENOENT && make {
			if err = unix.Mkdirat(was, part, 0o755); err == nil || err == unix.EEXIST {
				at, err = openAt(was, part, flags, 0)
			}
		}
		unix.Close(was)
	}
	return at, err
}

func extractOne(root int, name string, h *tar.Header, r io.Reader, check Check) error {
	mode := uint32(h.Mode) & 0o777
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return ErrUnsafe
		}
		return nil
	}
	whole := name
	dir, name, err := parent(root, name, check)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if check != nil {
		if err := check(whole, h.Typeflag == tar.TypeSymlink, dir); err != nil {
			return &refusedError{err}
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return makeDir(dir, name, mode)
	case tar.TypeReg:
		return makeFile(dir, name, mode, r)
	case tar.TypeSymlink:
		if err := replace(dir, name); err != nil {
			return err
		}
		return unix.Symlinkat(h.Linkname, dir, name)
	}
	return fmt.Errorf("an entry of type %q is not taken", h.Typeflag)
}

// makeDir makes a directory, in the place of a link if one is there. A directory stays.
func makeDir(dir int, name string, mode uint32) error {
	fd, err := openDir(dir, name, unix.O_NOFOLLOW)
	if err == nil {
		return unix.Close(fd)
	}
	if isLink(err) {
		err = unix.Unlinkat(dir, name, 0)
	}
	if err != nil && err != unix.ENOENT {
		return err
	}
	return unix.Mkdirat(dir, name, mode|0o700)
}

// makeFile makes a file in the place of what is there.
func makeFile(dir int, name string, mode uint32, r io.Reader) error {
	if err := replace(dir, name); err != nil {
		return err
	}
	fd, err := openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = sparse.Copy(f, r) // what claims to be large takes no room
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// local is a name as a path below a directory.
func local(name string) (string, error) {
	if name == "" || strings.ContainsRune(name, 0) || path.IsAbs(name) {
		return "", ErrUnsafe
	}
	clean := path.Clean(name)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", ErrUnsafe
	}
	return clean, nil
}

// parent opens the directory that a name is in, and makes those on the way. Every
// part is a directory, not a link to one: what an earlier entry planted is not
// followed, nor what somebody swaps in between.
func parent(root int, name string, check Check) (dir int, base string, err error) {
	if dir, err = openDir(root, ".", 0); err != nil {
		return -1, "", err
	}
	for at := 0; ; {
		part, rest, more := strings.Cut(name[at:], "/")
		if !more {
			return dir, part, nil
		}
		if check != nil {
			// A directory needs no entry of its own to be made.
			if err := check(name[:at+len(part)], false, dir); err != nil {
				unix.Close(dir)
				return -1, "", &refusedError{err}
			}
		}
		next, err := openDir(dir, part, unix.O_NOFOLLOW)
		if err == unix.ENOENT {
			if err = unix.Mkdirat(dir, part, 0o755); err == nil || err == unix.EEXIST {
				next, err = openDir(dir, part, unix.O_NOFOLLOW)
			}
		}
		unix.Close(dir)
		if isLink(err) {
			err = ErrUnsafe
		}
		if err != nil {
			return -1, "", err
		}
		dir, at = next, len(name)-len(rest)
	}
}

// replace makes room for a file.
func replace(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM { // of a directory, Linux and POSIX
		if unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) == nil {
			return nil
		}
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}
