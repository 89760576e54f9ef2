// Package rundir makes a private directory for one run: a place for what a
// driver must put into files, and for a command's private storage where no
// namespace can hold it. The directory is locked as long as its maker lives, so
// that the next run finds and removes what one that was killed left behind.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Dir is the directory of a run.
type Dir struct {
	Path string
	lock *os.File
}

// prefix is that of every run's directory, and minAge what keeps Prune from one
// that was made just now and is not locked yet.
const (
	prefix = "r-"
	minAge = time.Minute
)

// Parent is the directory in which a user's run directories are.
func Parent(uid int) string {
	return filepath.Join(os.TempDir(), "sbxrun-"+strconv.Itoa(uid))
}

// Make makes a directory below parent, which is made too and belongs to the
// caller alone. It first removes what killed runs left there; undo, which may be
// nil, is called with each such directory before.
func Make(parent string, undo func(dir string)) (*Dir, error) {
	parent, err := own(parent)
	if err != nil {
		return nil, err
	}
	Prune(parent, minAge, undo)
	path, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, err
	}
	lock, err := os.Open(path)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, err
	}
	return &Dir{Path: path, lock: lock}, nil
}

// own makes a directory that is the caller's alone, or another beside it where
// somebody else has that name: who has this id in another user namespace, or who
// would keep the caller from running anything.
func own(parent string) (string, error) {
	for i := range names {
		dir := parent
		if i > 0 {
			dir += "-" + strconv.Itoa(i)
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		fi, err := os.Lstat(dir)
		if err != nil {
			return "", err
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && fi.IsDir() && int(st.Uid) == os.Geteuid() && fi.Mode().Perm()&0o077 == 0 {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is not a directory of this user's alone, and neither are the %d names beside it", parent, names-1)
}

// names is how many names are tried.
const names = 10

// Remove removes the directory and all in it.
func (d *Dir) Remove() error {
	err := removeAll(d.Path)
	d.lock.Close()
	return err
}

// Prune removes the directories below parent whose makers are gone, if they are
// older than age. It returns how many it removed.
func Prune(parent string, age time.Duration, undo func(dir string)) int {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return 0
	}
	removed := 0
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		fi, err := e.Info()
		if err != nil || !fi.IsDir() || !strings.HasPrefix(e.Name(), prefix) || time.Since(fi.ModTime()) < age {
			continue
		}
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if undo != nil {
				undo(path)
			}
			if removeAll(path) == nil {
				removed++
			}
		}
		lock.Close()
	}
	return removed
}

// removeAll is os.RemoveAll for trees in which a command may have taken its
// owner's rights away.
func removeAll(path string) error {
	if err := os.RemoveAll(path); err == nil {
		return nil
	}
	filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(p, 0o700)
			if err != nil {
				// It could not be listed before.
				sub, e := os.ReadDir(p)
				for _, s := range sub {
					if s.IsDir() && e == nil {
						removeAll(filepath.Join(p, s.Name()))
					}
				}
			}
		}
		return nil
	})
	return os.RemoveAll(path)
}
