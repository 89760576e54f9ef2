package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func (c *Change) do() error   { return replace(c.Path, c.Before, c.After, c.Mode) }
func (c *Change) undo() error { return replace(c.Path, c.After, c.Before, c.Mode) }

// replace has a file that holds this hold that, or not be there.
func replace(path string, now, data []byte, mode fs.FileMode) error {
	if data != nil {
		return write(path, now, data, mode)
	}
	if err := unchanged(path, now); err != nil {
		return err
	}
	return errors.Join(gone(temporary(path)), gone(path))
}

// gone removes a file, if it is there.
func gone(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// temporary is where what is to be in a file's place is written: one name, so that
// the next takes away what a killed one left. The lock keeps this user's others out.
func temporary(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".sbxrun-"+strconv.Itoa(os.Geteuid()))
}

// unchanged says if a file does not hold this any more: an agent writes its settings
// when it likes. It is asked last before a change, because nothing asks and replaces
// in one step.
func unchanged(path string, was []byte) error {
	now, err := read(path)
	if err == nil && !same(now, was) {
		err = &EditError{path, "was changed meanwhile", "try again"}
	}
	return err
}

// write replaces a file as a whole, or not at all. Where the name is a symbolic
// link, what it leads to is replaced. Mode, owner, group and attributes of a file that
// is there stay, access control lists among them.
func write(path string, now, data []byte, mode fs.FileMode) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	old, err := os.Open(path)
	if err == nil {
		defer old.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := temporary(path)
	if err := gone(temp); err != nil {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	_, err = f.Write(data)
	if old != nil {
		err = errors.Join(err, likewise(f, old))
	} else {
		err = errors.Join(err, f.Chmod(mode))
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := unchanged(path, now); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// likewise gives a new file the owner, group, mode and attributes of another.
func likewise(f, old *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	want, err := old.Stat()
	if err != nil {
		return err
	}
	is, ok := fi.Sys().(*syscall.Stat_t)
	st, ok2 := want.Sys().(*syscall.Stat_t)
	if ok && ok2 && (is.Uid != st.Uid || is.Gid != st.Gid) {
		if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("owner and group cannot stay as they are: %w", err)
		}
	}
	if err := f.Chmod(want.Mode().Perm()); err != nil {
		return err
	}
	has, wants := attributes(f), attributes(old)
	for name := range has {
		if _, ok := wants[name]; !ok {
			unix.Fremovexattr(int(f.Fd()), name) // by the directory's default
		}
	}
	for name, v := range wants {
		// Labels are the system's own affair.
		if err := unix.Fsetxattr(int(f.Fd()), name, v, 0); err != nil && !strings.HasPrefix(name, "security.") &&
			!strings.HasPrefix(name, "com.apple.") {
			return fmt.Errorf("attribute %s cannot stay: %w", name, err)
		}
	}
	return nil
}

// attributes are the extended ones of a file; none where the file system has none.
func attributes(f *os.File) map[string][]byte {
	all := map[string][]byte{}
	list := make([]byte, 64<<10) // XATTR_LIST_MAX and XATTR_SIZE_MAX; see xattr(7)
	n, err := unix.Flistxattr(int(f.Fd()), list)
	if err != nil {
		return all
	}
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		value := make([]byte, 64<<10)
		if name == "" {
			continue
		}
		if n, err := unix.Fgetxattr(int(f.Fd()), name, value); err == nil {
			all[name] = value[:n]
		}
	}
	return all
}
