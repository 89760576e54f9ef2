package docker

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sbxrun/sbxrun/test/survivors"
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
	runtime := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	script := "#!/bin/sh\nmkdir -p \"$XDG_RUNTIME_DIR/libpod/tmp\"; sleep 600 >/dev/null 2>&1 & echo $! >\"$XDG_RUNTIME_DIR/libpod/tmp/pause.pid\"; cp \"$XDG_RUNTIME_DIR/libpod/tmp/pause.pid\" " + log + "/pause\nmkdir -p \"$HOME/.local/share/containers\"; echo x >\"$HOME/.rpmdb\"; echo \"$HOME\" >" + log + "/asked\necho true true v2 '[cpu memory pids]'\n"
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
	if err := survivors.Gone(func() []string { return pauses(t, log) }); err != nil {
		t.Error(err)
	}
	if err := os.MkdirAll(home+"/.config/containers", 0o700); err != nil {
		t.Fatal(err)
	}
	if at := asked(); at != home {
		t.Errorf("with a configuration of podman's in %s it was asked with %s", home, at)
	}
	// The user's own stays.
	left := pauses(t, log)
	if len(left) != 1 {
		t.Fatalf("pause processes of the user's own podman: %v", left)
	}
	pid, _, _ := strings.Cut(left[0], " ")
	if n, err := strconv.Atoi(pid); err == nil {
		syscall.Kill(n, syscall.SIGKILL)
	}
}

// pauses lists the process that the last podman left, if it is there.
func pauses(t *testing.T, log string) []string {
	t.Helper()
	b, err := os.ReadFile(log + "/pause")
	if err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(string(b))
	if cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline"); !strings.HasPrefix(string(cmdline), "sleep\x00") {
		return nil
	}
	return []string{pid + " sleep"}
}
