package native_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// TestUnwatched: a result tells that nothing watches netlink sockets, which is where the
// command has the host's network, and that locks can be hidden from who watches, which is
// where the filter lets them; and only beside a limit of memory that holds.
func TestUnwatched(t *testing.T) {
	host, limit := policy.EgressHost, uint64(256<<20)
	for _, tt := range []struct {
		what   string
		change func(*profiles.Request)
		limit  bool
		want   []string
	}{
		{"a network of its own", func(r *profiles.Request) { r.Memory = &limit }, true, nil},
		{"the host's", func(r *profiles.Request) { r.Net, r.Memory = &host, &limit }, true, []string{driver.Netlink}},
		{"a filter that allows shared descriptors", func(r *profiles.Request) { r.Seccomp, r.Memory = "default", &limit }, true, []string{driver.FileLocks}},
		{"no filter", func(r *profiles.Request) { r.Seccomp, r.Memory, r.Degrade = "none", &limit, policy.LayerSeccomp }, true, []string{driver.FileLocks}},
		{"the filter of production", func(r *profiles.Request) { r.Seccomp, r.Memory = "production", &limit }, true, nil},
		{"the host's, without a limit", func(r *profiles.Request) { r.Net = &host }, false, nil},
	} {
		t.Run(tt.what, func(t *testing.T) {
			_, res, err := output(t, resolve(t, t.TempDir(), tt.change, "true"))
			if err != nil && tt.limit && os.Geteuid() != 0 && strings.Contains(err.Error(), "layer cgroup.memory") {
				t.Skipf("needs a cgroup of its own (root, or a delegated group): %v", err)
			}
			if err != nil || res.ExitCode != 0 || res.Layers.Has(policy.LayerCgroupMemory) != tt.limit || !slices.Equal(res.Unwatched, tt.want) {
				t.Errorf("%+v, %v; want %q", res, err, tt.want)
			}
		})
	}
}
