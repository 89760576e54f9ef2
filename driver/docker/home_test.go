package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Who only asks podman whether it is there leaves nothing in a home where it was
// never used, and asks with the home of who has used it.
func TestBorrowHome(t *testing.T) {
	home, log := t.TempDir(), t.TempDir()
	bin := home + "/.local/bin" // where programs are found
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	// As podman does: makes its store before it answers.
	script := "#!/bin/sh\nmkdir -p \"$HOME/.local/share/containers\"; echo x >\"$HOME/.rpmdb\"; echo \"$HOME\" >" + log + "/asked\necho true true v2 '[cpu memory pids]'\n"
	if err := os.WriteFile(filepath.Join(bin, "podman"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	asked := func() string {
		t.Helper()
		if err := (Driver{Podman: true}).Available(t.Context()); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(log + "/asked")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	other := asked()
	if left, _ := filepath.Glob(home + "/.local/*"); len(left) != 1 || other == home {
		t.Errorf("asked with the home %s, and left %v in it", other, left)
	}
	if _, err := os.Lstat(other); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", other, err)
	}
	if err := os.MkdirAll(home+"/.config/containers", 0o700); err != nil {
		t.Fatal(err)
	}
	if at := asked(); at != home {
		t.Errorf("with a configuration of podman's in %s it was asked with %s", home, at)
	}
}
