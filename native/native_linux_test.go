package native_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// resolve returns the policy strict for a command in dir. Cgroups are left out:
// they have tests of their own, and not every user can have them.
func resolve(tb testing.TB, dir string, change func(*profiles.Request), command ...string) *policy.Policy {
	tb.Helper()
	zero, zeroF, zeroI := uint64(0), float64(0), int64(0)
	req := &profiles.Request{Command: command, Dir: dir, Memory: &zero, CPUs: &zeroF, Pids: &zeroI}
	if change != nil {
		change(req)
	}
	r, err := profiles.Resolve(req, &profiles.Facts{
		Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/"),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return r.Policy
}

// output runs a policy and returns what the command wrote.
func output(t *testing.T, p *policy.Policy) (string, *driver.Result, error) {
	t.Helper()
	res, err := driver.Run(context.Background(), native.Driver{}, p, driver.RunOptions{Capture: true})
	return res.Stdout + res.Stderr, res, err
}

// TestMountTable: what the command sees mounted is what was mounted for it, and
// nothing of the host's tree is left under or behind it.
func TestMountTable(t *testing.T) {
	dir := t.TempDir()
	p := resolve(t, dir, nil, "cat", "/proc/self/mountinfo")
	out, res, err := output(t, p)
	if err != nil {
		t.Fatal(err, res)
	}
	low, err := rootfs.Lower(native.Name, p, rootfs.HostFS{})
	if err != nil {
		t.Fatal(err)
	}
	ops, err := low.Tree.Ops()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"/": true}
	for _, o := range ops {
		switch o.Kind.String() {
		case "dir", "symlink", "file":
		default:
			want[o.Target] = true
		}
	}
	mounted(t, out, want)

	// The same in sandboxes that stay, which enter their root before it is complete.
	ctx := context.Background()
	inside := func(b driver.Sandbox, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		proc, err := b.Exec(ctx, &specs.Process{Args: []string{"cat", "/proc/self/mountinfo"}}, driver.Stdio{Stdout: w})
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		out, _ := io.ReadAll(r)
		if _, err := proc.Wait(); err != nil {
			t.Error(err)
		}
		mounted(t, string(out), want)
	}
	inside(native.Driver{}.Open(ctx, p))
	base := *p
	base.Files = slices.DeleteFunc(slices.Clone(p.Files), func(f policy.FileRule) bool { return f.Path == dir })
	q, err := native.Driver{}.Prepare(ctx, &base)
	if err != nil {
		t.Fatal(err)
	}
	inside(q.Complete(ctx, p))
}

// mounted compares a table of mounts with what is to be in it.
func mounted(t *testing.T, table string, want map[string]bool) {
	t.Helper()
	seen := map[string]bool{}
	root := ""
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		f := strings.Fields(line)
		id, parent, target, options := f[0], f[1], f[4], f[5]
		if seen[target] {
			t.Errorf("%s is mounted twice", target)
		}
		seen[target] = true
		if !want[target] {
			t.Errorf("not ours: %s", line)
		}
		if target == "/" {
			root = id
			if !strings.Contains(options, "ro") {
				t.Errorf("the root is writable: %s", line)
			}
		} else if root == "" || parent == "0" {
			t.Errorf("not below the root: %s", line)
		}
		if !strings.Contains(options, "nosuid") {
			t.Errorf("not nosuid: %s", line)
		}
		if strings.Contains(line, "shared:") || strings.Contains(line, "master:") {
			t.Errorf("mounts of the host propagate: %s", line)
		}
	}
	for target := range want {
		if !seen[target] {
			t.Errorf("%s is not mounted", target)
		}
	}
}

