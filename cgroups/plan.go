package cgroups

import (
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A Setup is what a group needs: what is done once on a host, and then one
// directory for each hierarchy.
type Setup struct {
	Limits  Limits // those of the resources, or of the caller's own groups where these are tighter
	Parents []ParentSetup
	Missing []Missing // asked for, and not to be had here
}

// A ParentSetup is the directory above a group in one hierarchy, and the group's
// own directory below it.
type ParentSetup struct {
	Path        string // of the parent
	V2          bool
	Controllers Controllers
	Steps       []Step // make the parent; empty where it is there already

	Name   string
	Writes []Write // into the group's own files
}

// StepKind is a kind of Step.
type StepKind uint8

// A Step makes a directory that may exist already, or writes a file.
const (
	Mkdir StepKind = iota
	WriteFile
)

// A Step is one change that is made once on a host, before the first run.
type Step struct {
	Kind  StepKind
	Path  string
	Value string
}

// A Write sets one file of a group.
type Write struct {
	File  string
	Value string

	// Refused says what to do if the kernel does not take it.
	Refused Refusal
}

// Refusal is what to do about a write that a kernel does not take. The zero
// Refusal ends the set-up.
type Refusal uint8

const (
	Fail Refusal = iota

	// SkipAbsent goes on if the kernel has no such file.
	SkipAbsent

	// SwappinessInstead writes 0 to memory.swappiness if the kernel has no such
	// file: it then does not count swap (swapaccount=0), but can leave the
	// group's memory out of it.
	SwappinessInstead

	// TighterAbove goes on after EINVAL, which then means that a group above
	// has less cpu than that and holds this one to it; see
	// tg_cfs_schedulable_down in kernel/sched/core.c. All other causes of
	// EINVAL are outside the ranges that LimitsOf lets through.
	TighterAbove
)

// Plan decides where a group of the given name can be made and what its files
// must hold. It is a function of its arguments alone. Limits of the caller's own
// groups that the new one is not below are taken over where they are tighter: no
// run gets more than its caller has. What the resources ask
// for and the layout cannot give is in Missing; an error means that the
// resources are invalid, and is a *LimitError.
func Plan(l Layout, r *specs.LinuxResources, name string) (Setup, error) {
	limits, err := LimitsOf(r)
	if err != nil {
		return Setup{}, err
	}
	return plan(l, limits, name), nil
}

func plan(l Layout, limits Limits, name string) Setup {
	s, outside := place(l, limits, name)
	if tighter := limits.within(outside); tighter != limits {
		s, _ = place(l, tighter, name)
	}
	return s
}

// place also returns the limits of those groups of the caller that the new one
// is not below.
func place(l Layout, limits Limits, name string) (s Setup, outside Limits) {
	s.Limits = limits
	want := limits.Controllers()
	if want == 0 {
		return s, outside // no group: the command stays in the caller's
	}
	outside = l.Left
	denied := deniedV1{user: l.User}
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		if h.V2 {
			continue
		}
		// A controller is in one hierarchy only, and none of v2's if in v1's.
		c := want & h.Controllers
		if c == 0 {
			continue
		}
		want &^= c
		at, ok := placeV1(h)
		if !ok {
			s.Missing = append(s.Missing, denied.add(h, c)...)
			continue
		}
		dir := &h.Dirs[at]
		outside = outside.within(h.below(at))
		p := ParentSetup{Path: dir.Path + "/" + Parent, Controllers: c, Name: name, Writes: writesV1(limits, c)}
		if !dir.ParentUsable {
			p.Steps = []Step{{Mkdir, p.Path, ""}}
		}
		s.Parents = append(s.Parents, p)
	}
	denied.fix(s.Missing)
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		if !h.V2 || want == 0 {
			continue
		}
		p := placeV2(h, want)
		if l.NoScope.Cause != "" {
			for i := range p.missing {
				p.missing[i].Cause += ", and " + l.NoScope.Cause
				p.missing[i].Fix = l.NoScope.Fix
			}
		}
		s.Missing = append(s.Missing, p.missing...)
		want = 0
		if p.have != 0 {
			outside = outside.within(h.below(p.at))
			s.Parents = append(s.Parents, ParentSetup{Path: h.Dirs[p.at].Path + "/" + Parent, V2: true, Controllers: p.have,
				Steps: p.steps, Name: name, Writes: writesV2(limits, p.have)})
		}
	}
	if want != 0 {
		s.Missing = append(s.Missing, each(want, "no mounted cgroup hierarchy has it",
			"mount -t cgroup2 none /sys/fs/cgroup, or check that the kernel's command line has no cgroup_disable")...)
	}
	return s, outside
}

func each(c Controllers, cause, fix string) []Missing {
	var out []Missing
	for x := Memory; x <= Pids; x <<= 1 {
		if c&x != 0 {
			out = append(out, Missing{x, cause, fix})
		}
	}
	return out
}

