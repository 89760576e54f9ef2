package profiles

import (
	"testing"
	"testing/fstest"

	"github.com/sbxrun/sbxrun/policy"
)

// TestKeptAlone: a place that sbxrun keeps is not shown from the host as well, and what is shown
// in it hides its secrets.
func TestKeptAlone(t *testing.T) {
	host := &Facts{Home: "/home/u", Cwd: "/home/u/ws", UID: 1000, GID: 1000, CPUs: 1, FS: fstest.MapFS{
		"home/u/ws/f": {}, "home/u/.claude/.credentials.json": {}, "home/u/.local/share/opencode/auth.json": {}, "home/u/.local/share/keyrings": {}, "var/kept/f": {}, "usr/bin/x": {Mode: 0o755},
	}}
	resolve := func(change func(*Request)) (*policy.Policy, error) {
		r := &Request{Profile: "aicode", Command: []string{"x"}, Kept: []Keep{{Source: "/var/kept", Below: ".claude"}}}
		change(r)
		got, err := Resolve(r, host)
		if err != nil {
			return nil, err
		}
		return got.Policy, nil
	}
	for what, change := range map[string]func(*Request){
		"--ro":        func(r *Request) { r.ReadOnly = []string{"~/.claude"} },
		"--rw":        func(r *Request) { r.ReadWrite = []string{"~/.claude"} },
		"--bind":      func(r *Request) { r.Binds = []Bind{{Source: "/home/u/.claude", Destination: "/home/u/.claude"}} },
		"--tmpfs":     func(r *Request) { r.Tmpfs = []Tmpfs{{Path: "/home/u/.claude"}} },
		"a workspace": func(r *Request) { r.Dir = "/home/u/.claude" },
	} {
		if p, err := resolve(change); err == nil {
			t.Errorf("%s: the host's is shown: %+v, %v", what, p.Files, p.Unprotected)
		}
	}
	hidden := func(p *policy.Policy, name string) bool {
		for _, f := range p.Files {
			if f.Path == name && f.Access == policy.Hide {
				return true
			}
		}
		return false
	}
	p, err := resolve(func(r *Request) { r.Kept[0].Below, r.ReadOnly = ".local/share", []string{"~/.local/share/opencode"} })
	if err != nil {
		t.Fatal(err)
	}
	if !hidden(p, "/home/u/.local/share/opencode/auth.json") || hidden(p, "/home/u/.local/share/keyrings") {
		t.Errorf("%+v", p.Files)
	}
}
