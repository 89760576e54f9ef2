//go:build linux

package integration

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSetup: what an ordinary user's setup makes works, and --undo leaves every file as
// it was. It does not run as root, whose setup changes the host: the virtual machine
// systemd has that.
func TestSetup(t *testing.T) {
	w := whos[len(whos)-1]
	if w.uid == 0 {
		t.Fatal("there is no ordinary user to test as")
	}
	f := newFixture(t, w)
	f.write("ws/go.mod", "module demo\n", 0o644)
	f.write("home/.config/fish/config.fish", "# mine\n", 0o600)
	f.own()
	files := func() map[string]string {
		m := map[string]string{}
		filepath.WalkDir(f.home, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				b, _ := os.ReadFile(name)
				m[name] = string(b)
			}
			return nil
		})
		return m
	}
	env := []string{"HOME=" + f.home, "SHELL=/usr/bin/fish", "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "SUDO_UID="}
	sbx := func(want int, args ...string) *outcome {
		t.Helper()
		o := f.do(call{args: w.command(append([]string{sbxrun}, args...)...), env: env})
		if o.code != want {
			t.Fatalf("%v", o)
		}
		return o
	}
	before := files()
	sbx(0, "setup") // nobody to ask
	if now := files(); !maps.Equal(now, before) {
		t.Errorf("without an answer: %v", now)
	}
	sbx(0, "setup", "--yes")
	now := files()
	for _, name := range []string{".config/fish/completions/sbxrun.fish", ".config/sbxrun/profiles/ws.yaml"} {
		if !strings.Contains(now[filepath.Join(f.home, name)], "Made by sbxrun setup") {
			t.Errorf("%s: %q", name, now[filepath.Join(f.home, name)])
		}
	}
	if o := sbx(0, "setup"); strings.Contains(o.stdout, "writes "+f.home) {
		t.Errorf("a second time: %v", o)
	}
	o := sbx(0, append(append([]string{"-P", "ws", "--net", "none"}, w.flags()...), "--", "cat", "go.mod")...)
	if o.stdout != "module demo\n" {
		t.Errorf("%v", o)
	}
	sbx(0, "setup", "--undo", "--print")
	sbx(0, "setup", "--undo", "--skip", "profile", "--skip", "completion")
	if again := files(); !maps.Equal(again, now) {
		t.Errorf("what was only printed, or left out, is gone: %v", again)
	}
	sbx(0, "setup", "--undo")
	if now := files(); !maps.Equal(now, before) {
		t.Errorf("after --undo: %v", now)
	}
}

// TestForeign: root in the directory of another user, as in a checkout of CI's, is told
// why a command fails, and the way that the message names works.
func TestForeign(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root")
	}
	f := newFixture(t, whos[0])
	f.who.uid = ordinary
	f.own()
	o := f.do(call{args: f.strict(nil, "touch", "made")})
	if want := f.ws + " belongs to user 1000"; o.code == 0 || !strings.Contains(o.stderr, want) || !strings.Contains(o.stderr, "setpriv --reuid 1000 --regid 1000") {
		t.Errorf("%v, want %q", o, want)
	}
	f.who = whos[len(whos)-1]
	if o := f.do(call{args: f.strict(nil, "touch", "made")}); o.code != 0 {
		t.Errorf("as that user: %v", o)
	}
	// Where root can write, or nothing failed, there is nothing to tell.
	f.who = whos[0]
	f.own()
	for _, command := range [][]string{{"false"}, {"touch", "made"}} {
		if o := f.do(call{args: f.strict(nil, command...)}); strings.Contains(o.stderr, "belongs to user") {
			t.Errorf("%v", o)
		}
	}
}
