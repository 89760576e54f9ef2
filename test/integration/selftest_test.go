//go:build linux

package integration

import (
	"os/exec"
	"strings"
	"testing"
)

// TestSelfTestOfDrivers: strict runs by the drivers that are other programs, with
// what docs/drivers.md says each goes without, and its self-test is done and passes.
func TestSelfTestOfDrivers(t *testing.T) {
	t.Parallel()
	if breakLayer != "" {
		t.Skip("the self-test would notice the layer that is missing")
	}
	for _, tt := range []struct{ driver, program, without string }{
		{"bwrap", "bwrap", "landlock,protect"},
		{"runc", "runc", "landlock,protect"},
		{"gvisor", "runsc", "landlock,protect,cgroup.pids"},
	} {
		for _, w := range whos {
			t.Run(tt.driver+"/"+w.name, func(t *testing.T) {
				if _, err := exec.LookPath(tt.program); err != nil {
					t.Fatalf("%v (tools/deps test installs it)", err)
				}
				if tt.driver == "gvisor" && w.uid != 0 {
					t.Skip("runsc starts its helper with other ids, which is root's to allow")
				}
				f := newFixture(t, w)
				o := f.do(call{args: f.strict([]string{"--driver", tt.driver, "--allow-degraded", tt.without, "--verify", "-v"}, "echo", "ran")})
				if o.code != 0 || o.stdout != "ran\n" || !strings.Contains(o.stderr, "self-test passed") {
					t.Errorf("%v", o)
				}
			})
		}
	}
}
