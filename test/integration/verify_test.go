//go:build linux

package integration

import (
	"slices"
	"strings"
	"testing"
)

// TestVerifyAdvice: where the host has no cgroups, integrate --verify fails with the command
// that goes without them, which works as it is printed.
func TestVerifyAdvice(t *testing.T) {
	if !isRoot() {
		t.Skip("only root can hide the cgroups from a mount namespace of its own")
	}
	p := newPersona(t, whos[0])
	sh := func(script string) *outcome {
		c := p.who.command("unshare", "-m", "/bin/sh", "-c", "mount -t tmpfs none /sys/fs/cgroup && "+script)
		return p.do(call{args: c, env: slices.Concat(p.env, []string{"PATH=" + strings.TrimSuffix(sbxrun, "/sbxrun") + ":/usr/bin:/bin:/usr/sbin"})})
	}
	for _, agent := range []string{"shell", "mcp --file " + p.home + "/mcp.json"} {
		if o := sh("sbxrun integrate " + agent); o.code != 0 {
			t.Fatal(o)
		}
		o := sh("sbxrun integrate " + agent + " --verify")
		_, advice, ok := strings.Cut(o.stderr, "sbxrun: hint: ")
		_, advice, _ = strings.Cut(strings.TrimSuffix(advice, "\n"), ": ")
		if o.code != 125 || !ok || !strings.HasPrefix(advice, "sbxrun integrate "+agent[:3]) {
			t.Fatalf("%s: no advice: %v", agent, o)
		}
		if o := sh(advice); o.code != 0 {
			t.Errorf("%s: what it advises: %v", agent, o)
		}
		if o := sh("sbxrun integrate " + agent + " --verify"); o.code != 0 || !strings.Contains(o.stdout, "verified: ") {
			t.Errorf("%s: after what it advises: %v", agent, o)
		}
	}
}
