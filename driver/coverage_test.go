package driver

import (
	"reflect"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

func TestCoverage(t *testing.T) {
	c := Coverage{
		{Name: "files"},
		{Name: "oci.process"},
		{Name: "oci.process.terminal", Refused: true},
		{Name: "oci.mounts.destination"},
		{Name: "oci.hostname", Refused: true, Layer: policy.LayerUTS},
		{Name: "require"}, {Name: "degrade"},
	}
	p := &policy.Policy{
		Files:   []policy.FileRule{{Path: "/x"}},
		Seccomp: "strict",
		OCI: &specs.Spec{
			Hostname: "h",
			Process:  &specs.Process{Args: []string{"x"}, Terminal: true},
			Mounts:   []specs.Mount{{Destination: "/a", Source: "/b"}, {Destination: "/c", Source: "/d"}},
			Linux:    &specs.Linux{Sysctl: map[string]string{}, Devices: []specs.LinuxDevice{{Path: "/dev/kvm"}}},
		},
	}
	e := c.Unsupported("d", p)
	if want := []string{"oci.process.terminal", "oci.hostname", "oci.mounts.source", "oci.linux", "seccomp"}; e == nil || !slices.Equal(e.Rules, want) {
		t.Errorf("got %v, want %v", e, want)
	}
	p.Degrade = policy.LayerUTS
	if e := c.Unsupported("d", p); slices.Contains(e.Rules, "oci.hostname") {
		t.Errorf("what the policy agrees to go without is refused: %v", e)
	}
	p.Require = policy.LayerUTS
	if e := c.Unsupported("d", p); !slices.Contains(e.Rules, "oci.hostname") {
		t.Errorf("what the policy requires is passed over: %v", e)
	}
	zero := 0
	p = &policy.Policy{OCI: &specs.Spec{Linux: &specs.Linux{IntelRdt: &specs.LinuxIntelRdt{}, Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{}}}, Hooks: &specs.Hooks{}, Process: &specs.Process{OOMScoreAdj: &zero}}}
	if e := (Coverage{{Name: "oci.process.args"}}).Unsupported("d", p); e == nil || !slices.Contains(e.Rules, "oci.process.oomScoreAdj") {
		t.Errorf("a value of 0 that is said is not a value that is not said: %v", e)
	}
	if e := c.Unsupported("d", &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}}}); e != nil {
		t.Error(e)
	}
}

func TestStale(t *testing.T) {
	c := Coverage{{Name: "files"}, {Name: "files.path"}, {Name: "oci.process.user.uid"}, {Name: "oci.linux.resources.memory.limit"}, {Name: "file"}, {Name: "oci.process.x"}, {Name: "seccomp.x"}}
	if got := c.Stale(); !slices.Equal(got, []string{"file", "oci.process.x", "seccomp.x"}) {
		t.Errorf("%q", got)
	}
}

func TestFieldName(t *testing.T) {
	f, _ := reflect.TypeFor[policy.Policy]().FieldByName("OCI")
	if n := FieldName(f); n != "oci" {
		t.Error(n)
	}
}
