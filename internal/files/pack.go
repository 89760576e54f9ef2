//go:build unix

package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// maxPath bounds how deep a tree that is packed goes, in bytes: no program could
// name what is deeper.
const maxPath = 4096

// Pack writes a file, or a directory and all below it, as a tar stream. Names are
// relative, the first is the base name of the path. Links stay links, also what
// becomes one while the tree is read: nothing outside of it is. Sockets, FIFOs and
// devices are left out. It is an error if the files together claim to hold more than
// twice what their file system could, as those with holes and hard links can.
func Pack(w io.Writer, path string) error { return pack(w, unix.AT_FDCWD, path, path) }

// packReal is Pack of a whole path, which leads through no symbolic link.
func packReal(w io.Writer, path string) error {
	dir, err := openReal(filepath.Dir(path), false)
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(dir)
	at := filepath.Base(path)
	if at == "/" {
		at = "."
	}
	return pack(w, dir, at, path)
}

func pack(w io.Writer, dir int, at, path string) error {
	name := filepath.Base(filepath.Clean(path))
	if name == "/" || name == ".." {
		name = "."
	}
	p := &packer{t: tar.NewWriter(w)}
	isDir, err := p.one(dir, at, name)
	if err == nil && isDir {
		var root int
		if root, err = openDir(dir, at, unix.O_NOFOLLOW); err == nil {
			err = p.in(root, ".", name)
			unix.Close(root)
		}
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		err = &fs.PathError{Op: "read", Path: path, Err: err}
	}
	if err != nil {
		return err
	}
	return p.t.Close()
}

type packer struct {
	t           *tar.Writer
	claim, most uint64 // bytes of all files, and what they may be
}

// room is an error if one more file makes too much.
func (p *packer) room(fd int, size int64, name string) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	p.claim += uint64(size)
	p.most = max(p.most, 2*uint64(st.Blocks)*uint64(st.Bsize))
	if st.Blocks > 0 && p.claim > p.most { // without a number of blocks it is the kernel's, or a server's
		return fmt.Errorf("with %s the files claim to hold more than twice what their file system could", quote.Inside(name))
	}
	return nil
}

// in packs what is in a directory below an open one. It is opened by its way
// from there, one part after the other: depth takes no descriptors.
func (p *packer) in(root int, rel, name string) error {
	if len(rel) > maxPath {
		return unix.ENAMETOOLONG
	}
	dir, err := openBelow(root, rel)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dir), rel)
	defer f.Close()
	list, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(list)
	var subs []string
	for _, n := range list {
		isDir, err := p.one(dir, n, filepath.Join(name, n))
		if err != nil && !isGone(err) {
			return err
		}
		if err == nil && isDir {
			subs = append(subs, n)
		}
	}
	f.Close()
	for _, n := range subs {
		if err := p.in(root, filepath.Join(rel, n), filepath.Join(name, n)); err != nil && !isGone(err) {
			return err
		}
	}
	return nil
}

// isGone reports whether a part of a tree is not there any more, is something else
// by now, or not to be read: the rest counts.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || isLink(err)
}

// one packs what is at a name in an open directory, of a directory no more than
// that it is one.
func (p *packer) one(dir int, at, name string) (isDir bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, at, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	h := &tar.Header{Name: filepath.ToSlash(name)}
	var f *os.File
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, err := openAt(dir, at, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return false, err
		}
		f = os.NewFile(uintptr(fd), at)
		defer f.Close()
		if err := unix.Fstat(fd, &st); err != nil {
			return false, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return false, unix.ENOENT // it is something else by now
		}
		if err := p.room(fd, st.Size, name); err != nil {
			return false, err
		}
		h.Typeflag, h.Size = tar.TypeReg, st.Size
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, at, buf)
		if err == unix.EINVAL {
			err = unix.ENOENT
		}
		if err != nil {
			return false, err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(buf[:n])
	case unix.S_IFDIR:
		isDir = true
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	default:
		return false, nil
	}
	// Whose it was means nothing on the other side.
	h.Mode, h.ModTime = int64(st.Mode&0o7777), time.Unix(st.Mtim.Unix())
	if err := p.t.WriteHeader(h); err != nil {
		return false, err
	}
	if f == nil {
		return isDir, nil
	}
	// A file that grows or shrinks meanwhile keeps the length that was said.
	n, err := io.Copy(p.t, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		_, err = io.CopyN(p.t, zeros{}, h.Size-n)
	}
	return false, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// openBelow opens a directory below an open one, through no symbolic link.
func openBelow(root int, rel string) (int, error) {
	dir, err := openDir(root, ".", 0)
	for part := range strings.SplitSeq(rel, "/") {
		if err != nil {
			break
		}
		was := dir
		dir, err = openDir(was, part, unix.O_NOFOLLOW)
		unix.Close(was)
	}
	return dir, err
}

// openDir opens a directory, and nothing else: no FIFO, which would wait.
func openDir(dir int, name string, flags int) (int, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|flags, 0)
}

func openAt(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// isLink reports whether something is not the directory or file that was to be
// opened, but a link, for one.
func isLink(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}
