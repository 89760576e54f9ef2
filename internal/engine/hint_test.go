package engine

import (
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

func TestToolRoot(t *testing.T) {
	for in, want := range map[string]string{
		"/root/.pyenv/shims/python3": "/root/.pyenv",
		"/root/go/bin/gopls":         "/root/go",
		"/root/tool":                 "/root/tool",
		"/root/.local/bin/uv":        "/root/.local/bin",
		"/opt/node/bin/node":         "/opt/node",
		"/opt/tool":                  "/opt",
		"/bin/x":                     "/bin",
	} {
		if got := toolRoot(in, "/root"); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// TestPropose: a command writes scripts and links; what a hint says to show is none of
// its choice (A16).
func TestPropose(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "home")
	t.Setenv("HOME", home)
	program := func(name string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	link := func(to, name string) string {
		name = filepath.Join(dir, name)
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct {
		program string
		hide    []string
		want    string // below dir
	}{
		{program("opt/tool/bin/x", 0o755), nil, "opt/tool"}, {program("home/.pyenv/shims/python3", 0o755), nil, "home/.pyenv"}, {program("home/tool", 0o755), nil, "home/tool"},
		{program("opt/tool/bin/data", 0o644), nil, ""}, {filepath.Join(dir, "nonexist"), nil, ""}, {"/nonexist", nil, ""}, {dir, nil, ""},
		{program("home/.ssh/id_rsa", 0o600), nil, ""}, {program("home/.ssh/x", 0o755), nil, ""}, {program("home/.aws/cli/bin/x", 0o755), nil, ""}, {program("home/.config/gh/x", 0o755), nil, ""},
		{link(filepath.Join(dir, "home/.ssh/x"), "opt/tool/bin/key"), nil, ""}, {link(filepath.Join(dir, "home/.ssh"), "opt/innocent"), nil, ""}, {filepath.Join(dir, "opt/innocent/x"), nil, ""},
		{program("home/bin/x", 0o755), nil, "home/bin"}, {program("opt/hidden/x", 0o755), []string{filepath.Join(dir, "opt/hidden")}, ""},
		{program("opt/a\nb/x", 0o755), nil, ""}, {program("opt/a\u202eb/x", 0o755), nil, ""},
	} {
		want := ""
		if c.want != "" {
			want = "; add --ro " + filepath.Join(dir, c.want)
		}
		if got := propose(c.program, c.hide); got != want {
			t.Errorf("%q: %q, want %q", c.program, got, want)
		}
	}
}

func TestAccess(t *testing.T) {
	p := &policy.Policy{
		OCI:   &specs.Spec{Mounts: []specs.Mount{{Destination: "/tmp", Type: "tmpfs"}}},
		Files: []policy.FileRule{{Path: "/usr", Access: policy.ReadExec}, {Path: "/usr/secret"}, {Path: "/tmp/ws", Access: policy.All}},
	}
	for path, want := range map[string]policy.Access{
		"/usr/bin/x": policy.ReadExec, "/usr/secret/x": 0, "/usrx": 0, "/tmp/x": 0, "/tmp/ws/x": policy.All, "/etc": 0,
	} {
		if got := Access(p, path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
