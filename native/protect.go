package native

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// grants are the rights to write that the guard of protected paths goes by: what
// the Landlock rules grant, and which of it is the host's.
func grants(l *rootfs.Root, free []string) []guard.Grant {
	var writable []string // of the host's
	for i := range l.Tree.Entries {
		if e := &l.Tree.Entries[i]; e.Kind == mounts.Bind && e.Attr&mounts.ReadOnly == 0 {
			writable = append(writable, e.Target)
		}
	}
	out := make([]guard.Grant, 0, len(l.Ruleset.Rules))
	for i := range l.Ruleset.Rules {
		r := &l.Ruleset.Rules[i]
		if r.Access == landlock.ResolveUnix {
			continue // of files there the rule says nothing
		}
		out = append(out, guard.Grant{
			Path: r.Path, Files: r.Access&landlock.WriteFile != 0, Entries: r.Access&landlock.MakeReg != 0 && !r.IsFile,
			Guarded: slices.Contains(writable, r.Path) && !slices.Contains(free, r.Path),
		})
	}
	return out
}

// denials are what a guard refused, as results tell it.
func (d Driver) denials(p *policy.Policy, list []guard.Denial, untold uint64) []driver.Denial {
	var out []driver.Denial
	for i := range list {
		g := &list[i]
		to := driver.Denial{Operation: driver.OpWrite, Call: g.Call, Target: g.Path, Count: g.Count,
			Process: driver.NewAsker(g.PID, g.Command)}
		switch {
		case g.Kind == guard.Syscall:
			to.Operation, to.Rule = driver.OpSyscall, "protected paths, which this call could evade"
			if p.Seccomp != "" {
				to.Rule = "system call filter " + p.Seccomp
			}
			if p.Seccomp == "strict" || p.Seccomp == "production" {
				to.Grant = seccompGrant(g.Call)
			}
		case g.Rule != "":
			to.Rule, to.Grant = driver.RuleProtected+g.Rule, driver.GrantOf("unprotect", g.Rule)
		case g.Kind == guard.Unix && g.Leads == "":
			to.Operation = driver.OpUnix
			to.Explain(p, g.Path, "", policy.Read, d.Withheld, func(string) bool { return true })
			to.Rule += ", but for sockets of the host"
			to.Grant = allowUnix(to.Grant, g.Path)
		case g.Kind != guard.Write:
			to.Operation = operations[g.Kind]
			at := g.Path
			if driver.RuleFor(p, at).Access&policy.Read != 0 {
				// It is shown, and leads to what is not.
				if at = g.Leads; driver.RuleFor(p, at).Access&policy.Read != 0 {
					continue // it came to be there after the command had looked
				}
			}
			to.Explain(p, at, g.Leads, policy.Read, d.Withheld, func(string) bool { return true })
			if g.Kind == guard.Unix {
				to.Grant = allowUnix(to.Grant, at)
			}
		default:
			narrow := g.Path
			if g.Entry {
				narrow = path.Dir(narrow)
			}
			leads := g.Leads
			if leads == "" {
				leads, _ = filepath.EvalSymlinks(narrow)
			} else if driver.RuleFor(p, leads).Access&policy.Write != 0 && driver.RuleFor(p, narrow).Access&policy.Write != 0 {
				continue
			}
			to.Explain(p, narrow, leads, policy.Write, d.Withheld,
				func(at string) bool { return unix.Access(at, unix.W_OK) == nil })
		}
		out = append(out, to)
	}
	// What a program only looks for says less than what it opens, and that less than
	// what it is refused. A protected path is told of first: who reads a few sees it.
	slices.SortStableFunc(out, func(a, b driver.Denial) int { return weight(&a) - weight(&b) })
	if untold > 0 {
		out = append(out, driver.Others(driver.OpWrite, untold))
	}
	return out
}

// doubt is a denial that somebody can be asked about. Of a file that is the file itself, which
// may be another than the one that was asked for; neither may be one that nothing proposes.
func (d Driver) doubt(p *policy.Policy, g guard.Denial) (driver.Denial, bool) {
	list := d.denials(p, []guard.Denial{g}, 0)
	if len(list) == 0 || list[0].Grant == "" {
		return driver.Denial{}, false
	}
	if g.Rule != "" {
		return list[0], true
	}
	for _, m := range p.OCI.Mounts { // what the command itself can write at another place
		if path.IsAbs(m.Source) && policy.Below(g.Leads, m.Source) {
			return driver.Denial{}, false
		}
	}
	name := g.Path
	g.Path = g.Leads
	if list = d.denials(p, []guard.Denial{g}, 0); len(list) == 0 || list[0].Grant != driver.GrantOf("ro", g.Leads) {
		return driver.Denial{}, false
	}
	if name != g.Leads {
		list[0].Reason = "asked for as " + name
	}
	return list[0], true
}

// allowUnix is the grant of a socket where one of the path could be proposed, and does not
// show it at another place.
func allowUnix(g driver.Grant, at string) driver.Grant {
	if g == driver.GrantOf("ro", at) {
		return driver.GrantOf("allow-unix", at)
	}
	return g
}

// operations are those of the guard's kinds.
var operations = map[guard.Kind]driver.Operation{guard.Write: driver.OpWrite, guard.Read: driver.OpRead,
	guard.Exec: driver.OpExec, guard.Unix: driver.OpUnix}

// seen passes on what the command uses.
func seen(tell func(driver.Use, func() *driver.Asker)) func(guard.Use, func() (int, string)) {
	return func(u guard.Use, who func() (int, string)) {
		tell(driver.Use{Operation: operations[u.Kind], Call: u.Call, Target: u.Path, Leads: u.Leads, Dir: u.Dir,
			Whole: u.Whole},
			func() *driver.Asker { return driver.NewAsker(who()) })
	}
}

// refused passes on what the guard refuses. The guard's thread is confined, and asks
// another to look for the rule. A path that takes long to look at delays who asked for it
// a second, and nothing is told until it was looked at.
func (d Driver) refused(p *policy.Policy, tell func(driver.Denial)) func(guard.Denial) {
	free := make(chan struct{}, 1)
	free <- struct{}{}
	return func(g guard.Denial) {
		select {
		case <-free:
		default:
			return
		}
		done := make(chan struct{})
		go func() {
			for _, to := range d.denials(p, []guard.Denial{g}, 0) {
				tell(to)
			}
			free <- struct{}{}
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	}
}

func weight(d *driver.Denial) int {
	switch {
	case strings.HasPrefix(d.Rule, driver.RuleProtected):
		return 0
	case d.Operation != driver.OpRead:
		return 1
	case strings.HasPrefix(d.Call, "open"):
		return 2
	}
	return 3
}

// seccompGrant is the built-in filter that allows a call which the stricter ones refuse.
// The other calls that the guard tells of none allows.
func seccompGrant(call string) driver.Grant {
	switch call {
	case "ptrace", "pidfd_getfd", "process_vm_readv", "process_vm_writev":
		return driver.GrantOf("seccomp", "default")
	}
	return ""
}
