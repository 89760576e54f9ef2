// Package cgroups makes the control groups that hold a sandbox's memory, cpu
// and process limits, and reads from them what a run used and which limit it
// ran into.
//
// How: [Acquire] finds the hierarchies and what the caller may do in them, and
// gets an ordinary user a group from systemd where there is none to be had
// otherwise; [Prepare] decides where a group can be made and opens the directory
// above it, [Group.Create] makes the group and writes its limits. Deciding is
// pure ([NewLayout], [Plan]) and works on a description of any host; acting is a
// few system calls by directory descriptor.
//
//	layout, err := cgroups.Acquire(resources)
//	g, err := cgroups.Prepare(layout, resources) // before the clone
//	…                                            // clone PID 1: it inherits g.Parents()
//	err = g.Create()                             // while PID 1 mounts
//	…                                            // "go": the command joins, and runs
//	stats, err := g.Stats()
//	err = g.Remove()
//
// Where groups are. A run has one directory in each hierarchy that it needs,
// all of one name, directly below a directory named "sbxrun" ([Parent]). On
// unified hosts (v2) that is one hierarchy, on hybrid and v1 hosts one for each
// of memory, cpu and pids. "sbxrun" itself stays when the run is over: it is
// the one thing that a run leaves on the host, it limits nothing, and on v2 its
// cgroup.subtree_control is what gives the groups below it their controllers.
// Under systemd it goes with the unit or slice that it is in.
//
// On v2 it is made below the lowest group, of the caller's own and those above,
// that the caller may manage and that can hand its controllers down. A group
// that has processes cannot (no internal processes, cgroup-v2.rst), so this is:
//
//   - the caller's own group if that holds nothing but the caller and is a scope
//     or a service with Delegate=yes of systemd's, or there is no other place (a
//     container). The caller is moved into a child "sbxrun.supervisor" first
//     ([Supervisor]); other processes are never moved;
//   - else, for root, the slice that the caller's unit is in; at last the top;
//   - for an ordinary user, the slice within what systemd delegated to it
//     (user@UID.service, or a unit with Delegate=yes);
//   - for an ordinary user with nothing delegated, in a login session
//     (session-N.scope): a transient scope, which Acquire has the user's systemd
//     put the caller into, and which goes with the last process in it. It is the
//     caller alone that is moved, from its session to user@UID.service: what
//     limits the session holds it no longer, what limits the user does, and the
//     scope ends when the user's manager does, after the last session if the
//     user does not linger. A process of a system service is not moved: it would
//     escape its unit's limits and its end ([Layout].NoScope says so).
//
// On v1 it is below the topmost group that can be written, for root the top: a
// directory in the caller's own group would keep whoever manages that from
// removing it.
//
// Groups within ([Group.Sub], [Group.SubWithin]) are for several commands that
// share a group's limits, and may have tighter ones of their own. On v2 the group
// itself has no processes then, so that it can hand its controllers down.
//
// The caller's limits. Groups above hold what is below them. Of those that the
// new group is not below, the limits are read and taken over where they are
// tighter ([Layout].Left, [Dir].Limits), so that no run has more than its caller.
// The sum of many runs may: they are not in one group with the caller.
//
// How a command joins. On v2: clone3(2) with CLONE_INTO_CGROUP and a
// descriptor of the group. On v1: the new process writes "0" to the group's
// tasks file, before execve(2). Either way it should unshare(CLONE_NEWCGROUP)
// only afterwards: the root of a cgroup namespace is the group that its maker is
// in, and a hierarchy mounted with nsdelegate (systemd's default) refuses with
// ENOENT to move a process to where its namespace does not reach; see
// cgroup_procs_write_permission in kernel/cgroup/cgroup.c.
//
// Verdicts are read from the kernel's own counts, see [Stats].
//
// What this package does not do: it knows nothing of what runs in a group,
// limits no devices, io, huge pages or cpu sets ([Unsupported] names them), and
// of the caller's limits takes over memory, cpu and processes only, not swap, io
// or what systemd does by eBPF (IPAddressDeny=, DeviceAllow=). It leaves every
// group that it did not make alone.
package cgroups

import (
	"math/bits"
	"slices"
	"strings"
)

// Parent is the directory below which each run's groups are. It persists.
const Parent = "sbxrun"

// Supervisor is the group that the caller moves itself to where its own group
// must give controllers to children; see the package comment.
const Supervisor = "sbxrun.supervisor"

// Controllers is a set of resource controllers. The zero value is the empty set.
type Controllers uint8

// The controllers that this package uses. CPUAcct counts on v1 what cpu.stat
// counts on v2; it limits nothing.
const (
	Memory Controllers = 1 << iota
	CPU
	Pids
	CPUAcct

	// Limiting are the controllers that hold limits.
	Limiting = Memory | CPU | Pids
)

var controllerNames = [...]string{"memory", "cpu", "pids", "cpuacct"}

// Has reports whether every controller of x is in c.
func (c Controllers) Has(x Controllers) bool { return c&x == x }

func (c Controllers) count() int { return bits.OnesCount8(uint8(c)) }

// String lists the controllers as cgroup.controllers does.
func (c Controllers) String() string { return c.join("") }

// join lists the controllers, each with a prefix: "+memory +pids".
func (c Controllers) join(prefix string) string {
	var names []string
	for i, n := range controllerNames {
		if c&(1<<i) != 0 {
			names = append(names, prefix+n)
		}
	}
	return strings.Join(names, " ")
}

// parseControllers reads a list of controllers; names that this package does
// not use are passed over.
func parseControllers(s string, separator string) Controllers {
	var c Controllers
	for word := range strings.SplitSeq(s, separator) {
		if i := slices.Index(controllerNames[:], strings.TrimSuffix(word, "\n")); i >= 0 {
			c |= 1 << i
		}
	}
	return c
}

// A Slot is one directory of a group, for the process that joins it: Name below
// the directory that ParentFD (O_PATH) is open on.
type Slot struct {
	ParentFD int
	Name     string
	V2       bool // join by CLONE_INTO_CGROUP; else by Name+"/tasks"
}

// Missing says that a controller that the resources ask for cannot be had.
type Missing struct {
	Controller Controllers // exactly one
	Cause      string
	Fix        string // completes "hint: …"
}

// A MissingError lists the controllers that cannot be had. The group that
// comes with it holds the other limits and may be used by a caller that agreed
// to go without these.
type MissingError struct {
	Missing []Missing
}

func (e *MissingError) Error() string {
	var all []string
	for _, m := range e.Missing {
		all = append(all, "cgroup controller "+m.Controller.String()+": "+m.Cause)
	}
	return strings.Join(all, "; ")
}

// Controllers are those that cannot be had.
func (e *MissingError) Controllers() Controllers {
	var c Controllers
	for _, m := range e.Missing {
		c |= m.Controller
	}
	return c
}