// TestPrivateStorageInBind: private storage below a directory of the host is not
// that directory.
func TestPrivateStorageInBind(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o777); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(inner, "hosts"), nil, 0o644)
	p := resolve(t, dir, func(r *profiles.Request) { r.Tmpfs = []profiles.Tmpfs{{Path: inner}} },
		"sh", "-c", "ls inner; touch inner/private shared")
	out, res, err := output(t, p)
	if err != nil || res.ExitCode != 0 || out != "" {
		t.Errorf("%q, %+v, %v", out, res, err)
	}
	if _, err := os.Stat(filepath.Join(inner, "private")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("private storage is the host's directory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "shared")); err != nil {
		t.Errorf("the workspace is not shared: %v", err)
	}
}

// TestSwappedSource: a source that became a symbolic link after the policy was
// resolved is refused, and what it leads to is not shown.
func TestSwappedSource(t *testing.T) {
	top := t.TempDir()
	real := filepath.Join(top, "parent", "ws")
	secret := filepath.Join(top, "secret", "ws")
	for _, d := range []string{real, secret} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	p := resolve(t, real, nil, "ls")
	if out, res, err := output(t, p); err != nil || res.ExitCode != 0 {
		t.Fatalf("control: %q, %v", out, err)
	}
	os.Rename(filepath.Join(top, "parent"), filepath.Join(top, "moved"))
	os.Symlink(filepath.Join(top, "secret"), filepath.Join(top, "parent"))
	_, res, err := output(t, p)
	if !errors.Is(err, syscall.ELOOP) || res.Reason != driver.ReasonSetup || res.ExitCode != driver.ExitSetup {
		t.Errorf("%+v, %v; want ELOOP", res, err)
	}
}

// TestDirectoryAsStream: a directory as a standard stream would be a way out.
func TestDirectoryAsStream(t *testing.T) {
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	p := resolve(t, t.TempDir(), nil, "true")
	for name, stdio := range map[string]driver.Stdio{
		"stdin": {Stdin: dir}, "extra": {Extra: []*os.File{dir}},
	} {
		proc, err := native.Driver{}.Start(context.Background(), p, stdio)
		if !errors.Is(err, syscall.EISDIR) {
			t.Errorf("%s: %v, %v; want EISDIR", name, proc, err)
		}
	}
}

// TestDeviceNodes: the nodes in /dev are the host's, and their owner may be the
// command's id. Neither by path nor through a standard stream can they change.
func TestDeviceNodes(t *testing.T) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before, err := null.Stat()
	if err != nil {
		t.Fatal(err)
	}
	const script = `import os
for what in 0, 1, "/dev/null", "/dev/stdin":
    for act in (lambda: os.chmod(what, 0o600)), (lambda: os.utime(what)):
        try: act(); os.write(2, b"changed\n")
        except OSError as e: os.write(2, (e.strerror + "\n").encode())
os.write(1, b"x"); assert os.read(0, 1) == b""
`
	p := resolve(t, t.TempDir(), nil, "/usr/bin/python3", "-c", script)
	r, w, _ := os.Pipe()
	defer r.Close()
	proc, err := native.Driver{}.Start(context.Background(), p, driver.Stdio{Stdin: null, Stdout: null, Stderr: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := proc.Wait(); err != nil || st.ExitCode != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	out, _ := io.ReadAll(r)
	if want := strings.Repeat("Read-only file system\n", 8); string(out) != want {
		t.Errorf("%q", out)
	}
	if after, _ := os.Stat("/dev/null"); after.Mode() != before.Mode() || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the host's /dev/null changed: %v %v", after.Mode(), after.ModTime())
	}
}

// TestStreamOrder: any stream may be any descriptor of this process.
func TestStreamOrder(t *testing.T) {
	r, w, _ := os.Pipe()
	defer r.Close()
	// stderr and stdout are one file, and stdin is a device of the sandbox.
	p := resolve(t, t.TempDir(), nil, "sh", "-c", "cat; echo out; echo err >&2; echo three >&3")
	proc, err := native.Driver{}.Start(context.Background(), p, driver.Stdio{Stdout: w, Stderr: w, Extra: []*os.File{w, nil, w}})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := proc.Wait(); err != nil || st.ExitCode != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if out, _ := io.ReadAll(r); string(out) != "out\nerr\nthree\n" {
		t.Errorf("%q", out)
	}
}

