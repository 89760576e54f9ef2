package programs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFind: a program that commands can have put on PATH is passed over, wherever it
// stands there, and so is one that a link leads to.
func TestFind(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home, venv, project := dir+"/home", dir+"/home/project/.venv/bin", dir+"/home/project"
	local := home + "/.local/bin"
	put := func(file string) string {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	planted, good := put(venv+"/bwrap"), put(local+"/bwrap")
	put(venv + "/crun")
	put(local + "/sh") // no line of Names
	if err := errors.Join(os.Symlink(planted, local+"/runc"), os.WriteFile(local+"/podman", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Chdir(project)
	t.Setenv("PATH", ".venv/bin::"+venv+":"+local)
	// The control: what the standard library would execute.
	if file, err := exec.LookPath("crun"); err != nil || filepath.Base(file) != "crun" {
		if !errors.Is(err, exec.ErrDot) {
			t.Fatalf("%s, %v", file, err)
		}
	}
	for name, want := range map[string]string{"bwrap": good, "crun": "", "runc": "", "podman": "", "../bwrap": "", "sh": ""} {
		file, err := Find(name)
		if file != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", name, file, err)
		}
		if err != nil && (name == "crun" || name == "runc") != (err.Passed != "") {
			t.Errorf("%s: passed over: %q", name, err.Passed)
		}
	}
}
