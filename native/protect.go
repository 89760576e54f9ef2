package native

import (
	"slices"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/mounts"
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
		out = append(out, guard.Grant{
			Path: r.Path, Files: r.Access&landlock.WriteFile != 0, Entries: r.Access&landlock.MakeReg != 0 && !r.IsFile,
			Guarded: slices.Contains(writable, r.Path) && !slices.Contains(free, r.Path),
		})
	}
	return out
}

// denials are what a guard refused, as results tell it.
func denials(list []guard.Denial) []driver.Denial {
	var out []driver.Denial
	for _, d := range list {
		out = append(out, driver.Denial{Operation: d.Operation, Target: d.Path, Rule: "protected path " + d.Rule, Grant: "--unprotect " + d.Rule})
	}
	return out
}
