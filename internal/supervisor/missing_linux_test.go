package supervisor

import (
	"testing"

	"github.com/sbxrun/sbxrun/cgroups"
)

func TestMissingCause(t *testing.T) {
	m := func(c cgroups.Controllers, cause, fix string) cgroups.Missing {
		return cgroups.Missing{Controller: c, Cause: cause, Fix: fix}
	}
	for _, c := range []struct {
		list       []cgroups.Missing
		cause, fix string
	}{
		{[]cgroups.Missing{m(cgroups.Memory, "no group", "make one")}, "no group", "make one"},
		{[]cgroups.Missing{m(cgroups.Memory, "no group", "make one"), m(cgroups.Pids, "no group", "make one")}, "no group", "make one"},
		{[]cgroups.Missing{m(cgroups.Memory, "not mounted", "mount it"), m(cgroups.Pids, "no group", "make one")}, "memory: not mounted; pids: no group", "mount it; make one"},
	} {
		if cause, fix := missingCause(c.list); cause != c.cause || fix != c.fix {
			t.Errorf("%q, %q; want %q, %q", cause, fix, c.cause, c.fix)
		}
	}
}
