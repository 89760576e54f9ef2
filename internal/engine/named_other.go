//go:build !linux

package engine

import (
	"os"

	"golang.org/x/sys/unix"
)

// openUnlinked opens a path in which no part is a symbolic link. O_NOFOLLOW_ANY of
// open(2) is Darwin's own.
func openUnlinked(name string, flags int, mode uint32) (int, error) {
	return unix.Open(name, flags|unix.O_NOFOLLOW_ANY, mode)
}

// OpenRoot opens a directory.
func OpenRoot(dir string) (*os.Root, error) { return os.OpenRoot(dir) }
