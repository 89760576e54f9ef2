package engine

import (
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// TestWhy: each thing that a policy decides about is told with its rule, and with a grant
// exactly where one is to be had.
func TestWhy(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "ws", "link")
	for _, d := range []string{"ws/.git", "ro", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "other"), link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ws", "a"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("id_rsa", filepath.Join(dir, "other", "plain")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other", "id_rsa"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, "ws"))
	allow, err := policy.ParseEgressRule("good.example")
	if err != nil {
		t.Fatal(err)
	}
	p := &policy.Policy{
		OCI:       &specs.Spec{Process: &specs.Process{}, Mounts: []specs.Mount{{Destination: "/proc", Type: "proc"}, {Destination: "/home/u", Type: "tmpfs"}, {Destination: "/mnt/at", Source: dir + "/other", Type: "bind", Options: []string{"rbind"}}}, Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/fuse"}}}},
		Files:     []policy.FileRule{{Path: dir + "/ro", Access: policy.ReadExec, Origin: "flag --ro"}, {Path: dir + "/ro/x", Origin: "flag --hide"}, {Path: dir + "/ws", Access: policy.All, Origin: "workspace"}},
		Protect:   []string{".vscode"},
		Synthetic: []policy.SyntheticFile{{Path: "/etc/passwd"}},
		Seccomp:   "strict",
		Egress:    policy.Egress{Mode: policy.EgressProxy, Allow: []policy.EgressRule{allow}},
	}
	f := &Facts{Facts: profiles.Facts{Home: "/home/u", FS: HostFS{}}}
	for _, tt := range []struct{ what, answer, rule, origin, grants string }{
		{dir + "/ws/a", "visible and writable", "writable: " + dir + "/ws", "workspace", ""},
		{dir + "/ws/.vscode/a", "visible, and protected from changes", "protected path .vscode", "workspace", "write --unprotect .vscode"},
		{dir + "/ro/a", "visible, read-only", "read-only: " + dir + "/ro", "flag --ro", "write --rw " + dir + "/ro/a"},
		{dir + "/ro/x/a", "not visible", "hidden: " + dir + "/ro/x", "flag --hide", ""},
		{dir + "/other", "not visible", "not shown", "", "read --ro " + dir + "/other, write --rw " + dir + "/other"},
		{link, "not visible", "not shown, " + dir + "/other, where it leads", "", "read --ro " + dir + "/other, write --rw " + dir + "/other"},
		{dir + "/other/plain", "not visible", "not shown", "", ""}, // it leads to a secret
		{"~/notes", "not visible", "private storage: /home/u", "", "read --ro /home/u/notes, write --rw /home/u/notes"},
		{"~/.ssh/id", "not visible", "private storage: /home/u", "", ""},
		{"/etc/tool.conf", "not visible", "not shown", "", "read --ro /etc/tool.conf"},
		{"/usr/lib/x", "not visible", "not shown", "", "read --ro /usr/lib/x"},
		{"/home/u", "the sandbox has its own", "private storage: /home/u", "", ""},
		{dir, "the sandbox has its own", "not shown", "", "read --ro " + dir + ", write --rw " + dir},
		{dir + "/ro/x", "not visible", "hidden: " + dir + "/ro/x", "flag --hide", ""},
		{"/", "the sandbox has its own", "not shown", "", ""},
		{"/run/x/socket", "not visible", "not shown", "", ""},
		{"/dev/kvm", "not visible", "not shown", "", "read --device /dev/kvm"},
		{"/dev/sda", "not visible", "not shown", "", ""},
		{"/etc/passwd", "the sandbox has its own", "made by sbxrun: /etc/passwd", "", ""},
		{"/dev/fuse", "visible and writable", "device: /dev/fuse", "", ""},
		{"/mnt/at/x", "the sandbox has its own", "writable: /mnt/at", "", ""},
		{"/mnt/at", "the sandbox has its own", "writable: /mnt/at", "", ""},
		{"/mnt", "the sandbox has its own", "not shown", "", ""},
		{"./a", "visible and writable", "writable: " + dir + "/ws", "workspace", ""},
		{"a", "visible and writable", "writable: " + dir + "/ws", "workspace", ""},
		{"../other", "not visible", "not shown", "", "read --ro " + dir + "/other, write --rw " + dir + "/other"},
		{"/proc/self", "the sandbox has its own", "sbxrun's own: /proc", "", ""},
		{"good.example:443", "reachable", "allow good.example", "", ""},
		{"bad.example:443", "not reachable", "default", "", "connect --allow-host bad.example:443"},
		{"ptrace", "refused", "system call filter strict", "", "call --seccomp default"},
		{"mount", "refused", "system call filter strict", "", ""},
		{"openat", "allowed", "system call filter strict", "", ""},
	} {
		w, err := Why(tt.what, p, f, "")
		if err != nil {
			t.Errorf("%s: %v", tt.what, err)
			continue
		}
		grants := ""
		for _, to := range []string{"read", "write", "connect", "call"} {
			if g := w.Grants[to]; g != "" {
				if grants != "" {
					grants += ", "
				}
				grants += to + " " + string(g)
			}
		}
		if w.Answer != tt.answer || w.Rule != tt.rule || w.Origin != tt.origin || grants != tt.grants {
			t.Errorf("%s: %+v", tt.what, w)
		}
	}
	if _, err := Why("not a host", p, f, ""); err == nil || driver.HintOf(err) == "" {
		t.Errorf("what is nothing: %v", err)
	}
}

// TestWhyLed: a secret is one by every name, also by the one that a link of the user's leads to.
func TestWhyLed(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"netrc", "other"} {
		if err := os.WriteFile(filepath.Join(home, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("netrc", filepath.Join(home, ".netrc")); err != nil {
		t.Fatal(err)
	}
	f := &Facts{Facts: profiles.Facts{Home: home, FS: HostFS{}}}
	p := &policy.Policy{OCI: &specs.Spec{}}
	for name, secret := range map[string]bool{"netrc": true, "other": false} {
		w, err := Why(filepath.Join(home, name), p, f, "")
		if err != nil || (w.Reason == driver.ReasonSecret) != secret || (len(w.Grants) == 0) != secret {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
}
