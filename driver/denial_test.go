package driver

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// TestGrantShell: a pattern is not for the shell that the hint is pasted into.
func TestGrantShell(t *testing.T) {
	for g, want := range map[Grant]string{
		"": "", GrantOf("unprotect", "lefthook.*"): "--unprotect 'lefthook.*'", GrantOf("rw", "/a b;c"): "--rw '/a b;c'",
		GrantOf("memory", "SIZE"): "--memory SIZE", GrantOf("allow-host", "a.example:443"): "--allow-host a.example:443",
	} {
		if got := g.Shell(); got != want {
			t.Errorf("%s: %s, want %s", g, got, want)
		}
	}
}

// TestRuleForKernel: of the whole host, the kernel's files are not shown.
func TestRuleForKernel(t *testing.T) {
	p := &policy.Policy{OCI: &specs.Spec{}, Files: []policy.FileRule{{Path: "/", Access: policy.ReadExec}}}
	if r := RuleFor(p, "/sys/kernel"); r.Access != 0 || r.Text != "not shown" {
		t.Errorf("%+v", r)
	}
	if r := RuleFor(p, "/system"); r.Access != policy.ReadExec {
		t.Errorf("%+v", r)
	}
}
