package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// A command is told to be missing only where it is certain: by what the sandbox
// shows, not by what the host has.
func TestLookup(t *testing.T) {
	dir := t.TempDir()
	host := func(name, content string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	host("usr/bin/tool", "\x7fELF", 0o755)
	host("usr/bin/plain", "x", 0o644)
	host("usr/bin/script", "#!/usr/bin/tool -x\n", 0o755)
	host("usr/bin/orphan", "#! /opt/tool\n", 0o755)
	host("usr/bin/nested", "#!/usr/bin/orphan\n", 0o755)
	host("usr/lib/real", "\x7fELF", 0o755)
	host("opt/tool", "\x7fELF", 0o755)
	link("tool", "usr/bin/alias")
	link("../lib/real", "usr/bin/up")
	link("/opt/tool", "usr/bin/away")
	link("/srv/tool", "usr/bin/moved") // dangling here, and not inside
	link("loop", "usr/bin/loop")
	// Of an untrusted workspace: who opens it waits for a writer.
	pipe := filepath.Join(dir, "usr/bin/pipe")
	if err := syscall.Mkfifo(pipe, 0o755); err != nil {
		t.Fatal(err)
	}
	if b, err := head(pipe); err == nil {
		t.Errorf("a pipe's head is %q", b)
	}
	host("usr/bin/text", "echo no script\n", 0o755)
	host("usr/bin/empty", "", 0o755)
	host("usr/bin/ontext", "#!/usr/bin/text\n", 0o755)
	unknown := syscall.ENOEXEC
	if otherFormats() {
		unknown = 0
	}

	ops := []mounts.Op{
		{Entry: mounts.Entry{Kind: mounts.Bind, Target: "/usr", Source: dir + "/usr"}},
		{Entry: mounts.Entry{Kind: mounts.Bind, Target: "/srv", Source: dir + "/opt"}},
		{Entry: mounts.Entry{Kind: mounts.Symlink, Target: "/bin", Source: "usr/bin"}},
		{Entry: mounts.Entry{Kind: mounts.Scratch, Target: "/tmp"}},
		{Entry: mounts.Entry{Kind: mounts.Bind, Target: "/tmp/in/opt", Source: dir + "/opt"}},
		{Entry: mounts.Entry{Kind: mounts.Proc, Target: "/proc"}},
		{Entry: mounts.Entry{Kind: mounts.File, Target: "/etc/passwd", Mode: 0o444}},
		{Entry: mounts.Entry{Kind: mounts.File, Target: "/etc/hook", Mode: 0o555}},
		{Entry: mounts.Entry{Kind: mounts.Mask, Target: "/usr/hidden"}},
	}
	const there, missing, denied = syscall.Errno(0), syscall.ENOENT, syscall.EACCES
	for _, tt := range []struct {
		command, path string
		want          syscall.Errno
	}{
		{"tool", "/usr/bin", there},
		{"tool", "/root/bin:/tmp/bin:/usr/bin", there},
		{"none", "/root/bin:/tmp/bin:/usr/bin", missing},
		{"tool", "/tmp/in:/tmp/in/opt", there},
		{"plain", "/tmp:/usr/bin", denied},
		{"text", "/usr/bin:/srv", unknown},
		{"empty", "/usr/bin", unknown},
		{"/usr/bin/ontext", "", unknown},
		{"pipe", "/usr/bin", denied},
		{"tool", "", missing},
		{"/tmp/none", "", missing},
		{"/tmp", "", denied},
		{"/tmp/in", "", denied},
		{"/etc", "", denied},
		{"/etc/passwd", "", denied},
		{"/etc/hook", "", there},
		{"/etc/none", "", missing},
		{"/usr/bin/script", "", there},
		{"/usr/bin/orphan", "", missing},
		{"/usr/bin/nested", "", there}, // the kernel follows several; this looks at one
		{"/usr/bin/alias", "", there},
		{"/usr/bin/up", "", there},
		{"/usr/bin/away", "", missing},
		{"/usr/bin/moved", "", there},
		{"/usr/bin/loop", "", there}, // not certain
		{"/bin/alias", "", there},
		{"/bin/up", "", there},
		{"/bin/none", "", missing},
		{"/usr/bin/tool/x", "", missing},
		{"/usr/bin/../lib/none", "", there}, // not certain
		{"/usr/hidden/x", "", missing},
		{"/proc/self/exe", "", there},
		{"./none", "", missing},
		{"./tool", "", there},
	} {
		p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{Args: []string{tt.command}, Cwd: "/usr/bin", Env: []string{"PATH=" + tt.path}}}}
		err := Lookup(p, ops)
		if tt.want == 0 && err != nil || tt.want != 0 && !errors.Is(err, tt.want) {
			t.Errorf("%s, PATH %s: %v, want %v", tt.command, tt.path, err, tt.want)
		}
	}
}
