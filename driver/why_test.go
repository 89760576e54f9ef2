package driver

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// TestRuleForHidden: what is hidden where nothing shows it is proposed to nobody, by its place
// or by its name, and what something else shows there is not.
func TestRuleForHidden(t *testing.T) {
	p := &policy.Policy{OCI: &specs.Spec{Mounts: []specs.Mount{
		{Destination: "/home/u", Type: "tmpfs"}, {Destination: "/srv/b", Source: "/x", Type: "bind", Options: []string{"bind"}}}},
		Files:     []policy.FileRule{{Path: "/ws", Access: policy.ReadWrite}},
		Synthetic: []policy.SyntheticFile{{Path: "/etc/passwd"}},
		Hidden: []policy.FileRule{{Path: "/home/u/priv", Origin: "flag --hide"}, {Path: "*.sekret", Origin: "p.yaml:3"},
			{Path: "/srv/b"}, {Path: "/etc/passwd"}, {Path: "/ws/shown"}}}
	for at, want := range map[string]string{
		"/home/u/priv": "flag --hide", "/home/u/priv/a/b": "flag --hide", "/home/u/a.sekret": "p.yaml:3", "/opt/a.sekret/b": "p.yaml:3",
	} {
		if r := RuleFor(p, at); !r.Hidden() && r.Text != "hidden: *.sekret" || r.Origin != want || r.Grant(at, policy.Read) != "" {
			t.Errorf("%s: %+v", at, r)
		}
	}
	for _, at := range []string{"/home/u/private", "/home/u/sekret", "/srv/b/f", "/etc/passwd", "/ws/shown/x"} {
		if r := RuleFor(p, at); r.Hidden() {
			t.Errorf("%s: %+v", at, r)
		}
	}
}