// placeV1 takes the topmost directory that can be used. Not the caller's own: a
// directory in there would be left behind, and keep whoever manages the
// caller's group from removing it.
func placeV1(h *Hierarchy) (int, bool) {
	for i := range h.Dirs {
		if d := &h.Dirs[i]; d.ParentUsable || d.Denied == Granted {
			return i, true
		}
	}
	return 0, false
}

// deniedV1 are the hierarchies of version 1 that have no place for this user. One
// command mends all of them, so all say the same.
type deniedV1 struct {
	user uint32
	dirs []string // to be made at the top
}

const causeDeniedV1 = "no group of cgroup v1 can be written by this user"

// add says that a hierarchy has no place.
func (d *deniedV1) add(h *Hierarchy, c Controllers) []Missing {
	// The message speaks of the top, since that is where the fix goes.
	top := &h.Dirs[0]
	if top.Denied == DeniedReadOnly {
		return each(c, top.Path+" is mounted read-only", fixReadOnly)
	}
	d.dirs = append(d.dirs, top.Path+"/"+Parent)
	return each(c, causeDeniedV1, "")
}

// fix says what to do about all of them. The id and not $USER, which in a shell of
// root's is root.
func (d *deniedV1) fix(list []Missing) {
	dirs := strings.Join(d.dirs, " ")
	for i := range list {
		if list[i].Cause == causeDeniedV1 {
			list[i].Fix = "as root: mkdir -p " + dirs + " && chown " + strconv.FormatUint(uint64(d.user), 10) + " " + dirs
		}
	}
}

const fixReadOnly = "start the container with its cgroups writable (docker run --privileged, or podman run --security-opt unmask=/sys/fs/cgroup)"

// A placement is a directory of a version 2 hierarchy in which a group can be
// made, the controllers that it can have there and what must be done for that.
type placement struct {
	at      int
	have    Controllers
	steps   []Step
	missing []Missing
}

// placeV2 takes the lowest directory that gives all controllers, so that as many
// as possible of the caller's limits hold the group too; else that which gives
// the most. Each is an ancestor of the caller's own group, and only someone who
// may write the common ancestor of two groups may move a process from one to the
// other.
func placeV2(h *Hierarchy, want Controllers) placement {
	own := &h.Dirs[len(h.Dirs)-1]
	var best placement
	found := false
	try := func(i int) bool {
		p := tryV2(h, i, want)
		// A message about a higher directory says more.
		if !found || p.have.count() >= best.have.count() {
			best, found = p, true
		}
		return best.have == want
	}
	for i := len(h.Dirs) - 1; i >= 0; i-- {
		d := &h.Dirs[i]
		// What hands controllers down can hold no process any more, and whoever
		// put the caller here may want to put others: systemd the next command
		// of a service, unless it was told that the unit manages its own group.
		if d.Denied != Granted || d.Occupants == OnlyCaller && !d.Delegated {
			continue
		}
		if try(i) {
			return best
		}
	}
	// Else there is no other place.
	if own.Denied == Granted && own.Occupants == OnlyCaller && !own.Delegated {
		try(len(h.Dirs) - 1)
	}
	if found {
		return best
	}
	if own.Denied == DeniedReadOnly {
		return placement{missing: each(want, own.Path+" is mounted read-only", fixReadOnly)}
	}
	return placement{missing: each(want,
		"neither the caller's cgroup "+own.Path+" nor one above it is delegated to this user",
		"with systemd, run it as: systemd-run --user --scope -p Delegate=yes sbxrun …")}
}

