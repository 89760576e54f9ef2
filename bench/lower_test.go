package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// example has an entry of each kind.
func example(t *testing.T) *sandbox {
	t.Helper()
	p := &policy.Policy{OCI: &specs.Spec{
		Hostname: "box",
		Process:  &specs.Process{Cwd: "/work", Env: []string{"A=b"}, User: specs.User{UID: 1000, GID: 1001}},
	}}
	s, err := newSandbox(p, &mounts.Tree{ScratchBytes: 1 << 20, ScratchInodes: 100, Entries: []mounts.Entry{
		{Kind: mounts.Bind, Target: "/usr", Source: "/usr", Attr: mounts.ReadOnly, IsDir: true},
		{Kind: mounts.Symlink, Target: "/bin", Source: "usr/bin"},
		{Kind: mounts.File, Target: "/etc/hosts", Data: "a\tb\n\\c\n", Mode: 0o444},
		{Kind: mounts.Proc, Target: "/proc", Attr: mounts.NoExec},
		{Kind: mounts.Mask, Target: "/proc/kcore", Optional: true},
		{Kind: mounts.Mask, Target: "/proc/irq", IsDir: true, Optional: true},
		{Kind: mounts.Mask, Target: "/proc/there-is-no-such-file", Optional: true},
		{Kind: mounts.Readonly, Target: "/proc/sys", Optional: true},
		{Kind: mounts.Readonly, Target: "/proc/fs", Optional: true},
		{Kind: mounts.Dir, Target: "/dev"},
		{Kind: mounts.Device, Target: "/dev/null", Source: "/dev/null", Attr: mounts.NoExec},
		{Kind: mounts.Devpts, Target: "/dev/pts", Attr: mounts.NoExec},
		{Kind: mounts.Symlink, Target: "/dev/ptmx", Source: "pts/ptmx"},
		{Kind: mounts.Mqueue, Target: "/dev/mqueue", Attr: mounts.NoExec},
		{Kind: mounts.Scratch, Target: "/tmp", Mode: 0o1777},
		{Kind: mounts.Tmpfs, Target: "/run", Size: 4096},
		{Kind: mounts.Bind, Target: "/work", Source: "/srv/work", IsDir: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBwrapArguments(t *testing.T) {
	if _, err := os.Stat("/proc/kcore"); err != nil {
		t.Skip("the masks are of files that Linux has in /proc")
	}
	dir := t.TempDir()
	args, files, missing, err := example(t).bwrap("/filter", dir, false)
	if err != nil {
		t.Fatal(err)
	}
	want := "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup" +
		" --die-with-parent --new-session --cap-drop ALL --uid 1000 --gid 1001 --hostname box --seccomp 3" +
		" --ro-bind /usr /usr --symlink usr/bin /bin --perms 0755 --dir /etc --perms 0444 --file 4 /etc/hosts" +
		" --proc /proc --ro-bind /dev/null /proc/kcore --ro-bind DIR/nothing /proc/irq --dev /dev --mqueue /dev/mqueue" +
		" --perms 1777 --size 1048576 --tmpfs /tmp --perms 0755 --size 4096 --tmpfs /run --bind /srv/work /work" +
		" --remount-ro / --chdir /work"
	if got := strings.ReplaceAll(strings.Join(args, " "), dir, "DIR"); got != want {
		t.Errorf("arguments\n got %s\nwant %s", got, want)
	}
	if len(files) != 2 || files[0] != "/filter" {
		t.Fatalf("files = %q", files)
	}
	if content, err := os.ReadFile(files[1]); err != nil || string(content) != "a\tb\n\\c\n" {
		t.Errorf("content of the file for descriptor 4: %q, %v", content, err)
	}
	if !slices.Equal(missing, []string{"read-only /proc/fs"}) {
		t.Errorf("missing = %q", missing)
	}
}

func TestFloorPlan(t *testing.T) {
	if _, err := os.Stat("/proc/kcore"); err != nil {
		t.Skip("the masks are of files that Linux has in /proc")
	}
	got, err := example(t).floorPlan()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"root 1048576 100",
		"dir 0 /.mask.d",
		"file 0 /.mask.f ",
		"dir 755 /usr", "bind /usr /usr nosuid,ro,nodev",
		"symlink usr/bin /bin",
		"dir 755 /etc", `file 444 /etc/hosts a\tb\n\\c\n`,
		"dir 755 /proc", "mount proc /proc nosuid,noexec,nodev -",
		"bind ./.mask.f /proc/kcore ro,nosuid,nodev,noexec",
		"bind ./.mask.d /proc/irq ro,nosuid,nodev,noexec",
		"bind ./proc/sys /proc/sys nosuid,ro",
		"bind ./proc/fs /proc/fs nosuid,ro",
		"dir 755 /dev",
		"file 444 /dev/null ", "bind /dev/null /dev/null nosuid,noexec",
		"dir 755 /dev/pts", "mount devpts /dev/pts nosuid,noexec ptmxmode=0666,mode=0620",
		"symlink pts/ptmx /dev/ptmx",
		"dir 755 /dev/mqueue", "mount mqueue /dev/mqueue nosuid,noexec,nodev -",
		"dir 1777 /tmp", "bind ./tmp /tmp nosuid,nodev",
		"dir 755 /run", "mount tmpfs /run nosuid,nodev mode=755,size=4096",
		"dir 755 /work", "bind /srv/work /work nosuid,nodev",
	}, "\n") + "\n"
	if got = strings.ReplaceAll(got, "\t", " "); got != want {
		t.Errorf("plan\n got %s\nwant %s", got, want)
	}
	s := example(t)
	s.ops[0].Source = "/a\tb"
	if _, err := s.floorPlan(); err == nil {
		t.Error("a tab in a path is taken for the end of a field")
	}
}

func TestOCIBundle(t *testing.T) {
	if _, err := os.Stat("/proc/kcore"); err != nil {
		t.Skip("the masks are of files that Linux has in /proc")
	}
	dir := t.TempDir()
	spec, err := example(t).ociBundle(dir, []string{"/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, m := range spec.Mounts {
		at = append(at, m.Destination+":"+m.Type)
	}
	want := "/dev:tmpfs /usr:bind /proc:proc /dev/pts:devpts /dev/mqueue:mqueue /tmp:tmpfs /run:tmpfs /work:bind"
	if got := strings.Join(at, " "); got != want {
		t.Errorf("mounts\n got %s\nwant %s", got, want)
	}
	if link, err := os.Readlink(filepath.Join(dir, "rootfs", "bin")); err != nil || link != "usr/bin" {
		t.Errorf("bin links to %q, %v", link, err)
	}
	if !slices.Equal(spec.Linux.MaskedPaths, []string{"/proc/kcore", "/proc/irq"}) {
		t.Errorf("masked = %q", spec.Linux.MaskedPaths)
	}
}
