//go:build !linux

package cgroups

import (
	"errors"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A Group cannot be had on this system.
type Group struct{}

// Read reports that this system has no control groups.
func Read() (Layout, error) { return Layout{}, errors.ErrUnsupported }

// Acquire reports that this system has no control groups.
func Acquire(*specs.LinuxResources) (Layout, error) { return Layout{}, errors.ErrUnsupported }

// Prepare reports that this system has no control groups.
func Prepare(Layout, *specs.LinuxResources) (*Group, error) { return nil, errors.ErrUnsupported }

// Prune reports that this system has no control groups.
func Prune() ([]string, error) { return nil, errors.ErrUnsupported }

// Name is empty.
func (*Group) Name() string { return "" }

// Controllers is empty.
func (*Group) Controllers() Controllers { return 0 }

// Parents is empty.
func (*Group) Parents() []Slot { return nil }

// Create reports that this system has no control groups.
func (*Group) Create() error { return errors.ErrUnsupported }

// Stats reports that this system has no control groups.
func (*Group) Stats() (Stats, error) { return Stats{}, errors.ErrUnsupported }

// Kill reports that this system has no control groups.
func (*Group) Kill() error { return errors.ErrUnsupported }

// Remove reports that this system has no control groups.
func (*Group) Remove() error { return errors.ErrUnsupported }

// Close does nothing.
func (*Group) Close() {}
