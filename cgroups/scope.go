package cgroups

import "strings"

// A Cause says why something cannot be had, and what to do about it.
type Cause struct {
	Cause string
	Fix   string // completes "hint: …"
}

// needsScope reports whether a group of the given controllers can be had only
// in another place than where the caller is: they are on version 2, and nothing
// there is the caller's to manage.
func (l Layout) needsScope(want Controllers) bool {
	for i := range l.Hierarchies {
		if h := &l.Hierarchies[i]; !h.V2 {
			want &^= h.Controllers
		}
	}
	h := l.unified()
	if want == 0 || h == nil {
		return false
	}
	for i := range h.Dirs {
		// Read-only: then another group would be as well.
		if d := h.Dirs[i].Denied; d == Granted || d == DeniedReadOnly {
			return false
		}
	}
	return true
}

// mayLeave says why the caller should stay in its group, and nothing if it may
// go to the user's manager: from a login session, which is where that expects
// it from, and from the top, where nothing holds it.
//
// A process of a system service stays. It would escape what its unit limits and
// outlive its end.
func mayLeave(h *Hierarchy) (Cause, bool) {
	own := h.Dirs[len(h.Dirs)-1].Path
	if len(h.Dirs) == 1 || strings.HasPrefix(own, h.Dirs[0].Path+"/user.slice/") {
		return Cause{}, true
	}
	return Cause{
		"it belongs to a system service, which sbxrun does not leave",
		"set Delegate=yes in that unit, and where it runs more than sbxrun DelegateSubgroup=main (systemctl edit)",
	}, false
}

// leftBehind are the limits of those groups that the caller was in and, being in
// own, is no longer.
func leftBehind(h *Hierarchy, own string) Limits {
	var l Limits
	for i := range h.Dirs {
		if p := h.Dirs[i].Path; p != own && !strings.HasPrefix(own, p+"/") {
			l = l.within(h.Dirs[i].Limits)
		}
	}
	return l
}

// unified is the version 2 hierarchy.
func (l Layout) unified() *Hierarchy {
	for i := range l.Hierarchies {
		if h := &l.Hierarchies[i]; h.V2 && len(h.Dirs) > 0 {
			return h
		}
	}
	return nil
}
