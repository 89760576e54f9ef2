package cgroups

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Sub makes a group within the group, in one hierarchy and without limits of its
// own. It is for one of several commands that share the group's limits: what
// that command starts can be told from the rest, and ended alone. It is nil if
// the group is in no hierarchy.
//
// Remove of the group removes it too. The name is that of SubParent.
func (g *Group) Sub(name string) (*Group, error) {
	s := g.subSlot()
	if s == nil {
		return nil, nil
	}
	sub := &Group{name: name, memory: g.memory, slots: []slot{{fd: s.fd, ParentSetup: ParentSetup{
		Path: s.Path, Name: s.Name + "/" + name, V2: s.V2,
	}}}}
	if !s.V2 {
		// The files of a version 1 controller are in every group of it.
		sub.slots[0].Controllers = s.Controllers & Pids
	}
	if err := unix.Mkdirat(s.fd, sub.slots[0].Name, 0o755); err != nil {
		return nil, fmt.Errorf("cgroups: mkdir %s/%s: %w", s.Path, sub.slots[0].Name, err)
	}
	sub.slots[0].made = true
	g.subs = append(g.subs, sub)
	return sub, nil
}

// SubParent is where Sub makes a group of that name; false if nowhere.
func (g *Group) SubParent(name string) (Slot, bool) {
	s := g.subSlot()
	if s == nil {
		return Slot{}, false
	}
	return Slot{ParentFD: s.fd, Name: s.Name + "/" + name, V2: s.V2}, true
}

// subSlot is the hierarchy for groups within: version 2, where a group can be
// killed at once, or else that of pids, the cheapest to make a group in.
func (g *Group) subSlot() *slot {
	var best *slot
	for i := range g.slots {
		s := &g.slots[i]
		if best == nil || s.V2 || s.Controllers.Has(Pids) && !best.V2 {
			best = s
		}
	}
	return best
}

// DropSub removes a group that Sub made if no process is in it, and reports
// whether it did.
func (g *Group) DropSub(sub *Group) bool {
	s := &sub.slots[0]
	if err := unix.Unlinkat(s.fd, s.Name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return false
	}
	s.made = false
	g.subs = slices.DeleteFunc(g.subs, func(x *Group) bool { return x == sub })
	return true
}

// Open opens the directory of a group in version 2, for CLONE_INTO_CGROUP; -1 if
// it is in none. The caller closes it.
func (g *Group) Open() (int, error) {
	for i := range g.slots {
		s := &g.slots[i]
		if !s.V2 {
			continue
		}
		fd, err := unix.Openat(s.fd, s.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("cgroups: open %s/%s: %w", s.Path, s.Name, err)
		}
		return fd, nil
	}
	return -1, nil
}

// Empty reports whether no process is in the group.
func (g *Group) Empty() bool {
	for i := range g.slots {
		if pids, err := g.slots[i].processes(); err == nil && len(pids) > 0 {
			return false
		}
	}
	return true
}

// Signal sends a signal to every process that is in the group now. It is no
// promise: what forks meanwhile is missed. Kill is for the end.
func (g *Group) Signal(sig unix.Signal) {
	for i := range g.slots {
		s := &g.slots[i]
		if pids, err := s.processes(); err == nil {
			s.signalListed(pids, sig)
		}
	}
}
