package native_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/selinux/go-selinux"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// TestLabels: a label is what the command runs under, or the run does not
// happen. Whether the host has the security module is asked of others.
func TestLabels(t *testing.T) {
	for _, tt := range []struct {
		layer   policy.Layers
		enabled bool
		change  func(*profiles.Request)
		current string // what attr/current is to begin with
	}{
		{policy.LayerSELinux, selinux.EnforceMode() == selinux.Enforcing, func(r *profiles.Request) { r.SELinux = "system_u:system_r:container_t:s0" }, "system_u:system_r:container_t:s0"},
		// unconfined is the one profile that every AppArmor has, and no protection
		// anywhere; test/vm has others.
		{policy.LayerAppArmor, false, func(r *profiles.Request) { r.AppArmor = "unconfined" }, ""},
	} {
		t.Run(tt.layer.String(), func(t *testing.T) {
			p := resolve(t, t.TempDir(), tt.change, "cat", "/proc/self/attr/current")
			out, res, err := output(t, p)
			if tt.enabled {
				if err != nil || !strings.HasPrefix(out, tt.current) || !res.Layers.Has(tt.layer) {
					t.Errorf("%q, %+v, %v", out, res, err)
				}
				return
			}
			var e *driver.UnavailableError
			if !errors.As(err, &e) || e.What != "layer "+tt.layer.String() || e.Fix == "" || res.ExitCode != driver.ExitSetup {
				t.Errorf("%+v, %v; want the layer to be unavailable", res, err)
			}
			p.Degrade, p.Require = p.Degrade|tt.layer, p.Require&^tt.layer
			if _, res, err = output(t, p); err != nil || !res.Degraded.Has(tt.layer) || res.Layers.Has(tt.layer) {
				t.Errorf("as allowed: %+v, %v", res, err)
			}
			p.Require |= tt.layer
			if _, res, err = output(t, p); !errors.As(err, &e) || res.ExitCode != driver.ExitSetup {
				t.Errorf("required and agreed to be missing: %+v, %v; want the layer to be unavailable", res, err)
			}
		})
	}
}