func tryV2(h *Hierarchy, at int, want Controllers) placement {
	d := &h.Dirs[at]
	parent := d.Path + "/" + Parent
	if d.ParentUsable && d.ParentEnabled.Has(want) {
		return placement{at: at, have: want}
	}
	p := placement{at: at}
	var available Controllers
	p.steps, available = handDown(h, at, want)
	p.have = want & (available | d.ParentEnabled)
	if lost := want &^ p.have; lost != 0 && d.Top {
		p.missing = each(lost, "this kernel has it not, or has it off, or on a v1 hierarchy that is not mounted here",
			"check /proc/cgroups, and the kernel's command line for cgroup_disable (or for cgroup_enable=memory, which some boards need)")
	} else if lost != 0 {
		fix := "set Delegate=yes in the unit that this group belongs to"
		if strings.Contains(d.Path, "/user@") {
			fix = "as root: systemctl edit user@.service, add [Service] and Delegate=cpu memory pids; then log out of all sessions, and in again"
		}
		p.missing = each(lost, "it is not delegated to "+d.Path+" (see cgroup.controllers there)", fix)
	}
	if p.have == 0 {
		return p
	}
	if enable := p.have &^ d.Enabled &^ d.ParentEnabled; enable != 0 {
		if !d.Top {
			switch d.Occupants {
			case Nobody:
			case OnlyCaller:
				// The no internal process rule; see cgroup-v2.rst.
				p.steps = append(p.steps,
					Step{Mkdir, d.Path + "/" + Supervisor, ""},
					Step{WriteFile, d.Path + "/" + Supervisor + "/cgroup.procs", "0"})
			default:
				// What is handed down already can be had.
				p.missing = append(p.missing, each(enable,
					"the group "+d.Path+
						" holds other processes than sbxrun and therefore cannot hand it to groups below (cgroup v2 allows no internal processes)",
					"give those processes a group of their own: in a container, move them before (mkdir "+d.Path+
						"/init, and write each of cgroup.procs to init/cgroup.procs); in a systemd unit, set DelegateSubgroup=main")...)
				if p.have &^= enable; p.have == 0 {
					p.steps = nil
					return p
				}
				enable = 0
			}
		}
		if enable != 0 {
			p.steps = append(p.steps, Step{WriteFile, d.Path + "/cgroup.subtree_control", enable.join("+")})
		}
	}
	if !d.ParentUsable {
		p.steps = append(p.steps, Step{Mkdir, parent, ""})
	}
	if enable := p.have &^ d.ParentEnabled; enable != 0 {
		p.steps = append(p.steps, Step{WriteFile, parent + "/cgroup.subtree_control", enable.join("+")})
	}
	return p
}

// handDown finds what a directory can be given from above, and the steps for it.
func handDown(h *Hierarchy, at int, want Controllers) ([]Step, Controllers) {
	available := h.Dirs[at].Available
	from := at
	for from > 0 && !available.Has(want) {
		a := &h.Dirs[from-1]
		if a.Denied != Granted || !a.Top && a.Occupants != Nobody {
			break
		}
		from--
		available |= a.Available
	}
	var steps []Step
	for i := from; i < at; i++ {
		if enable := want & available &^ h.Dirs[i].Enabled; enable != 0 {
			steps = append(steps, Step{WriteFile, h.Dirs[i].Path + "/cgroup.subtree_control", enable.join("+")})
		}
	}
	return steps, available
}

// writesV2 are the files of cgroup-v2.rst. Only what differs from a new group's
// defaults is written: each file costs an open, a write and a close.
func writesV2(l Limits, c Controllers) []Write {
	w := make([]Write, 0, 5)
	if c.Has(Memory) {
		w = append(w, Write{"memory.max", decimal(l.Memory), Fail})
		if l.Swap >= 0 {
			// Absent where the kernel has no swap, or does not account it.
			w = append(w, Write{"memory.swap.max", decimal(l.Swap), SkipAbsent})
		}
		// Linux 4.19: the group dies as a whole, not one process of it.
		w = append(w, Write{"memory.oom.group", "1", SkipAbsent})
	}
	if c.Has(CPU) {
		w = append(w, Write{"cpu.max", decimal(l.CPUQuota) + " " + decimal(int64(l.CPUPeriod)), Fail})
	}
	if c.Has(Pids) {
		w = append(w, Write{"pids.max", decimal(l.Pids), Fail})
	}
	return w
}

// socketShare is the part of a limit of memory that sockets may have beside it on v1.
const socketShare = 4

// writesV1 are the files of cgroup-v1/memory.rst, scheduler/sched-bwc.rst and
// cgroup-v1/pids.rst.
//
// Not written: memory.kmem.limit_in_bytes, because kernel memory counts towards
// memory.limit_in_bytes by itself and its own limit is gone since Linux 5.16;
// memory.use_hierarchy, because the groups have no children; and nothing for
// memory.oom.group, which v1 has not: its killer takes one process.
func writesV1(l Limits, c Controllers) []Write {
	w := make([]Write, 0, 3)
	if c.Has(Memory) {
		w = append(w, Write{"memory.limit_in_bytes", decimal(l.Memory), Fail})
		if l.Swap >= 0 {
			// Memory and swap together; never below limit_in_bytes, so after it.
			w = append(w, Write{"memory.memsw.limit_in_bytes", decimal(l.Memory + l.Swap), SwappinessInstead})
		}
		// What TCP and UDP sockets hold is not part of memory here, as it is on
		// v2, and not counted at all without a limit of its own. Absent where a
		// kernel has no IPv4.
		w = append(w, Write{"memory.kmem.tcp.limit_in_bytes", decimal(l.Memory / socketShare), SkipAbsent})
	}
	if c.Has(CPU) {
		if l.CPUPeriod != defaultPeriod {
			w = append(w, Write{"cpu.cfs_period_us", decimal(int64(l.CPUPeriod)), Fail})
		}
		w = append(w, Write{"cpu.cfs_quota_us", decimal(l.CPUQuota), TighterAbove})
	}
	if c.Has(Pids) {
		w = append(w, Write{"pids.max", decimal(l.Pids), Fail})
	}
	return w
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
