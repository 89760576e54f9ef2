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

// tries bounds how often a directory is made that somebody takes for left behind
// before it is locked.
const tries = 100

// Usual is the first name of a directory of a user's, where every user may make one.
// TMPDIR has no say in it: projects and agents set that to a place where commands
// write. It is on a disk, for some of what is kept there is large.
func Usual(uid int) string {
	dir := "/var/tmp"
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		dir = "/tmp"
	}
	return filepath.Join(dir, "sbxrun-"+strconv.Itoa(uid))
}

// Taken reports whether a name is there and not a directory of the caller's alone.
func Taken(dir string) bool {
	fi, err := os.Lstat(dir)
	return err == nil && !isOwn(fi)
}

// Parent is the directory in which a user's run directories are.
func Parent(uid int) string {
	parent := Usual(uid)
	for i := range names {
		dir := beside(parent, i)
		if !Taken(dir) {
			return dir
		}
	}
	return parent
}

// Make makes a directory below parent, which is made too and belongs to the
// caller alone. Its name begins with kind. It first removes what killed runs of that
// kind left there; undo, which may be nil, is called with each such directory before.
func Make(parent, kind string, undo func(dir string)) (*Dir, error) {
	parent, err := own(parent)
	if err != nil {
		return nil, err
	}
	Prune(parent, kind, undo)
	for range tries {
		path, err := os.MkdirTemp(parent, kind+"-")
		if err != nil {
			return nil, err
		}
		lock, err := hold(path)
		if err == nil {
			return &Dir{Path: path, lock: lock}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && err != syscall.EWOULDBLOCK {
			os.RemoveAll(path)
			return nil, err
		}
	}
	return nil, fmt.Errorf("what is made in %s is removed at once", parent)
}

// hold locks a directory. The error is EWOULDBLOCK if somebody holds it, and
// fs.ErrNotExist if it was removed by who had it locked.
func hold(path string) (*os.File, error) {
	lock, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		var now, held os.FileInfo
		if held, err = lock.Stat(); err == nil {
			now, err = os.Lstat(path)
		}
		if err == nil && !os.SameFile(held, now) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// patience bounds how long Lock waits. Who has the lock makes a system call or two; who
// was stopped then, or waits for a file system, has it for longer.
var patience = 5 * time.Second

// Lock waits until no other run of this user has this lock, and returns what gives it up.
// It is on the directory of runs, which no command sees.
func Lock() (unlock func(), err error) { return lockDir(Parent(os.Geteuid())) }

func lockDir(parent string) (func(), error) {
	end := time.Now().Add(patience)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		dir, err := own(parent)
		if err != nil {
			return nil, err
		}
		lock, err := hold(dir)
		switch {
		case err == nil:
			return func() {
				// A process that was started meanwhile may have a copy.
				syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
				lock.Close()
			}, nil
		case err != syscall.EWOULDBLOCK && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		case time.Now().After(end):
			return nil, fmt.Errorf("%s: another run keeps it locked", dir)
		}
		time.Sleep(pause)
	}
}

// own makes a directory that is the caller's alone, or another beside it where
// somebody else has that name: who has this id in another user namespace, or who
// would keep the caller from running anything.
func own(parent string) (string, error) {
	for i := range names {
		dir := beside(parent, i)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		if fi, err := os.Lstat(dir); err == nil && isOwn(fi) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is not a directory of this user's alone, and neither are the %d names beside it",
		parent, names-1)
}

// beside is the nth name that is tried for a directory.
func beside(dir string, n int) string {
	if n == 0 {
		return dir
	}
	return dir + "-" + strconv.Itoa(n)
}

// isOwn reports whether a directory is the caller's alone.
func isOwn(fi os.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.IsDir() && int(st.Uid) == os.Geteuid() && fi.Mode().Perm()&0o077 == 0
}

// names is how many names are tried.
const names = 10

// Remove removes the directory and all in it.
func (d *Dir) Remove() error {
	err := removeAll(d.Path)
	d.lock.Close()
	return err
}

// Prune removes the directories of a kind below parent whose makers are gone. It
// returns how many it removed.
func Prune(parent, kind string, undo func(dir string)) int {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return 0
	}
	removed := 0
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		if !e.IsDir() || !strings.HasPrefix(e.Name(), kind+"-") {
			continue
		}
		lock, err := hold(path)
		if err != nil {
			continue
		}
		if undo != nil {
			undo(path)
		}
		if removeAll(path) == nil {
			removed++
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
