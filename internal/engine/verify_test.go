package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/bwrap"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/docker"
	"github.com/sbxrun/sbxrun/driver/gvisor"
	"github.com/sbxrun/sbxrun/internal/probe"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// claims is a driver that isolates by its own word only: in place of the
// canaries it says what it is told to.
type claims struct {
	driver.Basic
	driver.Fixed
	say    func(acts []string) string
	status driver.Status
	args   []string
}

func (*claims) Name() string                    { return "claims" }
func (*claims) Sandboxed() bool                 { return true }
func (*claims) Available(context.Context) error { return nil }
func (*claims) Check(*policy.Policy) error      { return nil }
func (c *claims) Start(_ context.Context, p *policy.Policy, s driver.Stdio) (driver.Process, error) {
	c.args = p.OCI.Process.Args
	s.Stdout.WriteString(c.say(c.args[2:]))
	return c, nil
}
func (*claims) Signal(syscall.Signal) error     { return nil }
func (*claims) Terminate() error                { return nil }
func (*claims) Kill() error                     { return nil }
func (*claims) Pty() *os.File                   { return nil }
func (c *claims) Wait() (*driver.Status, error) { st := c.status; return &st, nil }

// The self-test fails closed: only acts that were tried, and all of them
// denied, pass.
func TestSelfTestFailsClosed(t *testing.T) {
	all := func(held string) func([]string) string {
		return func(acts []string) string {
			var b strings.Builder
			for _, a := range acts {
				name, _, _ := strings.Cut(a, "=")
				b.WriteString(name + "\t" + held + "\tas told\n")
			}
			return b.String()
		}
	}
	layers := policy.LayerUser | policy.LayerSeccomp
	for _, tt := range []struct {
		name   string
		driver claims
		want   string // in the error; "" is none
	}{
		{"all held", claims{say: all("true"), status: driver.Status{Layers: layers}}, ""},
		{"nothing held", claims{say: all("false"), status: driver.Status{Layers: layers}}, "did not hold: as told"},
		{"nothing tried", claims{say: func([]string) string { return "" }, status: driver.Status{Layers: layers}}, "was not tried"},
		{"one not tried", claims{say: func(a []string) string { return all("true")(a[1:]) }, status: driver.Status{Layers: layers}}, "was not tried"},
		{"a layer missing", claims{say: all("true"), status: driver.Status{Layers: policy.LayerUser}}, "required and not enforced: seccomp"},
		{"crashed", claims{say: all("true"), status: driver.Status{Layers: layers, Signal: syscall.SIGSYS}}, "ended with signal"},
		{"starved", claims{say: func([]string) string { return "" }, status: driver.Status{Layers: layers, ExitCode: 2}}, "the self-test did not finish, and proved nothing: the program ended with exit 2"},
		{"starved, and one succeeded", claims{say: func(a []string) string { return all("false")(a[:1]) }, status: driver.Status{Layers: layers, ExitCode: 2}}, "did not hold: as told"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{Args: []string{"x"}, Cwd: "/"}}, Require: layers}
			checks, err := SelfTest(context.Background(), &tt.driver, p)
			if err != nil {
				t.Fatal(err)
			}
			if tt.driver.args[1] != probe.CanaryCommand || p.OCI.Process.Args[0] != "x" {
				t.Errorf("ran %q, and left %q in the run's own policy", tt.driver.args, p.OCI.Process.Args)
			}
			err = BoundaryError(checks)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			case err != nil && driver.ExitCodeOf(err) != driver.ExitSetup:
				t.Errorf("exit code %d", driver.ExitCodeOf(err))
			}
		})
	}
}

// made is a driver that is made of another program.
type made struct {
	claims
	name, program string
}

func (m *made) Name() string             { return m.name }
func (m *made) Version() string          { panic("the program was started for its version") }
func (m *made) Program() (string, error) { return m.program, nil }

// A self-test that passed vouches for its own driver only, and for the program that
// this was made of.
func TestVerifiedMark(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	mark := func(d driver.Driver, image string) string {
		p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{Args: []string{"x"}, Cwd: "/"}}}
		return verifiedMark(d, &profiles.Resolved{Policy: p, Image: image}, &Facts{})
	}
	home := t.TempDir()
	dir := filepath.Join(home, ".local/bin") // where programs are found
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	program := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, later := program("first"), program("later")
	program("docker")
	program("podman")
	t.Setenv("PATH", dir)
	seen := map[string]string{}
	for name, m := range map[string]string{
		"claims":      mark(&claims{}, ""),
		"one":         mark(&made{name: "one", program: first}, ""),
		"one, later":  mark(&made{name: "one", program: later}, ""),
		"two":         mark(&made{name: "two", program: first}, ""),
		"an image":    mark(docker.Driver{}, "a"),
		"another one": mark(docker.Driver{}, "b"),
		"podman":      mark(docker.Driver{Podman: true}, "a"),
	} {
		if seen[m] != "" || m == "" {
			t.Errorf("%s has the mark of %q: %q", name, seen[m], m)
		}
		seen[m] = name
	}
	one := &made{name: "one", program: first}
	before := mark(one, "")
	if mark(one, "") != before {
		t.Error("two marks for the same")
	}
	program("new")
	if err := os.Rename(filepath.Join(dir, "new"), first); err != nil {
		t.Fatal(err)
	}
	if mark(one, "") == before {
		t.Error("the mark outlived the program that it vouches for")
	}
	if m := mark(&made{name: "one", program: filepath.Join(dir, "none")}, ""); m != "" {
		t.Errorf("a program that is not there has a mark: %q", m)
	}
}

