package containeruse

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// plain is a policy without anything that an environment does not have.
func plain(dir string, command ...string) *policy.Policy {
	return &policy.Policy{
		OCI:    &specs.Spec{Process: &specs.Process{Args: command, Cwd: dir, NoNewPrivileges: true}},
		Files:  []policy.FileRule{{Path: dir, Access: policy.All}},
		Egress: policy.Egress{Mode: policy.EgressHost},
		// What container-use has no word for, and the caller agreed to.
		Degrade: policy.LayerNoNewPrivs,
		Limits:  policy.Limits{Output: 1 << 20},
	}
}

// put makes a program cu where programs are found.
func put(t *testing.T, text string) {
	t.Helper()
	home := t.TempDir()
	bin := filepath.Join(home, ".local/bin")
	if err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(filepath.Join(bin, "cu"), []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("PATH", bin+":/usr/bin:/bin")
}

// standIn puts the stand-in for cu on PATH, and returns what it was called with.
func standIn(t *testing.T, env ...string) func() string {
	t.Helper()
	program, err := os.ReadFile("testdata/cu")
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	put(t, string(program))
	t.Setenv("CU_LOG", log)
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		t.Setenv(k, v)
	}
	return func() string {
		b, _ := os.ReadFile(log)
		return string(b)
	}
}

func TestStandIn(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		driver Driver
		calls  []string
	}{
		{"new", Driver{Image: "node:20"}, []string{"environment create --help", "environment create --json --image node:20", "environment run fancy-mallard -- sh -c echo out; exit 7", "environment delete fancy-mallard"}},
		{"again", Driver{ID: "old-duck"}, []string{"environment create --help", "environment run old-duck -- sh -c echo out; exit 7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			calls := standIn(t)
			res, err := driver.Run(context.Background(), tt.driver, plain(dir, "sh", "-c", "echo out; exit 7"), driver.RunOptions{Capture: true})
			if err != nil || res.Stdout != "out\n" || res.ExitCode != 7 || res.Layers != 0 {
				t.Errorf("%+v, %v", res, err)
			}
			var got []string
			for line := range strings.Lines(calls()) {
				_, call, _ := strings.Cut(strings.TrimSpace(line), ": ")
				got = append(got, call)
			}
			if strings.Join(got, "\n") != strings.Join(tt.calls, "\n") {
				t.Errorf("called with %q", got)
			}
			if !strings.Contains(calls(), dir+": environment run") {
				t.Errorf("not run in the workspace: %s", calls())
			}
		})
	}
}

func TestTimeoutDeletes(t *testing.T) {
	calls := standIn(t)
	p := plain(t.TempDir(), "sleep", "60")
	p.Limits.WallTime, p.Limits.KillAfter = 300*time.Millisecond, time.Second
	res, err := driver.Run(context.Background(), Driver{}, p, driver.RunOptions{Capture: true})
	if err != nil || res.Reason != driver.ReasonTimeout || !strings.Contains(calls(), "environment delete fancy-mallard") {
		t.Errorf("%+v, %v\n%s", res, err, calls())
	}
}

func TestFailures(t *testing.T) {
	for env, want := range map[string]string{"CU_FAIL=1": "no git repository", "CU_ODD=1": "no JSON"} {
		standIn(t, env)
		res, err := driver.Run(context.Background(), Driver{}, plain(t.TempDir(), "true"), driver.RunOptions{Capture: true})
		if err == nil || res.Code != driver.CodeCreationFailed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", env, res, err)
		}
		os.Unsetenv(strings.SplitN(env, "=", 2)[0])
	}
	var u *driver.UnavailableError
	t.Setenv("PATH", t.TempDir())
	if err := (Driver{}).Available(context.Background()); !errors.As(err, &u) {
		t.Error(err)
	}
	// A program of that name that does not have the commands.
	put(t, "#!/bin/sh\necho unknown command >&2; exit 1\n")
	if err := (Driver{}).Available(context.Background()); !errors.As(err, &u) || !strings.Contains(u.Fix, "MCP") {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	for name, change := range map[string]func(*policy.Policy){
		"no network":      func(p *policy.Policy) { p.Egress.Mode = policy.EgressNone },
		"another path":    func(p *policy.Policy) { p.Files = append(p.Files, policy.FileRule{Path: "/x", Access: policy.All}) },
		"read-only":       func(p *policy.Policy) { p.Files[0].Access = policy.ReadExec },
		"a filter":        func(p *policy.Policy) { p.Seccomp = "strict" },
		"a layer":         func(p *policy.Policy) { p.Require = policy.LayerCgroupMemory },
		"privileges kept": func(p *policy.Policy) { p.Degrade = 0 },
	} {
		p := plain("/w", "true")
		change(p)
		var e *driver.UnsupportedError
		if err := (Driver{}).Check(p); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Driver{}).Check(plain("/w", "true")); err != nil {
		t.Error(err)
	}
	if err := (Driver{ID: "--force"}).Check(plain("/w", "true")); driver.CodeOf(err) != driver.CodeInvalid {
		t.Error(err)
	}
	if missing := (Driver{}).Describe().Claims.Missing(); len(missing) != 0 {
		t.Errorf("says nothing of %q", missing)
	}
}

func TestParseID(t *testing.T) {
	for in, ok := range map[string]bool{`{"id":"a-b"}`: true, `{"id":""}`: false, `{"id":"--x"}`: false, `{"id":"a b"}`: false, `x`: false, `{}`: false} {
		if id, err := parseID([]byte(in)); (err == nil) != ok {
			t.Errorf("%s: %q, %v", in, id, err)
		}
	}
}
