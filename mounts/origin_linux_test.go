package mounts

import (
	"testing"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// TestOrigin: a step that fails says what asked for it, and no other.
func TestOrigin(t *testing.T) {
	p := &sys.Program{}
	p.Layer(7)
	if _, err := Append(p, &Tree{Entries: []Entry{
		{Kind: Bind, Target: "/usr", Source: "/usr", IsDir: true, Origin: "preset strict"},
		{Kind: Bind, Target: "/srv/data", Source: "/srv/data", IsDir: true, Origin: "flag --ro"},
		{Kind: Tmpfs, Target: "/tmp"},
		{Kind: Mask, Target: "/usr/share", IsDir: true, Origin: "flag --hide"},
	}}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"/usr": "preset strict", "/srv/data": "flag --ro", "/usr/share": "flag --hide"}
	seen := map[string]bool{}
	for i := range p.Len() {
		step := p.Step(i)
		layer, origin := p.Part(i)
		if step.Object == maskDirName {
			continue // made for the first of them
		}
		if layer != 7 || origin != want[step.Object] {
			t.Errorf("%v: layer %d, origin %q", step, layer, origin)
		}
		seen[origin] = true
	}
	if len(seen) != len(want)+1 {
		t.Errorf("origins %v", seen)
	}
	p.InsertPause(0, 0)
	if _, origin := p.Part(p.Len() - 1); origin != "" {
		t.Errorf("the last step is of %q", origin)
	}
}
