package gvisor

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
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
				Env: []string{"PATH=/usr/bin"}, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 10, Soft: 10}}},
			Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}, {Type: "network"}}},
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
		{Kind: mounts.Devpts, Target: "/dev/pts"},
		{Kind: mounts.Scratch, Target: "/tmp", Mode: 0o1777},
		{Kind: mounts.Bind, Target: "/ws", Source: "/home/u/odd 'name,", IsDir: true},
		{Kind: mounts.Bind, Target: "/data/file", Source: "/f", Attr: mounts.ReadOnly | mounts.NoExec},
		{Kind: mounts.File, Target: "/etc/passwd", Mode: 0o444, Data: "root\n"},
		{Kind: mounts.Mask, Target: "/ws/secret", IsDir: true},
		{Kind: mounts.Mask, Target: "/ws/.env"},
		{Kind: mounts.Mask, Target: "/proc/keys"},
		{Kind: mounts.Mask, Target: "/proc/1", IsDir: true},
		{Kind: mounts.Readonly, Target: "/proc/sys"},
	}}
}

func TestSpec(t *testing.T) {
	for _, d := range []Driver{{}, {Runtime: "runc"}, {Runtime: "crun"}} {
		spec, nodes, err := d.Spec(testPolicy(), testTree(), Options{UID: 501, GID: 20, Pids: 7, Bundle: "/run/b"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.MarshalIndent(spec, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		text := string(b) + "\n"
		for _, n := range nodes {
			text += fmt.Sprintf("%+v\n", n)
		}
		file := filepath.Join("testdata", d.program()+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) {
			t.Errorf("%s differs; got\n%s", file, text)
		}
	}
}

// TestSpecKeepsPolicy: lowering changes nothing of the policy.
func TestSpecKeepsPolicy(t *testing.T) {
	p := testPolicy()
	before, _ := json.Marshal(p)
	if _, _, err := (Driver{}).Spec(p, testTree(), Options{}); err != nil {
		t.Fatal(err)
	}
	if after, _ := json.Marshal(p); string(after) != string(before) {
		t.Errorf("was %s, is %s", before, after)
	}
}

func TestCheck(t *testing.T) {
	for _, d := range []Driver{{}, {Runtime: "runc"}, {Runtime: "crun"}, {Runtime: "other"}} {
		if err := d.check(testPolicy()); err != nil {
			t.Errorf("%s: %v", d.Name(), err)
		}
		if m := d.Describe().Claims.Missing(); len(m) != 0 {
			t.Errorf("%s: claims: %v", d.Name(), m)
		}
		for name, change := range map[string]func(p *policy.Policy){
			"landlock":  func(p *policy.Policy) { p.Require = policy.LayerLandlock },
			"namespace": func(p *policy.Policy) { p.OCI.Linux.Namespaces = p.OCI.Linux.Namespaces[:1] },
			"device":    func(p *policy.Policy) { p.OCI.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm"}} },
			"bytes":     func(p *policy.Policy) { p.OCI.Process.Args = []string{"\xff"} },
			"by name":   func(p *policy.Policy) { p.Egress.Mode = policy.EgressProxy },
		} {
			p := testPolicy()
			change(p)
			var u *driver.UnsupportedError
			if err := d.check(p); !errors.As(err, &u) || u.Driver != d.Name() {
				t.Errorf("%s: %s: %v", d.Name(), name, err)
			}
		}
	}
	limit := int64(5)
	p := testPolicy()
	p.OCI.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}
	if err := (Driver{}).check(p); err == nil || !strings.Contains(err.Error(), "cgroup.pids") {
		t.Errorf("gVisor does not limit processes, and does not say so: %v", err)
	}
}
