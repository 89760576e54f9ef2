package bwrap

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
)

func TestParseVersion(t *testing.T) {
	for s, want := range map[string][2]int{"bubblewrap 0.8.0": {0, 8}, "bubblewrap 1.10": {1, 10}, "bubblewrap 0.11.0-rc1": {0, 11}} {
		if a, b, ok := parseVersion(s); !ok || a != want[0] || b != want[1] {
			t.Errorf("%s: %d %d %v", s, a, b, ok)
		}
	}
	for _, s := range []string{"", "bubblewrap", "bwrap 0.8", "bubblewrap x.y", "bubblewrap 1"} {
		if _, _, ok := parseVersion(s); ok {
			t.Errorf("%q is read as a version", s)
		}
	}
}

func TestParseReport(t *testing.T) {
	r := parseReport([]byte("{ \"child-pid\": 77, \"mnt-namespace\": 4026532 }\n{ \"exit-code\": 3 }\n"))
	if r.Pid != 77 || r.Exit == nil || *r.Exit != 3 {
		t.Errorf("%+v", r)
	}
	for _, s := range []string{"", "{", "nonsense", "{ \"child-pid\": 77 }\n{ \"exit"} {
		if r := parseReport([]byte(s)); r.Exit != nil {
			t.Errorf("%q: %+v", s, r)
		}
	}
}

// TestNoBubblewrap: what is not there, too old or broken is unavailable, with a
// cause and a fix.
func TestNoBubblewrap(t *testing.T) {
	dir := t.TempDir()
	write := func(name, script string) string {
		p := dir + "/" + name
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, path := range []string{
		dir + "/absent",
		write("old", "echo bubblewrap 0.4.1"),
		write("other", "echo some other program"),
		write("broken", `[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit; echo no permission >&2; exit 1`),
	} {
		err := Driver{Path: path}.Available(context.Background())
		var u *driver.UnavailableError
		if !errors.As(err, &u) || u.Fix == "" {
			t.Errorf("%s: %v", path, err)
		}
	}
	t.Setenv("PATH", "")
	if err := (Driver{}).Available(context.Background()); driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("%v", err)
	}
}
