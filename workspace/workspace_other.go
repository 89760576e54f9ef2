//go:build !linux

package workspace

import (
	"errors"
	"os"
	"time"
)

// Overlays are Linux's. Elsewhere nothing makes a set, and there is none to show.

// A Base is a workspace at the moment when an overlay is taken of it.
type Base struct {
	Path     string
	Dev, Ino uint64
	Taken    time.Time
}

// Take reports ErrUnsupported.
func Take(string) (*Base, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (*Base) Close() error { return nil }

// Collect reports ErrUnsupported.
func Collect(*Store, Info, *Base, *os.File, uint64, bool) (*Set, error) {
	return nil, errors.ErrUnsupported
}

// Full reports false.
func Full(*os.File) bool { return false }

// A Workspace is the host's side of a set, open.
type Workspace struct {
	*Base
	Obeyed []string
}

// Open reports ErrUnsupported.
func (*Set) Open() (*Workspace, error) { return nil, errors.ErrUnsupported }

// Check reports ErrUnsupported.
func (*Set) Check(*Workspace) ([]*Status, error) { return nil, errors.ErrUnsupported }

// Patch reports ErrUnsupported.
func (*Set) Patch(*Workspace, *Status) (string, error) { return "", errors.ErrUnsupported }

// Apply reports ErrUnsupported.
func (*Set) Apply(*Workspace, Options) (*Report, error) { return nil, errors.ErrUnsupported }
