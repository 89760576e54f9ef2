package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// minAge keeps Prune from a group that was made for a command that is just
// being started: it has no processes yet.
const minAge = time.Minute

// Prune removes groups of runs and sessions that were never cleaned up, wherever
// in the hierarchies they are: directories with a group's name, made longer ago
// than olderThan (a minute at least), without processes. Those of others, which
// cannot be removed, are passed over. It returns the paths of those that it
// removed.
func Prune(olderThan time.Duration) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	limit := time.Now().Add(-max(olderThan, minAge))
	var removed []string
	var errs []error
	for _, m := range ParseMounts(string(text)) {
		filepath.WalkDir(m.Point, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // not to be read, or gone meanwhile
			}
			made, ok := parseName(d.Name())
			if !ok || filepath.Base(filepath.Dir(path)) != Parent {
				return nil
			}
			if made.Before(limit) {
				if err := prune(path); err == nil {
					removed = append(removed, path)
				} else if err != unix.EBUSY && err != unix.ENOENT && err != unix.EACCES && err != unix.EPERM {
					errs = append(errs, fmt.Errorf("cgroups: rmdir %s: %w", path, err))
				}
			}
			return fs.SkipDir
		})
	}
	return removed, errors.Join(errs...)
}

// prune removes a group and those of a session's commands within it. EBUSY: it
// has processes.
func prune(path string) error {
	err := unix.Rmdir(path)
	if err != unix.EBUSY {
		return err
	}
	below, _ := filepath.Glob(path + "/c[0-9]*")
	for _, dir := range below {
		unix.Rmdir(dir)
	}
	return unix.Rmdir(path)
}
