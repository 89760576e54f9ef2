package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Prune removes the groups of runs and sessions that nobody holds, wherever in the
// hierarchies they are, and kills what is left in them: whoever made a group has its
// directory locked for as long as it lives. Those of others, which cannot be opened,
// are passed over. It returns the paths of those that it removed.
func Prune() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	var removed []string
	var errs []error
	for _, m := range ParseMounts(string(text)) {
		filepath.WalkDir(m.Point, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // not to be read, or gone meanwhile
			}
			if filepath.Base(filepath.Dir(path)) != Parent {
				return nil
			}
			if made, _, ok := parseName(d.Name()); ok {
				gone, err := prune(unix.AT_FDCWD, path, m.V2, made)
				if gone {
					removed = append(removed, path)
				}
				if err != nil {
					errs = append(errs, err)
				}
				return fs.SkipDir
			}
			return nil
		})
	}
	return removed, errors.Join(errs...)
}

// unheldAge is how old a group must be that was made by a version of sbxrun which
// does not lock them, and that is empty.
const unheldAge = 24 * time.Hour

// prune removes a group that nobody holds, and those within it.
func prune(parent int, name string, v2 bool, made time.Time) (gone bool, err error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, nil // somebody else's, or gone meanwhile
	}
	defer unix.Close(fd)
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, nil
	}
	if unix.Faccessat(fd, "cgroup.procs", unix.F_OK, 0) != nil {
		return false, nil // removed since it was opened: the name may be another's
	}
	if st.Mode&0o777 != heldMode {
		if time.Since(made) < unheldAge {
			return false, nil
		}
		for _, sub := range namesIn(fd) {
			unix.Unlinkat(fd, sub, unix.AT_REMOVEDIR) // no directory, or not empty
		}
		return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) == nil, nil
	}
	if err := removeTree(parent, name, v2); err != nil {
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
			err = nil
		}
		return false, err
	}
	return true, nil
}

// removeTree removes a group and those within it, and kills what is in them.
func removeTree(parent int, name string, v2 bool) error {
	if fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		dir := os.NewFile(uintptr(fd), name)
		list, _ := dir.ReadDir(-1)
		for _, e := range list {
			if e.IsDir() {
				removeTree(fd, e.Name(), v2) // if it stays, so does what it is in
			}
		}
		dir.Close()
	}
	s := slot{fd: parent, ParentSetup: ParentSetup{Name: name, V2: v2}}
	return s.remove()
}

// namesIn lists a directory.
func namesIn(dir int) []string {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var names []string
	var buf [4096]byte
	for {
		n, err := unix.ReadDirent(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return names
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// maxSweep is how many groups one run looks at whose makers seem to live.
const maxSweep = 8

// A process sweeps once in so long: one that keeps sandboxes closes many, and prunes.
const sweepInterval = time.Second

var swept atomic.Int64 // when it did, ns since 1970

// sweepDue reports whether a process is to sweep now.
func sweepDue() bool {
	last, now := swept.Load(), time.Now().UnixNano()
	return (now < last || now-last >= int64(sweepInterval)) && swept.CompareAndSwap(last, now)
}

// sweep removes groups beside one that are nobody's: those of runs that were killed
// with all that would have removed them. The maker's process in the name says which to
// look at, and the lock decides: another process may have the number by now, or the
// maker is in another pid namespace. A host with many sessions has many groups that
// live, and to look at one costs ten times as much as to ask for a process.
func sweep(slots []slot) {
	var beside map[string][]*slot
	for i := range slots {
		s := &slots[i]
		var st unix.Stat_t
		if s.lock <= 0 || unix.Fstatat(s.fd, "", &st, unix.AT_EMPTY_PATH) != nil || st.Nlink <= 2 {
			continue // there is none
		}
		for _, name := range namesIn(s.fd) {
			if len(name) > 2 && name[:2] == "r-" && name != s.Name {
				if beside == nil {
					beside = map[string][]*slot{}
				}
				beside[name] = append(beside[name], s)
			}
		}
	}
	looks := maxSweep
	for name, in := range beside { // in another order each time
		made, pid, ok := parseName(name)
		if !ok || pid == os.Getpid() {
			continue
		}
		lives := unix.Kill(pid, 0) != unix.ESRCH
		if lives {
			if looks--; looks < 0 {
				continue
			}
		}
		for _, s := range in {
			if gone, _ := prune(s.fd, name, s.V2, made); lives && !gone {
				break // somebody holds it, in the other hierarchies too
			}
		}
	}
}
