package gvisor

import (
	"context"
	"os"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
)

func TestLastError(t *testing.T) {
	for log, want := range map[string]string{
		"":                                     "",
		`{"level":"warning","msg":"a"}` + "\n": "",
		`{"level":"warning","msg":"a"}` + "\n" + `{"level":"error","msg":"first"}` + "\n" + `{"level":"error","msg":"last"}` + "\nnonsense": "last",
	} {
		if got := lastError([]byte(log)); got != want {
			t.Errorf("%q: %q, want %q", log, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	const text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\nbroken\n"
	if n := count([]byte(text), "oom_kill"); n != 3 {
		t.Error(n)
	}
	if n := count([]byte(text), "max"); n != 0 {
		t.Error(n)
	}
}

// TestNoRuntime: what is not there, or does not work, is unavailable, with a
// cause and a fix.
func TestNoRuntime(t *testing.T) {
	broken := t.TempDir() + "/broken"
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho no >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []Driver{{Path: broken, RunDir: t.TempDir() + "/run"}, {Runtime: "no-such-runtime"}} {
		err := d.Available(context.Background())
		if driver.CodeOf(err) != driver.CodeUnavailable || driver.HintOf(err) == "" {
			t.Errorf("%v", err)
		}
	}
}
