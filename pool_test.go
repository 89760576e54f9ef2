package sbxrun_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun"
	"github.com/sbxrun/sbxrun/pool"
)

// TestPool: sessions of a pool are those that were ready, each has its own workspace and
// nothing of another, and the project's file counts.
func TestPool(t *testing.T) {
	ctx := context.Background()
	p, err := sbxrun.NewPool(ctx, anywhere, pool.Settings{MinSize: 1, TargetSize: 1, MaxSize: 1})
	if err != nil {
		t.Fatal(err, sbxrun.HintOf(err))
	}
	defer p.Close()
	open := func(dir string) *sbxrun.Session {
		t.Helper()
		wait, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := p.Ready(wait, 1); err != nil {
			t.Fatal(err)
		}
		s, err := p.Open(ctx, dir)
		if err != nil {
			t.Fatal(err, sbxrun.HintOf(err))
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	one, two := t.TempDir(), t.TempDir()
	a, b := open(one), open(two)
	if out, err := a.Command("sh", "-c", "echo a >mine; echo a >/tmp/private; pwd").Output(); err != nil || string(out) != one+"\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := b.Command("sh", "-c", "ls . /tmp; ls "+one+" 2>/dev/null").Output(); err == nil || strings.Contains(string(out), "mine") || strings.Contains(string(out), "private") {
		t.Errorf("%q, %v", out, err)
	}
	if n, err := os.ReadDir(one); len(n) != 1 || err != nil {
		t.Errorf("%v, %v", n, err)
	}
	if st := p.Stats(); st.Pooled != 2 || st.Out != 2 {
		t.Errorf("%+v", st)
	}

	tighter := t.TempDir()
	if err := os.WriteFile(filepath.Join(tighter, ".sbxrun.yaml"), []byte("workspace: ro\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := open(tighter).Command("touch", "file").Run(); err == nil {
		t.Error("the project's file was not obeyed")
	}
	if err := os.WriteFile(filepath.Join(tighter, ".sbxrun.yaml"), []byte("network: {mode: host}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open(ctx, tighter); err == nil || sbxrun.HintOf(err) == "" {
		t.Errorf("a project's file loosens: %v", err)
	}

	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if out, err := a.Command("cat", "mine").Output(); err != nil || string(out) != "a\n" {
		t.Errorf("after Close: %q, %v", out, err)
	}
	if _, err := p.Open(ctx, one); !errors.Is(err, pool.ErrClosed) {
		t.Errorf("%v", err)
	}
	o := anywhere
	o.Workspace = "overlay"
	if _, err := sbxrun.NewPool(ctx, o, pool.Settings{}); err == nil || sbxrun.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

// TestDoctor: the canaries are acts of this very program, tried inside.
func TestDoctor(t *testing.T) {
	d, err := sbxrun.Doctor(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]string{}
	for _, c := range d.Checks {
		held[c.Group+" "+c.Name] = c.State.String()
	}
	if held["kernel user namespace"] == "unknown" {
		t.Error("the probes did not answer")
	}
	if d.Strict {
		for _, name := range []string{"write-system", "read-secret", "unshare", "mount", "host-untouched"} {
			if held["boundary "+name] != "yes" {
				t.Errorf("%s: %q", name, held["boundary "+name])
			}
		}
	} else if d.Error == "" || d.Hint == "" {
		t.Errorf("%+v", d)
	}
}
