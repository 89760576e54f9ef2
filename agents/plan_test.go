package agents

import (
	"path/filepath"
	"strings"
	"testing"
)

// A session that there is has its own policy: what a plan writes down adds no flags of
// one, which every command would be refused for.
func TestPlanProfile(t *testing.T) {
	dir := t.TempDir()
	site := Site{Home: dir, Config: filepath.Join(dir, "config"), Data: filepath.Join(dir, "data"), State: filepath.Join(dir, "state"), Claude: filepath.Join(dir, "claude"), Sbxrun: "/usr/bin/sbxrun"}
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Flags: []string{"--ro", "/srv"}}, " --profile aicode --ro /srv"},
		{Options{Flags: []string{"--ro", "/srv"}, By: "hook"}, " --profile aicode --ro /srv"},
		{Options{Flags: []string{"--session", "one"}, Session: true}, " --ignore-env --session one"},
		{Options{Flags: []string{"--session", "one"}, Session: true, By: "hook"}, " --ignore-env --session one"},
	} {
		p, err := NewPlan("claude-code", site, tt.o)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := p.Changes()
		if err != nil {
			t.Fatal(err)
		}
		written := ""
		for _, c := range changes {
			written += strings.NewReplacer("'", "").Replace(string(c.After))
		}
		if !strings.Contains(written, tt.want) || tt.o.Session && strings.Contains(written, "--profile") {
			t.Errorf("%+v: %s", tt.o, written)
		}
	}
}