// What must succeed is tried where the policy lets it: in storage of the sandbox's
// own, wherever that is.
func TestWhereToWrite(t *testing.T) {
	tmpfs := func(at string, options ...string) specs.Mount {
		return specs.Mount{Destination: at, Type: "tmpfs", Options: options}
	}
	bind := specs.Mount{Destination: "/tmp", Type: "bind", Source: "/srv", Options: []string{"ro"}}
	dev, home := tmpfs("/dev", "mode=0755"), tmpfs("/home/sandbox", "nosuid", "mode=0700")
	for _, tt := range []struct {
		mounts []specs.Mount
		want   string // "" leaves it out
	}{
		{[]specs.Mount{dev, tmpfs("/tmp", "mode=1777"), home}, "/tmp"},
		{[]specs.Mount{dev, tmpfs("/run", "mode=0755"), home}, "/home/sandbox"},
		{[]specs.Mount{tmpfs("/tmp", "mode=1777"), home, bind}, "/home/sandbox"},
		{[]specs.Mount{tmpfs("/tmp", "mode=1777", "ro"), home}, "/home/sandbox"},
		{[]specs.Mount{dev, bind}, ""},
		{nil, ""},
	} {
		p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}, Mounts: tt.mounts}}
		tcp, unix := listen(t, "tcp", "127.0.0.1:0"), listen(t, "unix", "@"+t.Name())
		acts := (&bait{secret: "/none", tcp: tcp, unix: unix}).acts(p, describe(&claims{}))
		tcp.Close()
		unix.Close()
		got := ""
		for _, a := range acts {
			if s, ok := strings.CutPrefix(a, "write-private="); ok {
				got = s
			}
		}
		if got != tt.want {
			t.Errorf("%v: %q, want %q", tt.mounts, got, tt.want)
		}
	}
}

func listen(t *testing.T, network, addr string) net.Listener {
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// What a driver says of itself decides how its boundary is tried: never less than
// that root has no power and the host's devices are out of reach.
func TestActsOfDrivers(t *testing.T) {
	tcp, unix := listen(t, "tcp", "127.0.0.1:0"), listen(t, "unix", "@"+t.Name())
	defer tcp.Close()
	defer unix.Close()
	for _, tt := range []struct {
		driver driver.Driver
		uid    uint32
		want   string
	}{
		{native.Driver{}, 1000, "make-device become-root"},
		{native.Driver{}, 0, "make-device use-root"},
		{bwrap.Driver{}, 1000, "make-device become-root"},
		{gvisor.Driver{Runtime: "runc"}, 1000, "make-device use-root"},
		{gvisor.Driver{}, 1000, "use-device use-root"},
		{&claims{}, 1000, "make-device become-root"},
	} {
		p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{User: specs.User{UID: tt.uid}}}}
		var got []string
		for _, a := range (&bait{secret: "/none", tcp: tcp, unix: unix}).acts(p, describe(tt.driver)) {
			name, _, _ := strings.Cut(a, "=")
			if strings.HasSuffix(name, "-device") || strings.HasSuffix(name, "-root") {
				got = append(got, name)
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s as %d: %s, want %s", tt.driver.Name(), tt.uid, s, tt.want)
		}
	}
}

// What wraps a driver loses none of its abilities, and gives it none.
func TestWrappersForward(t *testing.T) {
	for _, d := range []driver.Driver{native.Driver{}, &made{}} {
		for _, w := range []driver.Driver{KeepsChanges{Driver: d}, &Follows{Driver: d}, &pooled{Driver: d}} {
			want := d.Describe().Stays
			if err := Stays(w, "sessions", ""); (err == nil) != want {
				t.Errorf("%T of %T: %v", w, d, err)
			}
			if _, err := w.Prepare(t.Context(), &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{Cwd: "relative"}}}); errors.Is(err, errors.ErrUnsupported) == want {
				t.Errorf("%T of %T: prepare: %v", w, d, err)
			}
		}
	}
}
