package namespaces

import (
	"errors"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestFlags(t *testing.T) {
	all := []specs.LinuxNamespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}, {Type: "network"}, {Type: "ipc"}, {Type: "uts"}, {Type: "cgroup"}}
	for _, tt := range []struct {
		name   string
		list   []specs.LinuxNamespace
		flags  uint64
		cgroup bool
	}{
		{"none", nil, 0, false},
		// Numbers of linux/sched.h. The cgroup namespace comes later.
		{"all", all, 0x7c020000, true},
		{"no network of its own", append(append([]specs.LinuxNamespace{}, all[:3]...), all[4:]...), 0x3c020000, true},
	} {
		flags, cgroup, err := Flags(tt.list)
		if err != nil || flags != tt.flags || cgroup != tt.cgroup {
			t.Errorf("%s: %#x, %v, %v; want %#x, %v", tt.name, flags, cgroup, err, tt.flags, tt.cgroup)
		}
	}
	for name, list := range map[string][]specs.LinuxNamespace{
		"by path":      {{Type: "network", Path: "/proc/1/ns/net"}},
		"twice":        {{Type: "pid"}, {Type: "pid"}},
		"cgroup twice": {{Type: "cgroup"}, {Type: "cgroup"}},
		"time":         {{Type: "time"}},
		"unknown":      {{Type: "disk"}},
	} {
		_, _, err := Flags(list)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v, want an Error", name, err)
		}
	}
}

func TestIDMap(t *testing.T) {
	got, err := IDMap([]specs.LinuxIDMapping{{ContainerID: 1000, HostID: 0, Size: 1}, {ContainerID: 0, HostID: 100000, Size: 65536}})
	if want := "1000 0 1\n0 100000 65536\n"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for name, list := range map[string][]specs.LinuxIDMapping{
		"nothing": nil,
		"size 0":  {{ContainerID: 1000, HostID: 1000}},
	} {
		if got, err := IDMap(list); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
