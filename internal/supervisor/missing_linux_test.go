package supervisor

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
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

// TestWithout: a limit that the driver cannot have, and that was agreed to go without,
// is missing in the status; one that the policy does not have is not.
func TestWithout(t *testing.T) {
	limit := int64(20)
	for _, c := range []struct {
		pids *specs.LinuxPids
		want policy.Layers
	}{{&specs.LinuxPids{Limit: &limit}, policy.LayerCgroupPids}, {nil, 0}} {
		p := &policy.Policy{Degrade: policy.LayerCgroupPids, OCI: &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{Pids: c.pids}}}}
		proc, err := Start(t.Context(), &Config{Driver: "test", Policy: p, Without: cgroups.Pids, Paths: []string{"/bin/true"}, Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		st, err := proc.Wait()
		if err != nil || st.ExitCode != 0 || st.Layers != 0 || st.Degraded != c.want {
			t.Errorf("%+v, %v; want %v degraded", st, err, c.want)
		}
	}
	// Control: nobody agreed.
	p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}}}}
	_, err := Start(t.Context(), &Config{Driver: "test", Policy: p, Without: cgroups.Pids, Paths: []string{"/bin/true"}, Argv: []string{"true"}})
	if driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("a limit that nobody agreed to go without: %v", err)
	}
}
