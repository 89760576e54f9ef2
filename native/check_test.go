package native

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// base is a policy like strict's, without its long lists.
func base() *policy.Policy {
	id := []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 1234, Size: 1}}
	return &policy.Policy{
		OCI: &specs.Spec{
			Process: &specs.Process{Args: []string{"true"}, Cwd: "/home/u/ws", NoNewPrivileges: true, Env: []string{"PATH=/usr/bin"}},
			Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Options: []string{"ro"}}},
			Linux: &specs.Linux{
				UIDMappings: id, GIDMappings: id,
				Namespaces: []specs.LinuxNamespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}, {Type: "network"}},
			},
		},
		Files:   []policy.FileRule{{Path: "/usr", Access: policy.ReadExec}, {Path: "/home/u/ws", Access: policy.All}},
		Seccomp: "strict",
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
