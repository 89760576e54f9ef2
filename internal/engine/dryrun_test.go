package engine

import (
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// TestUnmade: a dry run checks a policy without the kept directories that are not made yet,
// and with all else.
func TestUnmade(t *testing.T) {
	dir := t.TempDir()
	var p policy.Policy
	p.OCI = &specs.Spec{Mounts: []specs.Mount{{Source: dir}, {Source: dir + "/kept"}, {Source: dir + "/missing"}}}
	kept := []profiles.Keep{{Source: dir}, {Source: dir + "/kept"}}
	var sources []string
	for _, m := range unmade(&p, kept).OCI.Mounts {
		sources = append(sources, m.Source)
	}
	if want := []string{dir, dir + "/missing"}; !slices.Equal(sources, want) || len(p.OCI.Mounts) != 3 {
		t.Errorf("%q, want %q; %v", sources, want, p.OCI.Mounts)
	}
}
