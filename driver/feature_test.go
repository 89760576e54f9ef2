package driver

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// TestFeaturesCoverPolicy walks the types of a policy: a field that no feature
// names would be ignored by every driver's coverage.
func TestFeaturesCoverPolicy(t *testing.T) {
	owner := map[string]string{}
	for _, f := range Features {
		for _, field := range f.Fields {
			if owner[field] != "" && !strings.HasSuffix(field, "Seccomp") {
				t.Errorf("%s belongs to %s and to %s", field, owner[field], f.Name)
			}
			owner[field] = f.Name
		}
	}
	// Not what a policy asks for.
	for _, f := range []string{"Profile", "Require", "Degrade", "OCI.Version"} {
		owner[f] = "none"
	}
	seen := map[string]bool{}
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		for i := range typ.NumField() {
			name := prefix + typ.Field(i).Name
			seen[name] = true
			if owner[name] != "" {
				continue
			}
			switch name {
			case "OCI", "OCI.Process", "OCI.Process.User", "OCI.Mounts", "OCI.Linux", "Files", "Egress", "Limits":
				walk(name+".", typ.Field(i).Type)
				continue
			}
			t.Errorf("no feature has the field %s: say in feature.go which one a policy asks for by it, and in each driver whether it has that", name)
		}
	}
	walk("", reflect.TypeFor[policy.Policy]())
	for field, f := range owner {
		if !seen[field] {
			t.Errorf("%s names a field that is not there: %s", f, field)
		}
	}
}

// TestOtherFieldsRefused sets each field that no profile sets, and wants it
// named.
func TestOtherFieldsRefused(t *testing.T) {
	all := Claims{}
	for _, f := range Features {
		all[f.Name] = Claim{Support: Yes}
	}
	delete(all, "oci.other")
	for _, field := range otherFields {
		p := featurePolicy()
		name := strings.TrimPrefix(field, "OCI.")
		if name == "Root" {
			name = "Root.Path"
		}
		setField(reflect.ValueOf(p.OCI).Elem(), name)
		if err := all.Refused("x", p); err == nil {
			t.Errorf("%s is not refused", field)
		}
	}
	if err := all.Refused("x", featurePolicy()); err != nil {
		t.Errorf("an ordinary policy: %v", err)
	}
}

func setField(v reflect.Value, path string) {
	for part := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
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
	default:
		panic(path)
	}
}

func featurePolicy() *policy.Policy {
	limit := int64(1 << 30)
	return &policy.Policy{
		OCI: &specs.Spec{
			Process: &specs.Process{Args: []string{"true"}, Cwd: "/", NoNewPrivileges: true, User: specs.User{UID: 1000, GID: 1000}},
			Mounts:  []specs.Mount{{Destination: "/tmp", Type: "tmpfs"}, {Destination: "/proc", Type: "proc"}},
			Linux: &specs.Linux{
				Namespaces: []specs.LinuxNamespace{{Type: "user"}, {Type: "pid"}},
				Resources:  &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}},
			},
		},
		Files: []policy.FileRule{{Path: "/usr", Access: policy.ReadExec}, {Path: "/usr/x"}, {Path: "/usr-x"}, {Path: "/w", Access: policy.All}, {Path: "/w/ro", Access: policy.Read}},
	}
}

func TestRefused(t *testing.T) {
	all := Claims{}
	for _, f := range Features {
		all[f.Name] = Claim{Support: Yes}
	}
	for _, tt := range []struct {
		without string
		change  func(p *policy.Policy)
		want    string // what is named, "" for no refusal
	}{
		{"files.hide", nil, "files.hide /usr/x"},
		{"files.nested", nil, "files.nested /w/ro"},
		{"files.noexec", nil, "files.noexec /w/ro"},
		{"files.overlay", nil, ""},
		{"files.overlay", func(p *policy.Policy) {
			p.Files = append(p.Files, policy.FileRule{Path: "/o", Access: policy.All, Overlay: true})
		}, "files.overlay /o"},
		{"files.root", nil, ""},
		{"mounts.private", nil, "mounts.private /tmp"},
		{"mounts.other", nil, ""},
		{"user", nil, "user"},
		{"layer.pid", nil, "layer pid"},
		{"layer.pid", func(p *policy.Policy) { p.Degrade = policy.LayerPID }, ""},
		// In both sets it is required.
		{"layer.pid", func(p *policy.Policy) { p.Degrade, p.Require = policy.LayerPID, policy.LayerPID }, "layer pid"},
		{"layer.net", nil, ""},
		{"layer.landlock", func(p *policy.Policy) { p.Require = policy.LayerLandlock }, "layer landlock"},
		{"layer.cgroup.memory", nil, "layer cgroup.memory"},
		{"egress.none", nil, "egress.none"},
		{"egress.none", func(p *policy.Policy) { p.Egress.Mode = policy.EgressHost }, ""},
		{"terminal", nil, ""},
		{"result.signal", nil, ""},
	} {
		p := featurePolicy()
		if tt.change != nil {
			tt.change(p)
		}
		c := Claims{}
		for k, v := range all {
			if k != tt.without {
				c[k] = v
			}
		}
		var rules []string
		if err := c.Refused("x", p); err != nil {
			rules = err.Rules
			if err.Fix == "" {
				t.Errorf("without %s: no fix", tt.without)
			}
		}
		if got := strings.Join(rules, "; "); got != tt.want {
			t.Errorf("without %s: refused %q, want %q", tt.without, got, tt.want)
		}
	}
	if got := (Claims{"layer.pid": {Support: Yes}, "layer.net": {Support: Partly}, "layer.user": {}}).Layers(); got != policy.LayerPID|policy.LayerNet {
		t.Errorf("layers %v", got)
	}
	if m := all.Missing(); len(m) != 0 {
		t.Errorf("missing %v", m)
	}
	all["nonsense"] = Claim{}
	all["user"] = Claim{Support: Partly}
	if m := all.Missing(); !slices.Equal(m, []string{"nonsense is no feature", "user"}) {
		t.Errorf("missing %v", m)
	}
}
