package native

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fakeHost is a host's files: "dir", "file", or "-> target" for a link.
type fakeHost map[string]string

func (h fakeHost) Lookup(p string) (Node, error) {
	switch v := h[p]; {
	case v == "dir":
		return Node{Kind: NodeDir}, nil
	case v == "file":
		return Node{Kind: NodeFile}, nil
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
	"/home/u/ws/ro": "dir", "/proc": "dir", "/proc/keys": "file", "/proc/acpi": "dir", "/dev": "dir", "/dev/kvm": "file", "/sys": "dir",
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
		"root": func(p *policy.Policy) {
			p.Files = []policy.FileRule{{Path: "/", Access: policy.ReadExec}, {Path: "/home/u/ws", Access: policy.All}, {Path: "/home/u/.ssh"}}
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/data", Source: "/mnt/aws", Type: "bind", Options: []string{"rbind", "ro"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := base()
			change(p)
			l, err := lower(p, host)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			ops, err := l.tree.Ops()
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range ops {
				fmt.Fprintln(&b, o)
			}
			for _, r := range l.ruleset.Rules {
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
			if l, err := lower(p, host); err == nil {
				t.Errorf("no error; got %+v", l)
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{"ls", []string{"PATH=/a:/b"}, "/a/ls /b/ls"},
		// Neither the working directory nor anything relative is searched.
		{"ls", []string{"PATH=:/a:.:rel:/b:"}, "/a/ls /b/ls"},
		{"ls", nil, "/usr/local/bin/ls /usr/bin/ls /bin/ls"},
		{"./ls", []string{"PATH=/a"}, "./ls"},
		{"/x/ls", nil, "/x/ls"},
		{"ls", []string{"PATH="}, ""},
	} {
		if got := strings.Join(candidates(tt.name, tt.env), " "); got != tt.want {
			t.Errorf("%s %v: %q, want %q", tt.name, tt.env, got, tt.want)
		}
	}
}

// covered are the fields of the OCI specification that lowering reads, beside
// those that unsupported refuses. TestCoverage walks the types: a field that is
// in neither would be ignored in silence.
var covered = map[string]string{
	"Version":                 "for other runtimes",
	"Process.Terminal":        "config",
	"Process.ConsoleSize":     "terminal",
	"Process.User.UID":        "the id maps say it",
	"Process.User.GID":        "the id maps say it",
	"Process.Args":            "config",
	"Process.Env":             "config",
	"Process.Cwd":             "config",
	"Process.Capabilities":    "none is all there is",
	"Process.Rlimits":         "rlimits",
	"Process.ApparmorProfile": "labels",
	"Process.SelinuxLabel":    "labels",
	"Root.Readonly":           "it always is",
	"Hostname":                "config",
	"Mounts.Destination":      "lower",
	"Mounts.Type":             "lower",
	"Mounts.Source":           "lower",
	"Mounts.Options":          "lower",
	"Linux.UIDMappings":       "config",
	"Linux.GIDMappings":       "config",
	"Linux.Resources":         "cgroups; see TestResourcesCovered",
	"Linux.Namespaces":        "namespaces.Flags",
	"Linux.Devices":           "lower",
	"Linux.Seccomp":           "filter",
	"Linux.MaskedPaths":       "lower",
	"Linux.ReadonlyPaths":     "lower",
	"Linux.MountLabel":        "labels",
	"Process.NoNewPrivileges": "always set; false is refused",
}

func TestCoverage(t *testing.T) {
	walk(t, "", reflect.TypeFor[specs.Spec]())
}

// walk sets each field of a struct in turn and expects it to be covered or
// refused.
func walk(t *testing.T, prefix string, typ reflect.Type) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := prefix + f.Name
		if _, ok := covered[name]; ok {
			continue
		}
		inner := f.Type
		if inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		switch name {
		case "Process", "Process.User", "Root", "Linux", "Mounts":
			walk(t, name+".", inner)
			continue
		}
		p := base()
		set(p.OCI, name)
		var e *driver.UnsupportedError
		if err := unsupported(p); err == nil {
			t.Errorf("oci %s is neither lowered nor refused", name)
		} else if !errors.As(error(err), &e) || len(e.Rules) == 0 {
			t.Errorf("oci %s: %v", name, err)
		}
	}
}

// set gives the field at a dotted path a value that is not zero.
func set(spec *specs.Spec, name string) {
	v := reflect.ValueOf(spec).Elem()
	for part := range strings.SplitSeq(name, ".") {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			if v.Kind() == reflect.Slice {
				v = v.Index(0)
				continue
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.FieldByName(part)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}

func TestPolicyRefused(t *testing.T) {
	for name, change := range map[string]func(p *policy.Policy){
		"egress by name on the host's network": func(p *policy.Policy) {
			p.Egress.Mode = policy.EgressProxy
			p.OCI.Linux.Namespaces = p.OCI.Linux.Namespaces[:3]
		},
		"no new privileges is off": func(p *policy.Policy) { p.OCI.Process.NoNewPrivileges = false },
		"a capability": func(p *policy.Policy) {
			p.OCI.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}}
		},
		"no mount namespace":        func(p *policy.Policy) { p.OCI.Linux.Namespaces = p.OCI.Linux.Namespaces[:2] },
		"requires what is left out": func(p *policy.Policy) { p.Seccomp = ""; p.Require = policy.LayerSeccomp },
		"an unknown rlimit":         func(p *policy.Policy) { p.OCI.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_X"}} },
		"two ids": func(p *policy.Policy) {
			p.OCI.Linux.UIDMappings = append(p.OCI.Linux.UIDMappings, p.OCI.Linux.UIDMappings[0])
		},
		"annotations": func(p *policy.Policy) { p.OCI.Annotations = map[string]string{"network": "none"} },
		"block io limits": func(p *policy.Policy) {
			p.OCI.Linux.Resources = &specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := base()
			change(p)
			err := check(p)
			var e *driver.UnsupportedError
			if !errors.As(err, &e) {
				t.Errorf("got %v, want an UnsupportedError", err)
			}
		})
	}
	if err := check(base()); err != nil {
		t.Errorf("the policy itself is refused: %v", err)
	}
	// A caller who would go without what this driver always has gets it.
	p := base()
	p.Degrade = policy.LayerMount | policy.LayerPID
	if err := check(p); err != nil {
		t.Errorf("agreeing to less is refused: %v", err)
	}
	if m := (Driver{}).Describe().Claims.Missing(); len(m) != 0 {
		t.Errorf("claims: %v", m)
	}
	if err := (Driver{}).Describe().Claims.Refused(Name, base()); err != nil {
		t.Errorf("claims: %v", err)
	}
}