// TestUserNamespaceLimit: no user namespace can be made inside even where no
// filter forbids it.
func TestUserNamespaceLimit(t *testing.T) {
	p := resolve(t, t.TempDir(), nil, "unshare", "-U", "true")
	p.Seccomp = ""
	p.Require &^= policy.LayerSeccomp | policy.LayerProtect
	p.Protect = nil // the guard's filter refuses them, too
	out, res, err := output(t, p)
	if err != nil || res.ExitCode == 0 || !strings.Contains(out, "No space left") {
		t.Errorf("%q, %+v, %v; want ENOSPC", out, res, err)
	}
}

// TestKeyring: the commands of a sandbox share a session keyring, since a user may have
// 200 keys; it is neither the caller's nor another sandbox's.
func TestKeyring(t *testing.T) {
	own, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		t.Logf("the test has none: %v", err)
	}
	script := fmt.Sprintf("print syscall(%d, %d, %d, 0), qq(\n)", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_SESSION_KEYRING)
	seen := map[string]bool{strconv.Itoa(own): true}
	for range 2 {
		p := resolve(t, t.TempDir(), nil, "none")
		p.Seccomp, p.Protect = "", nil // both refuse the call
		p.Require &^= policy.LayerSeccomp | policy.LayerProtect
		b, err := native.Driver{}.Open(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		var ids [2]string
		for i := range ids {
			r, w, _ := os.Pipe()
			proc, err := b.Exec(t.Context(), &specs.Process{Args: []string{"/usr/bin/perl", "-e", script}}, driver.Stdio{Stdout: w, Stderr: w})
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			out, _ := io.ReadAll(r)
			r.Close()
			if st, err := proc.Wait(); err != nil || st.ExitCode != 0 {
				t.Fatalf("%+v, %v: %s", st, err, out)
			}
			ids[i] = strings.TrimSpace(string(out))
		}
		if n, err := strconv.Atoi(ids[0]); err != nil || n <= 0 || ids[0] != ids[1] || seen[ids[0]] {
			t.Errorf("keyrings %q; the test's and those of others: %v", ids, seen)
		}
		seen[ids[0]] = true
	}
}

// TestExtraFiles: files passed on purpose arrive as 3, 4, …, and nothing else.
func TestExtraFiles(t *testing.T) {
	r1, w1, _ := os.Pipe()
	r2, w2, _ := os.Pipe()
	defer r1.Close()
	defer r2.Close()
	p := resolve(t, t.TempDir(), nil, "sh", "-c", "echo three >&3; echo four >&4; ls /proc/self/fd | wc -w >&4")
	proc, err := native.Driver{}.Start(context.Background(), p, driver.Stdio{Extra: []*os.File{w1, w2}})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := proc.Wait(); err != nil || st.ExitCode != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	w1.Close()
	w2.Close()
	three, _ := io.ReadAll(r1)
	four, _ := io.ReadAll(r2)
	// ls has one more, for the directory that it lists.
	if string(three) != "three\n" || string(four) != "four\n6\n" {
		t.Errorf("%q, %q", three, four)
	}
}

func TestAvailable(t *testing.T) {
	if err := (native.Driver{}).Available(context.Background()); err != nil {
		t.Error(err)
	}
}

func BenchmarkRun(b *testing.B) {
	p := resolve(b, b.TempDir(), nil, "/bin/true")
	for b.Loop() {
		res, err := driver.Run(context.Background(), native.Driver{}, p, driver.RunOptions{})
		if err != nil || res.ExitCode != 0 {
			b.Fatal(res, err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	p := resolve(b, b.TempDir(), nil, "/bin/true")
	for b.Loop() {
		if err := (native.Driver{}).Check(p); err != nil {
			b.Fatal(err)
		}
	}
}
