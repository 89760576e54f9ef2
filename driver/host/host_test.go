package host

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

func testPolicy(t *testing.T, args ...string) *policy.Policy {
	return &policy.Policy{
		OCI: &specs.Spec{Process: &specs.Process{
			Args: args,
			Env:  []string{"PATH=" + os.Getenv("PATH"), "HOME=/private"},
			Cwd:  t.TempDir(),
		}},
		Limits:  policy.Limits{Output: 1 << 20, KillAfter: time.Second},
		Require: policy.LayerSeccomp,
		Degrade: policy.LayerLandlock,
	}
}

func run(t *testing.T, p *policy.Policy) *driver.Result {
	t.Helper()
	res, err := driver.Run(context.Background(), &Driver{Home: "/home/me"}, p, driver.RunOptions{Capture: true})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestRun(t *testing.T) {
	p := testPolicy(t, "sh", "-c", "echo $HOME; pwd; ps -o sid= -p $$ >/dev/null; exit 3")
	res := run(t, p)
	if want := "/home/me\n" + p.OCI.Process.Cwd + "\n"; res.Stdout != want {
		t.Errorf("stdout %q, want %q", res.Stdout, want)
	}
	if res.ExitCode != 3 || res.Reason != driver.ReasonExit || res.Sandboxed || res.Layers != 0 {
		t.Errorf("got %+v", res)
	}
	if want := policy.LayerSeccomp | policy.LayerLandlock; res.Degraded != want {
		t.Errorf("went without %v and says %v", want, res.Degraded)
	}
}

// The process group dies with the command, and with the time limit.
func TestGroup(t *testing.T) {
	for _, script := range []string{"sleep 600 & echo $!", "sleep 600 & echo $!; trap '' TERM; wait; sleep 600"} {
		p := testPolicy(t, "sh", "-c", script)
		p.Limits.KillAfter = 100 * time.Millisecond
		var res *driver.Result
		pid := 0
		// A busy machine may take longer than the limit to start the shell.
		for p.Limits.WallTime = 200 * time.Millisecond; pid == 0 && p.Limits.WallTime < time.Minute; p.Limits.WallTime *= 4 {
			res = run(t, p)
			for _, c := range strings.TrimSpace(res.Stdout) {
				pid = pid*10 + int(c-'0')
			}
		}
		if pid < 2 {
			t.Fatalf("no pid in %+v", res)
		}
		for end := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
			// A zombie that its new parent has not reaped is dead enough.
			if b, _ := os.ReadFile("/proc/" + strings.TrimSpace(res.Stdout) + "/stat"); strings.Contains(string(b), ") Z ") {
				break
			}
			if time.Now().After(end) {
				t.Errorf("%q: process %d lives", script, pid)
				break
			}
		}
	}
}

func TestStartErrors(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		command string
		want    syscall.Errno
	}{{"nonesuch-command", syscall.ENOENT}, {"/nonesuch", syscall.ENOENT}, {plain, syscall.EACCES}, {"/", syscall.EACCES}} {
		_, err := new(Driver).Start(context.Background(), testPolicy(t, tt.command), driver.Stdio{})
		var c *driver.CommandError
		if !errors.As(err, &c) || !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.command, err, tt.want)
		}
	}
	p := testPolicy(t, "true")
	p.OCI.Process.Cwd = "/nonesuch"
	_, err := new(Driver).Start(context.Background(), p, driver.Stdio{})
	var c *driver.CommandError
	if err == nil || errors.As(err, &c) {
		t.Errorf("a missing directory is no missing command: %v", err)
	}
}

func TestLookup(t *testing.T) {
	files := map[string]error{"/a/x": errNotExecutable, "/b/x": nil, "/a/y": errNotExecutable, "/root/v": syscall.EACCES, "/w/z": nil, "/w/./z": nil, "/w/d/z": nil}
	check := func(f string) error {
		if err, ok := files[f]; ok {
			return err
		}
		return syscall.ENOENT
	}
	for _, tt := range []struct {
		name, path, want string
		err              error
	}{
		{"x", "/a:/b", "/b/x", nil},           // what cannot be executed is passed over
		{"y", "/a:/b", "", errNotExecutable},  // and is the reason if nothing else is found
		{"v", "/root:/a", "", syscall.ENOENT}, // a directory that may not be searched
		{"z", ":/a:", "", syscall.ENOENT},     // an empty element is not the working directory
		{"z", "d", "/w/d/z", nil},             // a relative one is below it
		{"./z", "", "/w/./z", nil},            // a slash means no search
		{"/b/x", "", "/b/x", nil},
		{"", "/a", "", syscall.ENOENT},
	} {
		got, err := lookup(tt.name, "/w", []string{"PATH=" + tt.path}, check)
		if err != tt.err || err == nil && got != tt.want {
			t.Errorf("lookup %q in %q: %q, %v; want %q, %v", tt.name, tt.path, got, err, tt.want, tt.err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	missing := func(string) bool { return false }
	there := func(string) bool { return true }
	for _, tt := range []struct {
		home   string
		exists func(string) bool
		want   string
	}{{"/me", missing, "HOME=/me"}, {"/me", there, "HOME=/sandbox"}, {"", missing, "HOME=/sandbox"}} {
		got := environment([]string{"A=1", "HOME=/sandbox"}, tt.home, tt.exists)
		if !slices.Equal(got, []string{"A=1", tt.want}) {
			t.Errorf("got %v, want %s", got, tt.want)
		}
	}
}

func TestPty(t *testing.T) {
	p := testPolicy(t, "sh", "-c", "test -t 0 && test -t 1 && : </dev/tty && echo yes")
	p.OCI.Process.Terminal = true
	proc, err := new(Driver).Start(context.Background(), p, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := io.ReadAtLeast(proc.Pty(), b, 3)
	if err != nil || !strings.HasPrefix(string(b[:n]), "yes") {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if st, err := proc.Wait(); err != nil || st.ExitCode != 0 {
		t.Errorf("got %+v, %v", st, err)
	}
}

func TestClaims(t *testing.T) {
	if m := (&Driver{}).Describe().Claims.Missing(); len(m) != 0 {
		t.Errorf("claims: %v", m)
	}
}
