package gvisor

import (
	"context"
	"os"
	"syscall"
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

// A command that is not there is told from a runtime that failed.
func TestNotStarted(t *testing.T) {
	for msg, want := range map[string]error{
		`runc run failed: unable to start container process: exec: "nox": executable file not found in $PATH`:                                                        syscall.ENOENT,
		`runc run failed: unable to start container process: exec: "/tmp/nox": stat /tmp/nox: no such file or directory`:                                             syscall.ENOENT,
		`runc run failed: unable to start container process: exec: "/etc/hosts": permission denied`:                                                                  syscall.EACCES,
		`runc run failed: unable to start container process: error mounting "/x": no such file or directory`:                                                         nil,
		`running container: starting container: starting root container: starting sandbox: error finding executable "nox" in PATH [/bin]: no such file or directory`: syscall.ENOENT,
		`running container: starting container: starting root container: starting sandbox: creating process: failed to load /dev/null: permission denied`:            syscall.EACCES,
		"executable file `nox` not found in $PATH: No such file or directory":                                                                                        syscall.ENOENT,
		"cgroups in hybrid mode not supported": nil,
	} {
		if got := notStarted(msg); got != want {
			t.Errorf("%s: %v, want %v", msg, got, want)
		}
	}
}
