package landlocked

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/policy"
)

type fakeHost map[string]rootfs.Node

func (h fakeHost) Lookup(p string) (rootfs.Node, error) { return h[p], nil }
func (h fakeHost) List(string) ([]string, error) {
	return []string{"bin", "dev", "etc", "proc", "sys", "usr"}, nil
}

var (
	dir  = rootfs.Node{Kind: rootfs.NodeDir}
	file = rootfs.Node{Kind: rootfs.NodeFile}
	host = fakeHost{"/": dir, "/usr": dir, "/etc": dir, "/bin": {Kind: rootfs.NodeSymlink, Link: "usr/bin", Real: "/usr/bin"}, "/ws": dir, "/etc/hosts": file, "/dev": dir, "/sys": dir, "/proc": dir}
)

func testPolicy() *policy.Policy {
	return &policy.Policy{
		OCI: &specs.Spec{
			Process: &specs.Process{Args: []string{"true"}, Cwd: "/ws", NoNewPrivileges: true, User: specs.User{UID: 1000, GID: 1000},
				Env: []string{"PATH=/usr/bin", "HOME=/home/sandbox"}},
			Mounts: []specs.Mount{{Destination: "/home/sandbox", Type: "tmpfs"}, {Destination: "/tmp", Type: "tmpfs"}, {Destination: "/proc", Type: "proc"}},
			Linux:  &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}}},
		},
		Files: []policy.FileRule{
			{Path: "/usr", Access: policy.ReadExec}, {Path: "/bin", Access: policy.ReadExec}, {Path: "/ws", Access: policy.All},
			{Path: "/etc/hosts", Access: policy.Read}, {Path: "/absent", Access: policy.Read, Optional: true}, {Path: "/home/u/.ssh"},
		},
		Degrade: policy.LayerNamespaces,
	}
}

func TestRules(t *testing.T) {
	r, err := Rules(testPolicy(), host, "/run/private")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, x := range r.Rules {
		fmt.Fprintf(&b, "%s %#x file=%v optional=%v\n", x.Path, x.Access, x.IsFile, x.Optional)
	}
	const want = `/etc/hosts 0xc file=true optional=false
/usr 0xd file=false optional=false
/ws 0x77bf file=false optional=false
/proc 0xc file=false optional=true
/dev 0x8 file=false optional=true
/dev/null 0x8006 file=true optional=true
/dev/zero 0x8006 file=true optional=true
/dev/full 0x8006 file=true optional=true
/dev/random 0x8006 file=true optional=true
/dev/urandom 0x8006 file=true optional=true
/dev/tty 0x8006 file=true optional=true
/run/private 0x77bf file=false optional=false
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	if !r.DenyTCP {
		t.Error("TCP is not denied")
	}
}

// TestWholeRoot: the whole host is not its devices and the kernel's own files.
func TestWholeRoot(t *testing.T) {
	p := testPolicy()
	p.Files = []policy.FileRule{{Path: "/", Access: policy.ReadExec}}
	r, err := Rules(p, host, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Rules {
		if x.Path == "/" || x.Path == "/sys" || x.Path == "/dev" && x.Access&0x6 != 0 || x.Path == "/proc" && x.Access&0x2 != 0 {
			t.Errorf("%s %#x", x.Path, x.Access)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := check(testPolicy()); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(p *policy.Policy){
		"namespaces": func(p *policy.Policy) { p.Degrade = 0 },
		"required":   func(p *policy.Policy) { p.Require = policy.LayerPID },
		"hidden":     func(p *policy.Policy) { p.Files = append(p.Files, policy.FileRule{Path: "/ws/.env"}) },
		"nested": func(p *policy.Policy) {
			p.Files = append(p.Files, policy.FileRule{Path: "/ws/.git", Access: policy.Read})
		},
		"another place": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/x", Source: "/y", Type: "bind"})
		},
		"storage in what is shown": func(p *policy.Policy) {
			p.Files = append(p.Files, policy.FileRule{Path: "/home", Access: policy.ReadExec})
		},
		"published": func(p *policy.Policy) {
			p.Egress.Publish = []policy.Publish{{Address: "127.0.0.1", HostPort: 8080, Port: 80}}
		},
	} {
		p := testPolicy()
		change(p)
		var u *driver.UnsupportedError
		if err := check(p); !errors.As(err, &u) || u.Fix == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if m := (Driver{}).Describe().Claims.Missing(); len(m) != 0 {
		t.Errorf("claims: %v", m)
	}
}

func TestEnvironment(t *testing.T) {
	p := testPolicy()
	const git = " GIT_CONFIG_NOSYSTEM=1"
	if got := strings.Join(environment(p, "/r"), " "); got != "PATH=/usr/bin HOME=/r/home TMPDIR=/r/tmp"+git {
		t.Error(got)
	}
	p.OCI.Process.Env = []string{"HOME=/home/u", "TMPDIR=/ws/tmp"}
	if got := strings.Join(environment(p, "/r"), " "); got != "HOME=/home/u TMPDIR=/ws/tmp"+git {
		t.Error(got)
	}
	// What the policy says itself, and what it shows.
	p.OCI.Process.Env = append(p.OCI.Process.Env, "GIT_CONFIG_NOSYSTEM=")
	if got := strings.Join(environment(p, "/r"), " "); got != "HOME=/home/u TMPDIR=/ws/tmp GIT_CONFIG_NOSYSTEM=" {
		t.Error(got)
	}
	p.OCI.Process.Env = p.OCI.Process.Env[:2]
	p.Files = append(p.Files, policy.FileRule{Path: "/etc", Access: policy.Read})
	if got := strings.Join(environment(p, "/r"), " "); got != "HOME=/home/u TMPDIR=/ws/tmp" {
		t.Error(got)
	}
}

// TestDirectory: a command without a workspace starts in a home that is there.
func TestDirectory(t *testing.T) {
	p := testPolicy()
	home := ""
	for _, e := range p.OCI.Process.Env {
		if h, ok := strings.CutPrefix(e, "HOME="); ok {
			home = h
		}
	}
	for cwd, want := range map[string]string{"/ws": "/ws", home: "/r/home", home + "/x": home + "/x"} {
		p.OCI.Process.Cwd = cwd
		if got := directory(p, "/r"); got != want {
			t.Errorf("%s: %s, want %s", cwd, got, want)
		}
	}
	p.OCI.Process.Env, p.OCI.Process.Cwd = []string{"HOME=/home/u"}, "/home/u"
	if got := directory(p, "/r"); got != "/home/u" {
		t.Error(got)
	}
}
