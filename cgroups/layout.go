package cgroups

import (
	"path"
	"strings"
)

// A Layout describes a host's cgroup hierarchies as one process sees them.
type Layout struct {
	Hierarchies []Hierarchy
	User        uint32 // the caller's effective id

	// Scope is the systemd unit that Acquire had the caller put into, and Left
	// what held the caller before and holds it no longer. NoScope is why it did
	// not, where only that would have helped.
	Scope   string
	Left    Limits
	NoScope Cause
}

// A Hierarchy is one tree of groups: the unified one (version 2), or one of
// version 1 with the controllers that are mounted together.
type Hierarchy struct {
	V2          bool
	Controllers Controllers // version 1: those of this tree. Version 2: see Dir

	// Dirs lead from the top of the mount down to the caller's own group. Of
	// version 2, where the search goes upwards, those above the first that can
	// be used are left out.
	Dirs []Dir
}

// below are the limits of all directories below one of them.
func (h *Hierarchy) below(at int) Limits {
	var l Limits
	for i := at + 1; i < len(h.Dirs); i++ {
		l = l.within(h.Dirs[i].Limits)
	}
	return l
}

// Denial is why a directory cannot be written.
type Denial uint8

// The zero Denial denies nothing.
const (
	Granted Denial = iota
	DeniedOwner
	DeniedReadOnly
	DeniedOther
)

// Occupants says whose processes a group itself holds, those of its children
// not counted.
type Occupants uint8

// The zero value claims nothing and is taken as Others.
const (
	Unknown Occupants = iota
	Nobody
	OnlyCaller
	Others
)

// A Dir is a group and what the caller may do in it.
type Dir struct {
	Path string

	// Denied says why the caller cannot make groups here (and on version 2,
	// move processes between groups below).
	Denied Denial

	// Limits are what the group holds those in it to, swap aside. They are
	// read where a new group may go elsewhere than below.
	Limits Limits

	// ParentUsable reports that Path/sbxrun exists and can be written;
	// ParentEnabled are the controllers that it hands down (version 2).
	ParentUsable  bool
	ParentEnabled Controllers

	// The rest is version 2 only, and read only where ParentEnabled does not
	// hold all that limits.
	Top       bool        // root of the whole hierarchy: may hold processes and hand down controllers
	Available Controllers // cgroup.controllers
	Enabled   Controllers // cgroup.subtree_control
	Occupants Occupants
	Delegated bool // nobody puts further processes here: it is a scope, or systemd left it to its unit
}

// A Membership is one line of /proc/PID/cgroup; see cgroups(7).
type Membership struct {
	V2          bool
	Controllers Controllers
	Path        string
}

// ParseMemberships reads /proc/PID/cgroup: "4:memory:/a", "0::/b".
// Hierarchies without a controller that this package uses are left out.
func ParseMemberships(s string) []Membership {
	var out []Membership
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		id, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		list, p, ok := strings.Cut(rest, ":")
		if !ok || !strings.HasPrefix(p, "/") {
			continue
		}
		// The kernel appends this where the group was removed meanwhile.
		p = strings.TrimSuffix(p, " (deleted)")
		m := Membership{V2: id == "0" && list == "", Path: p}
		if !m.V2 {
			if m.Controllers = parseControllers(list, ","); m.Controllers == 0 {
				continue
			}
		}
		out = append(out, m)
	}
	return out
}

// A Mount is one mount of a cgroup hierarchy.
type Mount struct {
	V2          bool
	Controllers Controllers
	Point       string
	Root        string // the group at the mount's top, as the reader's cgroup namespace names it
}

// ParseMounts reads the cgroup mounts out of /proc/PID/mountinfo; see
// proc_pid_mountinfo(5):
//
//	35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
func ParseMounts(s string) []Mount {
	var out []Mount
	for line := range strings.Lines(s) {
		// Nearly every line is of another file system: find out first.
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - cgroup")
		if !ok {
			continue
		}
		m := Mount{}
		if m.V2 = strings.HasPrefix(after, "2 "); m.V2 {
			after = after[1:]
		}
		if !strings.HasPrefix(after, " ") {
			continue
		}
		fields := strings.Fields(before)
		if len(fields) < 6 {
			continue
		}
		m.Root, m.Point = unescape(fields[3]), unescape(fields[4])
		if !m.V2 {
			// Source and options; a source may be empty.
			super := strings.Fields(after)
			if len(super) == 0 {
				continue
			}
			if m.Controllers = parseControllers(super[len(super)-1], ","); m.Controllers == 0 {
				continue
			}
		}
		out = append(out, m)
	}
	return out
}

// unescape undoes the octal escapes of space, tab, newline and backslash.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if d0, d1, d2 := s[i+1]-'0', s[i+2]-'0', s[i+3]-'0'; d0 < 4 && d1 < 8 && d2 < 8 {
				b = append(b, d0<<6|d1<<3|d2)
				i += 3
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

// NewLayout puts memberships and mounts together: for each hierarchy that is
// mounted, the directories from the mount's top to the caller's own group. What
// the caller may do in them is not filled in. Where a hierarchy is mounted more
// than once, the mount that shows the most wins.
func NewLayout(members []Membership, mounts []Mount) Layout {
	var l Layout
	for _, m := range members {
		var best *Mount
		for i := range mounts {
			mt := &mounts[i]
			if mt.V2 != m.V2 || !m.V2 && mt.Controllers&m.Controllers == 0 {
				continue
			}
			if best == nil || len(mt.Root) < len(best.Root) {
				best = mt
			}
		}
		if best == nil {
			continue
		}
		h := Hierarchy{V2: m.V2, Controllers: m.Controllers}
		for _, p := range dirsTo(best.Point, best.Root, m.Path) {
			h.Dirs = append(h.Dirs, Dir{Path: p})
		}
		l.Hierarchies = append(l.Hierarchies, h)
	}
	return l
}

// dirsTo lists the directories from a mount's top to the caller's group. If the
// mount does not show that group (it is outside the namespace's view, "/../x"),
// only the top is listed.
func dirsTo(point, root, own string) []string {
	dirs := []string{point}
	rel, ok := strings.CutPrefix(own, strings.TrimSuffix(root, "/"))
	if !ok || rel != "" && rel[0] != '/' || strings.HasPrefix(rel, "/..") {
		return dirs
	}
	dir := point
	for _, name := range strings.Split(strings.Trim(rel, "/"), "/") {
		if name == "" {
			continue
		}
		dir = path.Join(dir, name)
		dirs = append(dirs, dir)
	}
	return dirs
}
