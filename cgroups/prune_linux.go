package cgroups

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// minAge keeps Prune from a group that was made for a command that is just
// being started: it has no processes yet.
const minAge = time.Minute

// Prune removes groups of runs that were never cleaned up: directories with a
// group's name, made longer ago than olderThan (a minute at least), without
// processes and without groups below them. It returns the paths of those that
// it removed.
func Prune(l Layout, olderThan time.Duration) ([]string, error) {
	limit := time.Now().Add(-max(olderThan, minAge))
	var removed []string
	var errs []error
	for i := range l.Hierarchies {
		for j := range l.Hierarchies[i].Dirs {
			parent := l.Hierarchies[i].Dirs[j].Path + "/" + Parent
			entries, err := os.ReadDir(parent)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("cgroups: %w", err))
				continue
			}
			for _, e := range entries {
				made, ok := parseName(e.Name())
				if !ok || made.After(limit) {
					continue
				}
				path := parent + "/" + e.Name()
				// EBUSY: it has processes, or groups below it.
				switch err := unix.Rmdir(path); err {
				case nil:
					removed = append(removed, path)
				case unix.EBUSY, unix.ENOENT:
				default:
					errs = append(errs, fmt.Errorf("cgroups: rmdir %s: %w", path, err))
				}
			}
		}
	}
	return removed, errors.Join(errs...)
}
