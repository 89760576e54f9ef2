package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// maxEntries bounds the entries of a tree that is extracted: each costs an inode.
const maxEntries = 1 << 20

// ErrUnsafe says that an entry of a tar stream would lead out of the directory.
var ErrUnsafe = errors.New("leads out of the directory")

// Extract writes a tar stream below a directory of the host, which must exist.
// Files get the caller's ownership and lose set-user-id and the like; a symbolic
// link is made as it is, but nothing is ever written through one; hard links,
// devices and FIFOs are refused. What is there is replaced, but a directory only
// by a directory.
func Extract(dir string, r io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
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
		if err := extractOne(root, h, t); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

func extractOne(root *os.Root, h *tar.Header, r io.Reader) error {
	name, err := local(h.Name)
	if err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode).Perm()
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return ErrUnsafe
		}
		return nil
	}
	// Every part of the way is a directory, not a link to one: what an earlier
	// entry planted is not followed.
	if err := parents(root, name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		fi, err := root.Lstat(name)
		if err == nil && fi.IsDir() {
			return root.Chmod(name, mode|0o700)
		}
		if err == nil {
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		return root.Mkdir(name, mode|0o700)
	case tar.TypeReg:
		if err := replace(root, name); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		return err
	case tar.TypeSymlink:
		if err := replace(root, name); err != nil {
			return err
		}
		return root.Symlink(h.Linkname, name)
	}
	return fmt.Errorf("an entry of type %q is not taken", h.Typeflag)
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

// parents makes the directories above a name.
func parents(root *os.Root, name string) error {
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		dir := name[:i]
		fi, err := root.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := root.Mkdir(dir, 0o755); err != nil {
				return err
			}
		case err != nil:
			return err
		case !fi.IsDir():
			return ErrUnsafe
		}
	}
	return nil
}

// replace makes room for a file.
func replace(root *os.Root, name string) error {
	err := root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
