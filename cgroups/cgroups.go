// Package cgroups makes the control groups that hold a sandbox's memory, cpu
// and process limits, and reads from them what a run used and which limit it
// ran into.
//
// How: [Read] finds the hierarchies and what the caller may do in them,
// [Prepare] decides where a group can be made and opens the directory above it,
// [Group.Create] makes the group and writes its limits. Deciding is pure
// ([NewLayout], [Plan]) and works on a description of any host; acting is a few
// system calls by directory descriptor.
//
//	layout, err := cgroups.Read()
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
// It is made below the topmost group that the caller may manage:
//
//   - root: the top of the hierarchy, or of what a container shows of it;
//   - an ordinary user on v2: the subtree that systemd delegated to it
//     (user@UID.service, or a unit with Delegate=yes);
//   - an ordinary user on v1: its own group or one above it, where that is
//     writable, or a directory "sbxrun" that an administrator made for it.
//
// On v2 a group that has processes cannot give controllers to its children.
// Where the topmost group holds the caller itself (in a container, or in a
// systemd scope with Delegate=yes) and no other process, the caller is moved
// into a child "sbxrun.supervisor" first ([Supervisor]). Other processes are
// never moved.
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
// asks no service manager for a scope (a caller that wants one gets it first,
// and then calls Read: the scope is where it is found). It leaves every group
// that it did not make alone.
package cgroups

import (
	"math/bits"
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
	var b strings.Builder
	for i, n := range controllerNames {
		if c&(1<<i) == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(prefix)
		b.WriteString(n)
	}
	return b.String()
}

// parseControllers reads a list of controllers; names that this package does
// not use are passed over.
func parseControllers(s string, separator byte) Controllers {
	var c Controllers
	for s != "" {
		word := s
		if i := strings.IndexByte(s, separator); i >= 0 {
			word, s = s[:i], s[i+1:]
		} else {
			s = ""
		}
		word = strings.TrimSuffix(word, "\n")
		for i, n := range controllerNames {
			if n == word {
				c |= 1 << i
			}
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
	var b strings.Builder
	for i, m := range e.Missing {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString("cgroup controller ")
		b.WriteString(m.Controller.String())
		b.WriteString(": ")
		b.WriteString(m.Cause)
	}
	return b.String()
}

// Controllers are those that cannot be had.
func (e *MissingError) Controllers() Controllers {
	var c Controllers
	for _, m := range e.Missing {
		c |= m.Controller
	}
	return c
}
