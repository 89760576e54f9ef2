package agents

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// settled is an agent that is joined by files that hold this, in a home of its own.
func settled(t *testing.T, agent string) (files map[string][]byte, plan func(flags ...string) *Plan) {
	dir := t.TempDir()
	site := Site{Home: dir, Config: dir + "/config", Data: dir + "/data", State: dir + "/state", Claude: dir + "/claude", Codex: dir + "/codex", Qwen: dir + "/qwen", Copilot: dir + "/copilot", Pi: dir + "/pi", Sbxrun: "/usr/bin/sbxrun", Agent: "/usr/bin/codex"}
	plan = func(flags ...string) *Plan {
		p, err := NewPlan(agent, site, Options{Flags: flags, File: dir + "/mcp.json"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	files = map[string][]byte{}
	for _, f := range plan().Files {
		switch filepath.Base(f.Path) {
		case "settings.json", "mcp.json", "opencode.json":
			files[f.Path] = []byte("{\"z\": 1}\n")
		case "config.yaml":
			files[f.Path] = []byte("a: 1\n")
		case "config.toml":
			files[f.Path] = []byte("a = 1\nsandbox_mode = \"read-only\"\n")
		default:
			files[f.Path] = nil
		}
	}
	put(t, files)
	return files, plan
}

func put(t *testing.T, files map[string][]byte) {
	for path, b := range files {
		os.Remove(path)
		if b != nil {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// holds fails unless the files hold this, and nothing is beside them.
func holds(t *testing.T, what string, files map[string][]byte) {
	t.Helper()
	for path, want := range files {
		if b, err := os.ReadFile(path); want == nil && !errors.Is(err, os.ErrNotExist) || want != nil && !bytes.Equal(b, want) {
			t.Errorf("%s: %s: %q, %v, want %q", what, path, b, err, want)
		}
		if list, _ := filepath.Glob(filepath.Dir(path) + "/.*sbxrun*"); len(list) > 0 {
			t.Errorf("%s: %v is left", what, list)
		}
	}
}

// TestKilled: sbxrun integrate is killed after any of its changes, at the first plan or at
// one that takes another's place. It can be done again and undone, to the byte.
func TestKilled(t *testing.T) {
	for _, agent := range Names {
		for _, flags := range [][]string{{}, {"--memory", "1g"}} {
			for n := 0; ; n++ {
				files, plan := settled(t, agent)
				if len(flags) > 0 {
					if _, err := plan().Apply(); err != nil {
						t.Fatal(agent, err)
					}
				}
				was := map[string][]byte{}
				for path := range files {
					was[path], _ = os.ReadFile(path)
				}
				changes, err := plan(flags...).Apply()
				if err != nil {
					t.Fatal(agent, err)
				}
				if n == len(changes) {
					break
				}
				for _, c := range changes[n:] { // not made yet
					put(t, map[string][]byte{c.Path: was[c.Path]})
				}
				if err := os.WriteFile(temporary(changes[n].Path), []byte("half"), 0o600); err != nil {
					t.Fatal(err)
				}
				if n%2 == 0 {
					if _, err := plan("--memory", "2g").Apply(); err != nil {
						t.Errorf("%s, again after %d: %v", agent, n, err)
					}
				}
				if _, err := plan().Undo(); err != nil {
					t.Errorf("%s, undone after %d: %v", agent, n, err)
				}
				os.Remove(temporary(changes[n].Path)) // of a file that nothing was to be done to
				holds(t, agent, files)
			}
		}
	}
}

// TestAtOnce: several with other flags, at the same time.
func TestAtOnce(t *testing.T) {
	for _, agent := range Names {
		for range 3 {
			files, plan := settled(t, agent)
			var wait sync.WaitGroup
			for _, m := range []string{"1g", "2g", "3g", "4g"} {
				p := plan("--memory", m)
				wait.Go(func() {
					if _, err := p.Apply(); err != nil {
						t.Errorf("%s: %v", agent, err)
					}
				})
			}
			wait.Wait()
			if _, err := plan().Undo(); err != nil {
				t.Errorf("%s: %v", agent, err)
			}
			holds(t, agent, files)
		}
	}
}

// TestUndoByHand: the user had put one of the files back.
func TestUndoByHand(t *testing.T) {
	for _, agent := range Names {
		files, plan := settled(t, agent)
		for path, b := range files {
			if b == nil {
				continue
			}
			if _, err := plan().Apply(); err != nil {
				t.Fatal(agent, err)
			}
			put(t, map[string][]byte{path: b})
			if _, err := plan().Undo(); err != nil {
				t.Errorf("%s: %v", agent, err)
			}
			holds(t, agent, files)
		}
	}
}

// TestLikewise: a file that is replaced keeps its mode, its group and its attributes.
func TestLikewise(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.json")
	put(t, map[string][]byte{file: []byte("{}")})
	group := os.Getgid()
	if groups, _ := os.Getgroups(); os.Geteuid() == 0 {
		group = 1
	} else if i := slices.IndexFunc(groups, func(g int) bool { return g != group }); i >= 0 {
		group = groups[i]
	}
	if err := errors.Join(os.Chown(file, -1, group), os.Chmod(file, 0o640)); err != nil {
		t.Fatal(err)
	}
	err := unix.Setxattr(file, "user.a", []byte("b"), 0)
	if err != nil {
		t.Logf("no attributes here: %v", err)
	}
	look := func() (os.FileMode, uint32, map[string][]byte) {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fi, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return fi.Mode(), fi.Sys().(*syscall.Stat_t).Gid, attributes(f)
	}
	mode, gid, attrs := look()
	if err := replace(file, []byte("{}"), []byte("{ }"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, g, a := look(); m != mode || g != gid || !maps.EqualFunc(a, attrs, bytes.Equal) {
		t.Errorf("%v %d %q, want %v %d %q", m, g, a, mode, gid, attrs)
	}
	// It is not what was read.
	if err := replace(file, []byte("{}"), []byte("x"), 0o600); err == nil {
		t.Error("no error")
	}
	if err := replace(file, []byte("{}"), nil, 0o600); err == nil {
		t.Error("no error")
	}
	holds(t, "changed meanwhile", map[string][]byte{file: []byte("{ }")})
}
