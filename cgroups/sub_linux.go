package cgroups

import (
	"errors"
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
func (g *Group) Sub(name string) (*Group, error) { return g.SubWithin(name, Limits{}) }

// SubWithin is Sub with limits that hold within the group's, which hold too. Each
// hierarchy of which one is limited gets a directory, so on version 1 the group
// may be in several: in those that are not the one of SubParent it has the same
// name.
//
// Preconditions: the group has the controllers of the limits, and on version 2
// only groups within it have processes.
func (g *Group) SubWithin(name string, limits Limits) (*Group, error) {
	base := g.subSlot()
	if base == nil {
		return nil, nil
	}
	want := limits.Controllers()
	sub := &Group{name: name, memory: g.memory}
	if limits.Memory != 0 {
		sub.memory = limits.Memory
	}
	for i := range g.slots {
		s := &g.slots[i]
		c := s.Controllers & want
		if c == 0 && s != base {
			continue
		}
		if c != 0 {
			if err := s.handDown(); err != nil {
				return nil, errors.Join(err, sub.Remove())
			}
		}
		p := ParentSetup{Path: s.Path, Name: s.Name + "/" + name, V2: s.V2}
		if p.Controllers = s.handed; !s.V2 {
			// The files of a version 1 controller are in every group of it.
			p.Controllers = s.Controllers & (c | Pids)
		}
		switch {
		case c == 0:
		case s.V2:
			p.Writes = writesV2(limits, c)
		default:
			p.Writes = writesV1(limits, c)
		}
		sub.slots = append(sub.slots, slot{fd: s.fd, ParentSetup: p})
		if err := sub.slots[len(sub.slots)-1].create(); err != nil {
			return nil, errors.Join(err, sub.Remove())
		}
	}
	g.subs = append(g.subs, sub)
	return sub, nil
}

// handDown gives the groups within the group its controllers.
func (s *slot) handDown() error {
	if s.handed != 0 {
		return nil
	}
	file, value := "cgroup.subtree_control", (s.Controllers & Limiting).join("+")
	if !s.V2 {
		// Before Linux 5.11 a group's memory is not its parent's, unless this
		// is said before it has children; see cgroup-v1/memory.rst. Other
		// controllers of version 1 have no such mode.
		file, value = "memory.use_hierarchy", "1"
	}
	if s.V2 || s.Controllers.Has(Memory) {
		if err := writeAt(s.fd, s.Name+"/"+file, value); err != nil && (s.V2 || err != unix.ENOENT) {
			return fmt.Errorf("cgroups: write %s to %s/%s/%s: %w", value, s.Path, s.Name, file, err)
		}
	}
	s.handed = s.Controllers & Limiting
	return nil
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
	for i := range sub.slots {
		s := &sub.slots[i]
		if !s.made {
			continue
		}
		if err := unix.Unlinkat(s.fd, s.Name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
			return false
		}
		s.made = false
	}
	g.subs = slices.DeleteFunc(g.subs, func(x *Group) bool { return x == sub })
	return true
}

// Apart are the controllers that count for a group only what happens in itself,
// and not what happens in groups within: those of version 1.
func (g *Group) Apart() Controllers {
	var c Controllers
	for i := range g.slots {
		if s := &g.slots[i]; !s.V2 {
			c |= s.Controllers
		}
	}
	return c
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

// Empty reports whether no process is in the group. While the machine has no
// descriptors or memory to look for them it is not known to be.
func (g *Group) Empty() bool {
	for i := range g.slots {
		switch pids, err := g.slots[i].processes(); {
		case err == nil && len(pids) > 0:
			return false
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
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
