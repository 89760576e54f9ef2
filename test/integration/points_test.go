//go:build linux

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pointTests are about mount points and what leads to them, which the guard must not
// move: it makes calls where the sandbox's mounts are none.
func pointTests() []entry {
	files := map[string]string{"token": "secret\n", "sub/deep/token": "secret too\n", "vendor/file": "vendored\n", "lock": "locked\n"}
	const points, above = "token,sub/deep/token,vendor,lock", "sub,sub/deep"
	want := map[string]string{}
	for p := range strings.SplitSeq(points, ",") {
		want["make "+p], want["rename "+p+" to itself"] = "EEXIST", "ok"
		want["rmdir "+p], want["unlink "+p] = "ENOTDIR", "EISDIR"
		want["rename a directory over "+p], want["rename a file over "+p] = "ENOTDIR", "EISDIR"
	}
	args := func(f *fixture) []string { return []string{"in=" + f.ws, "points=" + points, "above=" + above} }
	flags := func(*fixture) []string {
		return []string{"--hide", "token", "--hide", "sub/deep/token", "--ro", "vendor", "--ro", "lock"}
	}
	setup := func(f *fixture) {
		for p, content := range files {
			f.write("ws/"+p, content, 0o644)
		}
		f.own()
	}
	return []entry{
		{
			id: "F31", title: "move, exchange, replace or remove what is hidden or read-only in the workspace",
			setup: setup, args: args, flags: flags,
			deny: "EBUSY", want: want,
			check: func(f *fixture, _ *outcome) {
				for p, content := range files {
					if b, err := os.ReadFile(filepath.Join(f.ws, p)); err != nil || string(b) != content {
						f.Errorf("%s holds %q: %v", p, b, err)
					}
				}
				// The next run hides and protects the same.
				o := f.do(call{args: f.strict(flags(f), "cat", "token", "sub/deep/token", "vendor/file")})
				if strings.Contains(o.stdout, "secret") || !strings.Contains(o.stdout, "vendored") {
					f.Errorf("%v", o)
				}
			},
			controls: []control{
				{"the kernel without a guard", func(f *fixture, e *entry) {
					setup(f)
					o := f.do(call{args: f.strict(append(flags(f), "--unprotect", "all"), append([]string{f.attack, e.id}, args(f)...)...)})
					e.judge(f, f.report(o), func(act string) string {
						if strings.Contains(act, "the directory") {
							return "ok"
						}
						return e.inside(act)
					})
				}},
				{"without mounts", func(f *fixture, e *entry) {
					setup(f)
					o := f.do(call{args: f.strict(nil, append([]string{f.attack, e.id}, args(f)...)...)})
					e.judge(f, f.report(o), func(act string) string {
						if w, ok := want[act]; ok {
							return w
						}
						return "ok"
					})
				}},
			},
		},
		{id: "F32", title: "a workspace below /tmp, /var/tmp, /run, /dev/shm, and what leads to it renamed", test: parentsOfWorkspace},
	}
}

func parentsOfWorkspace(f *fixture) {
	for _, base := range []string{"/tmp", "/var/tmp", "/run", "/dev/shm"} {
		dir, err := os.MkdirTemp(base, filepath.Base(runDir)+"-")
		if err != nil {
			f.Logf("%s: %v", base, err) // an ordinary user's /run
			continue
		}
		f.Cleanup(func() { os.RemoveAll(dir) })
		c := *f
		c.dir, c.ws, c.attack = dir, filepath.Join(dir, "parent/ws"), filepath.Join(f.outside, "attack")
		os.Chmod(dir, 0o755)
		c.repository("")
		before := c.names()
		run := func(flags ...string) *outcome {
			shown := c
			if base == "/dev/shm" {
				shown.ws = f.ws // a path below /dev is granted, and is no workspace
			}
			return shown.do(call{args: shown.strict(append(flags, "--ro", f.outside, "--rw", c.ws), c.attack, "F32", "in="+c.ws, "base="+base)})
		}
		e := &entry{id: "F32", deny: "EBUSY", want: map[string]string{"create .mcp.json below the new name": "ENOENT", "create a hook below the new name": "ENOENT"}}
		o := run()
		e.judge(&c, c.report(o), e.inside)
		if now := c.names(); now != before {
			f.Errorf("%s held\n%sand holds\n%s", c.ws, before, now)
		}
		// The control: without protected paths the kernel lets all of it pass.
		o = run("--unprotect", "all")
		e.judge(&c, c.report(o), func(string) string { return "ok" })
	}
}

// TestSessionPoints: the commands of a session move no mount points and nothing that
// leads to them.
func TestSessionPoints(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		script := func(s *session) string {
			rel, _ := filepath.Rel("/tmp", s.ws)
			top, below, _ := strings.Cut(rel, "/")
			return "mv README away; rm -f README; mv attack away; mv /tmp/" + top + " /tmp/moved && echo moved && echo x >/tmp/moved/" + below + "/.mcp.json && echo planted"
		}
		s := newSession(t, w, "--hide", "README", "--ro", "attack")
		before := s.names()
		if o := s.exec(script(s)); strings.Contains(o.stdout, "moved") || strings.Count(o.stderr, "busy") < 3 {
			t.Errorf("%v", o)
		}
		if now := s.names(); now != before {
			t.Errorf("the workspace held\n%sand holds\n%s", before, now)
		}
		s.want("mkdir a; mv a b; rmdir b; mkdir /tmp/a; mv /tmp/a /tmp/b; rmdir /tmp/b", "")

		c := newSession(t, w, "--unprotect", "all")
		if o := c.exec(script(c)); o.stdout != "moved\nplanted\n" || exists(filepath.Join(c.ws, "README")) || !exists(filepath.Join(c.ws, ".mcp.json")) {
			t.Errorf("without mounts and protected paths: %v", o)
		}
	})
}
