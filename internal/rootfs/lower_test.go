package rootfs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fakeHost is a host's files: "dir", "file", "socket", or "-> target" for a link.
type fakeHost map[string]string

func (h fakeHost) Lookup(p string) (Node, error) {
	switch v := h[p]; {
	case v == "dir":
		return Node{Kind: NodeDir}, nil
	case v == "file":
		return Node{Kind: NodeFile}, nil
	case v == "socket":
		return Node{Kind: NodeFile, Socket: true}, nil
	case strings.HasPrefix(v, "-> "):
		link := v[3:]
		real := link
		if !strings.HasPrefix(link, "/") {
			real = filepath.Join(filepath.Dir(p), link)
		}
		if _, ok := h[real]; !ok {
			real = ""
		}
		return Node{Kind: NodeSymlink, Link: link, Real: real}, nil
	}
	return Node{}, nil
}

func (h fakeHost) List(dir string) ([]string, error) {
	var names []string
	for p := range h {
		if filepath.Dir(p) == dir && p != dir {
			names = append(names, filepath.Base(p))
		}
	}
	slices.Sort(names)
	return names, nil
}

var host = fakeHost{
	"/": "dir", "/usr": "dir", "/bin": "-> usr/bin", "/lib64": "-> usr/lib64", "/usr/bin": "dir", "/usr/lib64": "dir",
	"/etc": "dir", "/etc/passwd": "file", "/etc/hosts": "file", "/etc/resolv.conf": "-> ../run/resolve/stub.conf", "/run": "dir", "/run/resolve/stub.conf": "file",
	"/etc/localtime": "-> /usr/share/zoneinfo/UTC", "/etc/ssl/certs": "dir",
	"/home": "dir", "/mnt": "dir", "/home/u": "dir", "/home/u/ws": "dir", "/home/u/.ssh": "dir", "/home/u/.ssh/known_hosts": "file", "/home/u/.aws": "-> /mnt/aws", "/mnt/aws": "dir", "/home/u/.netrc": "file", "/home/u/.gone": "-> nowhere",
	"/home/u/ws/ro": "dir", "/run/s.sock": "socket", "/proc": "dir", "/proc/keys": "file", "/proc/acpi": "dir", "/dev": "dir", "/dev/kvm": "file", "/sys": "dir",
}

// base is a policy like strict's, without its long lists.
func base() *policy.Policy {
	id := []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 1234, Size: 1}}
	return &policy.Policy{
		OCI: &specs.Spec{
			Process: &specs.Process{Args: []string{"true"}, Cwd: "/home/u/ws", NoNewPrivileges: true, Env: []string{"PATH=/usr/bin:rel::/bin"}},
			Mounts: []specs.Mount{
				{Destination: "/proc", Type: "proc", Options: []string{"nosuid", "nodev", "noexec", "ro"}},
				{Destination: "/dev", Type: "tmpfs", Options: []string{"size=64k", "mode=755"}},
				{Destination: "/dev/pts", Type: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620", "noexec"}},
				{Destination: "/tmp", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
				{Destination: "/big", Type: "tmpfs", Options: []string{"size=1g", "noexec"}},
			},
			Linux: &specs.Linux{
				UIDMappings: id, GIDMappings: id,
				Namespaces:  []specs.LinuxNamespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}, {Type: "network"}},
				MaskedPaths: []string{"/proc/keys", "/proc/acpi", "/proc/absent"}, ReadonlyPaths: []string{"/proc/sys"},
			},
		},
		Files: []policy.FileRule{
			{Path: "/usr", Access: policy.ReadExec}, {Path: "/bin", Access: policy.ReadExec}, {Path: "/lib64", Access: policy.ReadExec},
			{Path: "/etc/ssl/certs", Access: policy.Read, Optional: true}, {Path: "/etc/absent", Access: policy.Read, Optional: true},
			{Path: "/home/u/ws", Access: policy.All},
		},
		Synthetic: []policy.SyntheticFile{{Path: "/etc/passwd", Content: "root:x:0:0\n"}},
		Seccomp:   "strict",
	}
}

func TestLower(t *testing.T) {
	for name, change := range map[string]func(p *policy.Policy){
		"strict": func(*policy.Policy) {},
		"home": func(p *policy.Policy) {
			p.Files = append(p.Files,
				policy.FileRule{Path: "/home/u", Access: policy.ReadExec},
				policy.FileRule{Path: "/etc", Access: policy.ReadExec},
				policy.FileRule{Path: "/home/u/.ssh", Optional: true},
				policy.FileRule{Path: "/home/u/.ssh/known_hosts", Access: policy.Read},
				policy.FileRule{Path: "/home/u/.aws", Optional: true},
				policy.FileRule{Path: "/home/u/.netrc", Optional: true},
				policy.FileRule{Path: "/home/u/.gone", Optional: true},
				policy.FileRule{Path: "/home/u/.absent", Optional: true},
				policy.FileRule{Path: "/mnt/aws", Access: policy.Read},
				policy.FileRule{Path: "/home/u/ws/ro", Access: policy.Read})
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/home/u/ws/private", Type: "tmpfs"}, specs.Mount{Destination: "/run", Type: "tmpfs"})
			p.Synthetic = append(p.Synthetic, policy.SyntheticFile{Path: "/etc/resolv.conf"}, policy.SyntheticFile{Path: "/etc/no-such-file"})
			p.OCI.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm"}}
		},
		"sockets": func(p *policy.Policy) { // beside strict: two rules, and a mount
			p.Unix = []string{"/home/u/ws/ro", "/home/u/.netrc"}
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/data/s.sock", Source: "/run/s.sock", Type: "bind", Options: []string{"ro"}})
		},
		"root": func(p *policy.Policy) {
			p.Files = []policy.FileRule{{Path: "/", Access: policy.ReadExec}, {Path: "/home/u/ws", Access: policy.All}, {Path: "/home/u/.ssh"}}
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/data", Source: "/mnt/aws", Type: "bind", Options: []string{"rbind", "ro"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := base()
			change(p)
			l, err := Lower("native", p, host)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			ops, err := l.Tree.Ops()
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range ops {
				fmt.Fprintln(&b, o)
			}
			for _, r := range l.Ruleset.Rules {
				fmt.Fprintf(&b, "landlock %s %#x file=%v\n", r.Path, r.Access, r.IsFile)
			}
			golden(t, name, b.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got\n%s", file, got)
	}
}

func TestLowerRefuses(t *testing.T) {
	for name, change := range map[string]func(p *policy.Policy){
		"a required path that is absent": func(p *policy.Policy) {
			p.Files = append(p.Files, policy.FileRule{Path: "/nope", Access: policy.Read})
		},
		"an unknown file system": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/x", Type: "nfs"})
		},
		"a second proc": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/p", Type: "proc"})
		},
		"an unknown option": func(p *policy.Policy) {
			p.OCI.Mounts[3].Options = append(p.OCI.Mounts[3].Options, "uid=0")
		},
		"a size that is none": func(p *policy.Policy) { p.OCI.Mounts[3].Options = []string{"size=1x"} },
		"a bind of nothing": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/x", Source: "/nope", Type: "bind"})
		},
		"a bind of a link": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/x", Source: "/bin", Type: "bind"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := base()
			change(p)
			if l, err := Lower("native", p, host); err == nil {
				t.Errorf("no error; got %+v", l)
			}
		})
	}
}
