package profiles

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sbxrun/sbxrun/policy"
)

// ownFacts are those of a user whose sbxrun lies in a project, as a developer's does.
func ownFacts(f fstest.MapFS) *Facts {
	facts := testFacts(f)
	facts.Own = []Own{
		{What: "the configuration", Path: "/home/u/.config/sbxrun", Shown: true},
		{What: "the state", Path: "/home/u/.local/state/sbxrun"},
		{What: "a program", Path: "/usr/local/bin", Shown: true, Programs: []string{"bwrap", "runc"}},
		{What: "the directory of runs", Path: "/var/tmp/sbxrun-501"},
		{What: "sbxrun itself", Path: "/home/u/tool/bin/sbxrun", File: true, Shown: true},
		{What: "sbxrun itself", Path: "/home/u/tool/bin/sbxrun-mcp", File: true, Shown: true},
	}
	for _, d := range []string{"home/u/.config", "home/u/tool/bin", "usr/local/bin"} {
		f[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	putFile(f, "home/u/tool/bin/sbxrun", "")
	putFile(f, "home/u/tool/bin/sbxrun-mcp", "")
	return facts
}

// TestOwnKept: whatever is granted, what later runs obey cannot be written, and
// nothing that leads to it can be exchanged; what lies beside it is granted.
func TestOwnKept(t *testing.T) {
	for name, tt := range map[string]struct {
		req     Request
		setup   func(fstest.MapFS)
		want    map[string]string // path → access; "" is no rule
		missing string
		err     string
	}{
		"the workspace alone": {want: map[string]string{"/home/u/.config": "", "/home/u/.config/sbxrun": ""}},
		"the home": {
			req: Request{ReadWrite: []string{"~"}},
			want: map[string]string{"/home/u": "rwx", "/home/u/.config": "rwx", "/home/u/.config/sbxrun": "---", // it is a secret, too
				"/home/u/.local": "rwx", "/home/u/.local/state": "rwx", "/home/u/.local/state/sbxrun": "---",
				"/home/u/tool": "rwx", "/home/u/tool/bin": "rwx", "/home/u/tool/bin/sbxrun": "r-x", "/home/u/tool/bin/sbxrun-mcp": "r-x"},
			missing: "/home/u/.config/sbxrun /home/u/.local/state/sbxrun",
		},
		"the configuration's parent": {
			req:     Request{ReadWrite: []string{"~/.config"}},
			want:    map[string]string{"/home/u/.config": "rwx", "/home/u/.config/sbxrun": "---"},
			missing: "/home/u/.config/sbxrun",
		},
		"as the workspace": {
			req:     Request{Dir: "/home/u/.config"},
			missing: "/home/u/.config/sbxrun",
		},
		"what an agent keeps": {
			req:   Request{Kept: []Keep{{Source: "/home/u/.local/state/sbxrun/agents/a", Below: ".a", Variable: "A"}}, ReadWrite: []string{"~/.local"}},
			setup: func(f fstest.MapFS) { putFile(f, "home/u/.local/state/sbxrun/agents/a/x", "") },
			want:  map[string]string{"/home/u/.local": "rwx", "/home/u/.local/state/sbxrun": "---"},
		},
		"what an agent keeps, in the configuration": {
			req: Request{Kept: []Keep{{Source: "/home/u/.config/sbxrun/a", Below: ".a"}}},
			err: "which later runs obey",
		},
		"what an agent keeps, above the state": {
			req: Request{Kept: []Keep{{Source: "/home/u/.local/state", Below: ".a"}}},
			err: "which later runs obey",
		},
		"by a profile": {
			setup:   func(f fstest.MapFS) { putFile(f, "etc/sbxrun/config.yaml", "files: {write: [/var/tmp]}\n") },
			want:    map[string]string{"/var/tmp": "rwx", "/var/tmp/sbxrun-501": "---"},
			missing: "/var/tmp/sbxrun-501",
		},
		"a profile file in the workspace": {
			req:   Request{Profile: "./p.yaml"},
			setup: func(f fstest.MapFS) { putFile(f, "home/u/src/project/p.yaml", "extends: strict\n") },
			want:  map[string]string{"/home/u/src/project/p.yaml": "r-x"},
		},
		"sbxrun in the workspace": {
			req:  Request{Dir: "/home/u/tool"},
			want: map[string]string{"/home/u/tool/bin": "rwx", "/home/u/tool/bin/sbxrun": "r-x"},
		},
		"a program's directory beside others": {
			req:  Request{ReadWrite: []string{"/usr/local"}},
			want: map[string]string{"/usr/local": "rwx", "/usr/local/bin": "r-x"},
		},
		"a program that a link leads to": {
			req: Request{ReadWrite: []string{"/opt/tools"}},
			setup: func(f fstest.MapFS) {
				putFile(f, "opt/tools/v1/bwrap", "")
				link("usr/local/bin/bwrap", "/opt/tools/v1/bwrap")(f)
			},
			want: map[string]string{"/opt/tools": "rwx", "/opt/tools/v1": "rwx", "/opt/tools/v1/bwrap": "r-x"},
		},
		"a link to a link to it": {
			req: Request{ReadWrite: []string{"/opt/tools"}},
			setup: func(f fstest.MapFS) {
				putFile(f, "opt/tools/v1/bwrap", "")
				link("opt/tools/current", "v1")(f)
				link("usr/local/bin/bwrap", "/opt/tools/current/bwrap")(f)
			},
			err: "flag --rw: a program is in /opt/tools/v1/bwrap, which later runs obey",
		},
		"a link to no program": {
			req:   Request{ReadWrite: []string{"/opt/tools"}},
			setup: func(f fstest.MapFS) { putFile(f, "opt/tools/x", ""); link("usr/local/bin/x", "/opt/tools/x")(f) },
			want:  map[string]string{"/opt/tools": "rwx", "/opt/tools/x": ""},
		},
		"private storage above it": {req: Request{Tmpfs: []Tmpfs{{Path: "/home/u"}}}},
		"a read-only bind":         {req: Request{Binds: []Bind{{"/home/u/tool", "/x", true}}}},

		"the configuration":   {req: Request{ReadWrite: []string{"~/.config/sbxrun"}}, setup: mkdir("home/u/.config/sbxrun"), err: "the configuration is in /home/u/.config/sbxrun, which later runs obey"},
		"a part of it":        {req: Request{ReadWrite: []string{"~/.config/sbxrun/profiles"}}, setup: mkdir("home/u/.config/sbxrun/profiles"), err: "later runs obey"},
		"it as the workspace": {req: Request{Dir: "/usr/local/bin/x"}, setup: mkdir("usr/local/bin/x"), err: "system directory"},
		"a bind":              {req: Request{Binds: []Bind{{"/home/u/tool", "/x", false}}}, err: "flag --bind: sbxrun itself is in"},
		"a link on the way":   {req: Request{ReadWrite: []string{"~"}}, setup: link("home/u/.config", "/data/real"), err: "flag --rw: the configuration is in /data/real/sbxrun"},
		"a program that is not there": {
			req: Request{Dir: "/home/u/tool/bin"}, setup: func(f fstest.MapFS) { delete(f, "home/u/tool/bin/sbxrun-mcp") },
			err: "workspace: the command could make /home/u/tool/bin/sbxrun-mcp, which later runs obey",
		},
		"a program that is not there, further down": {
			req: Request{Dir: "/home/u/tool"}, setup: func(f fstest.MapFS) { delete(f, "home/u/tool/bin/sbxrun-mcp") },
			want: map[string]string{"/home/u/tool": "rwx", "/home/u/tool/bin": "r-x", "/home/u/tool/bin/sbxrun": "r-x"},
		},
		"copy-on-write above it": {req: Request{Dir: "/home/u/.config", Workspace: "overlay"}, err: "later runs obey"},
	} {
		t.Run(name, func(t *testing.T) {
			f := hostFS()
			facts := ownFacts(f)
			if tt.setup != nil {
				tt.setup(f)
			}
			tt.req.Command = []string{"true"}
			r, err := Resolve(&tt.req, facts)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for p, want := range tt.want {
				if got := access(t, r, p); got != want {
					t.Errorf("%s is %q, want %q", p, got, want)
				}
			}
			if got := strings.Join(r.Missing, " "); got != tt.missing {
				t.Errorf("to be made: %q, want %q", got, tt.missing)
			}
			for _, o := range facts.Own {
				if f := writableAt(r.Policy, o.Path); f != nil {
					t.Errorf("%s can be written: %+v", o.Path, f)
				}
			}
		})
	}
}

func mkdir(name string) func(fstest.MapFS) {
	return func(f fstest.MapFS) { f[name] = &fstest.MapFile{Mode: fs.ModeDir | 0o755} }
}

func link(name, to string) func(fstest.MapFS) {
	return func(f fstest.MapFS) {
		f[name] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(to)}
	}
}

// countingFS counts how often each path is looked up.
type countingFS struct {
	fs.FS
	lstats map[string]int
}

func (c countingFS) Lstat(name string) (fs.FileInfo, error) {
	c.lstats[name]++
	return fs.Lstat(c.FS, name)
}
func (c countingFS) ReadLink(name string) (string, error) { return fs.ReadLink(c.FS, name) }

// TestLookedUpOnce: a run that grants nothing but its workspace looks up no path
// twice, none in a directory that is not there, and none in the system's.
func TestLookedUpOnce(t *testing.T) {
	f := hostFS()
	facts := ownFacts(f)
	counted := countingFS{f, map[string]int{}}
	facts.FS = counted
	if _, err := Resolve(&Request{Command: []string{"true"}}, facts); err != nil {
		t.Fatal(err)
	}
	if counted.lstats["home/u/.local"] == 0 || counted.lstats["home/u/tool/bin/sbxrun"] == 0 {
		t.Fatal("nothing of sbxrun's own was looked up")
	}
	for name, n := range counted.lstats {
		// The project's own file is looked for before anything is known.
		if n > 1 && !strings.HasSuffix(name, projectFile) || strings.HasPrefix(name, "home/u/.local/") || strings.HasPrefix(name, "usr/local") {
			t.Errorf("%s was looked up %d times", name, n)
		}
	}
}

// linkFS can tell links by less than a look.
type linkFS struct {
	countingFS
	asked map[string]bool
}

func (l linkFS) IsLink(name string) bool {
	l.asked[name] = true
	fi, err := fs.Lstat(l.FS, name)
	return err == nil && fi.Mode()&fs.ModeSymlink != 0
}

// TestProgramsAskedAbout: whether programs are links is found out without a look at
// each, where the file system can, and what they lead to is kept all the same.
func TestProgramsAskedAbout(t *testing.T) {
	f := hostFS()
	facts := ownFacts(f)
	for _, dir := range []string{"srv/ws", "srv/ws/tools"} {
		mkdir(dir)(f)
	}
	putFile(f, "srv/ws/tools/runc", "")
	link("usr/local/bin/runc", "/srv/ws/tools/runc")(f)
	l := linkFS{countingFS{f, map[string]int{}}, map[string]bool{}}
	facts.FS, facts.Cwd = l, "/srv/ws"
	r, err := Resolve(&Request{Command: []string{"true"}}, facts)
	if err != nil {
		t.Fatal(err)
	}
	if f := writableAt(r.Policy, "/srv/ws/tools/runc"); f != nil {
		t.Errorf("the command can write what a program is a link to: %+v", f)
	}
	if !l.asked["usr/local/bin/runc"] || !l.asked["usr/local/bin/bwrap"] {
		t.Errorf("asked about: %v", l.asked)
	}
	if n := l.lstats["usr/local/bin/bwrap"]; n != 0 {
		t.Errorf("looked at a program that is not there %d times", n)
	}
}

// Resolve does not look for patterns that a preset has twice.
func TestPresetsProtectOnce(t *testing.T) {
	for _, name := range presetNames {
		seen := map[string]bool{}
		for _, item := range preset(name).items(keyProtect) {
			if seen[item] {
				t.Errorf("preset %s protects %s twice", name, item)
			}
			seen[item] = true
		}
	}
}

// TestKept: what an agent keeps is in its home, whatever the host has or hides there.
func TestKept(t *testing.T) {
	f := hostFS()
	putFile(f, "home/u/.claude/.credentials.json", "{}")
	putFile(f, "home/u/.local/state/sbxrun/agents/a/x", "")
	r, err := Resolve(&Request{Command: []string{"true"}, Profile: "development", Kept: []Keep{{Source: "/home/u/.local/state/sbxrun/agents/a", Below: ".claude", Variable: "A"}}}, ownFacts(f))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, m := range r.Policy.OCI.Mounts {
		found = found || m.Destination == "/home/u/.claude" && m.Source == "/home/u/.local/state/sbxrun/agents/a" && writableBind(m)
	}
	if _, ok := variables(r.Policy.OCI.Process.Env).get("A"); !found || !ok {
		t.Errorf("%v %q", r.Policy.OCI.Mounts, r.Policy.OCI.Process.Env)
	}
	for _, rule := range r.Policy.Files {
		if policy.Below(rule.Path, "/home/u/.claude") {
			t.Errorf("%v", rule)
		}
	}
	if _, err := Resolve(&Request{Command: []string{"true"}, Profile: "unrestricted", Kept: []Keep{{Source: "/home/u/a", Below: ".a"}}}, ownFacts(hostFS())); err == nil || !strings.Contains(err.Error(), "isolates nothing") {
		t.Errorf("without a sandbox: %v", err)
	}
}
