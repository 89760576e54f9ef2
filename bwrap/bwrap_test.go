package bwrap

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func testPolicy() *policy.Policy {
	return &policy.Policy{
		OCI: &specs.Spec{
			Hostname: "sandbox",
			Process: &specs.Process{Args: []string{"true"}, Cwd: "/ws", NoNewPrivileges: true, User: specs.User{UID: 1000, GID: 1001},
				Env: []string{"PATH=/usr/bin:rel::/bin", "ODD=a=b --bind / /", "EMPTY="}},
			Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}, {Type: "network"}, {Type: "ipc"}, {Type: "uts"}, {Type: "cgroup"}}},
		},
	}
}

func testTree() *mounts.Tree {
	return &mounts.Tree{ScratchBytes: 1 << 20, Entries: []mounts.Entry{
		{Kind: mounts.Bind, Target: "/usr", Source: "/usr", Attr: mounts.ReadOnly, IsDir: true},
		{Kind: mounts.Symlink, Target: "/bin", Source: "usr/bin"},
		{Kind: mounts.Proc, Target: "/proc", Attr: mounts.ReadOnly | mounts.NoExec},
		{Kind: mounts.Dir, Target: "/dev"},
		{Kind: mounts.Device, Target: "/dev/null", Source: "/dev/null"},
		{Kind: mounts.Device, Target: "/dev/kvm", Source: "/dev/kvm"},
		{Kind: mounts.Scratch, Target: "/tmp", Mode: 0o1777},
		{Kind: mounts.Tmpfs, Target: "/small", Size: 4096},
		{Kind: mounts.Bind, Target: "/ws", Source: "/home/u/odd 'name", IsDir: true},
		{Kind: mounts.File, Target: "/etc/passwd", Mode: 0o444, Data: "root\n"},
		{Kind: mounts.Mask, Target: "/ws/secret", IsDir: true},
		{Kind: mounts.Mask, Target: "/ws/.env"},
		{Kind: mounts.Readonly, Target: "/usr/share"},
	}}
}

func TestArgs(t *testing.T) {
	for name, o := range map[string]Options{"bwrap-0.7": {}, "bwrap-0.8": {DisableUserns: true}} {
		l, err := Args(testPolicy(), testTree(), "filter", 5, o)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, a := range l.Args {
			if strings.HasPrefix(a, "--") {
				b.WriteString("\n")
			}
			b.WriteString(a + "\t")
		}
		b.WriteString("\n")
		for _, d := range l.Data {
			b.WriteString("data " + d + "\n")
		}
		file := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s differs; got\n%s", file, b.String())
		}
	}
}

func TestArgsRefuses(t *testing.T) {
	for name, e := range map[string]mounts.Entry{
		"a bind without execution":  {Kind: mounts.Bind, Target: "/x", Source: "/x", Attr: mounts.NoExec, IsDir: true},
		"a tmpfs without execution": {Kind: mounts.Tmpfs, Target: "/x", Attr: mounts.NoExec},
		"read-only of its own":      {Kind: mounts.Readonly, Target: "/tmp"},
	} {
		tree := testTree()
		tree.Entries = append(tree.Entries, e)
		_, err := Args(testPolicy(), tree, "", 3, Options{})
		var u *driver.UnsupportedError
		if !errors.As(err, &u) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := check(testPolicy()); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(p *policy.Policy){
		"landlock":           func(p *policy.Policy) { p.Require = policy.LayerLandlock },
		"no pid namespace":   func(p *policy.Policy) { p.OCI.Linux.Namespaces = p.OCI.Linux.Namespaces[:1] },
		"a joined namespace": func(p *policy.Policy) { p.OCI.Linux.Namespaces[1].Path = "/proc/1/ns/pid" },
		"without execution":  func(p *policy.Policy) { p.Files = []policy.FileRule{{Path: "/x", Access: policy.Read}} },
		"by name":            func(p *policy.Policy) { p.Egress.Mode = policy.EgressProxy },
		"seccomp flags": func(p *policy.Policy) {
			p.OCI.Linux.Seccomp = &specs.LinuxSeccomp{Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}}
		},
	} {
		p := testPolicy()
		change(p)
		var u *driver.UnsupportedError
		if err := check(p); !errors.As(err, &u) || u.Driver != Name {
			t.Errorf("%s: %v", name, err)
		}
	}
	if m := (Driver{}).Describe().Claims.Missing(); len(m) != 0 {
		t.Errorf("claims: %v", m)
	}
}
