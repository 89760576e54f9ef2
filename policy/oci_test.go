package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestToOCI(t *testing.T) {
	p := &Policy{
		OCI: &specs.Spec{
			Version: specs.Version,
			Process: &specs.Process{Args: []string{"true"}, Cwd: "/w", User: specs.User{UID: 1000, GID: 1000}},
			Mounts: []specs.Mount{
				{Destination: "/w/tmp", Type: "tmpfs", Options: []string{"nosuid", "mode=1777"}},
				{Destination: "/tmp", Type: "tmpfs", Options: []string{"nosuid"}},
				{Destination: "/dev", Type: "tmpfs", Options: []string{"size=64k"}},
			},
			Linux: &specs.Linux{
				MaskedPaths: []string{"/proc/kcore"},
				UIDMappings: []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 501, Size: 1}},
				GIDMappings: []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 20, Size: 1}},
			},
		},
		Files: []FileRule{
			{Path: "/w", Access: All},
			{Path: "/w/.env", Access: Hide, Optional: true},
			{Path: "/w/s", Access: Hide},
			{Path: "/w/s/shown", Access: Read},
			{Path: "/data", Access: Read},
			{Path: "/absent", Access: ReadExec, Optional: true},
		},
		Synthetic: []SyntheticFile{{Path: "/etc/passwd", Content: "x"}},
		Scratch:   Scratch{Bytes: 4096, Inodes: 7},
		Limits:    Limits{WallTime: 1},
		Seccomp:   "strict",
	}
	before := *p.OCI
	filter := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
	s, left := p.ToOCI(OCIOptions{Seccomp: filter, Exists: func(p string) bool { return p != "/absent" }})

	var got []string
	for _, m := range s.Mounts {
		got = append(got, m.Destination+" "+m.Type+" "+strings.Join(m.Options, ","))
	}
	want := []string{
		"/data bind rbind,nosuid,nodev,ro,rro,noexec",
		"/dev tmpfs size=64k",
		"/tmp tmpfs nosuid,size=4096,nr_inodes=7,uid=0,gid=0",
		"/w bind rbind,nosuid,nodev,rw",
		"/w/tmp tmpfs nosuid,mode=1777,size=4096,nr_inodes=7,uid=0,gid=0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("mounts:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if m := s.Linux.MaskedPaths; !slices.Equal(m, []string{"/proc/kcore", "/w/.env", "/w/s"}) {
		t.Errorf("masked: %q", m)
	}
	if !s.Root.Readonly || s.Linux.Seccomp != filter {
		t.Errorf("root %+v, seccomp %v", s.Root, s.Linux.Seccomp)
	}
	if s.Process.User.UID != 0 || s.Linux.UIDMappings[0] != (specs.LinuxIDMapping{HostID: 501, Size: 1}) || s.Linux.GIDMappings[0].HostID != 20 {
		t.Errorf("user %+v, mappings %v", s.Process.User, s.Linux.UIDMappings)
	}
	for _, word := range []string{"user", "scratch", "files./w/s/shown", "synthetic./etc/passwd", "limits.wall_time"} {
		if !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, word) }) {
			t.Errorf("%s is not in %q", word, left)
		}
	}
	// The policy is as it was.
	if !reflect.DeepEqual(*p.OCI, before) || len(p.OCI.Mounts[1].Options) != 1 || len(p.OCI.Linux.MaskedPaths) != 1 || p.OCI.Process.User.UID != 1000 {
		t.Errorf("the policy was changed: %+v", p.OCI)
	}
	if _, left := p.ToOCI(OCIOptions{}); !slices.Contains(left, "seccomp.strict") {
		t.Errorf("a missing filter is not named: %q", left)
	}
	if s, _ := new(Policy).ToOCI(OCIOptions{}); s == nil {
		t.Error("the zero policy")
	}
}

func TestSort(t *testing.T) {
	got := Sort([]FileRule{{Path: "/a-b", Access: Read}, {Path: "/a/b", Access: Hide}, {Path: "/", Access: Read}, {Path: "/a", Access: Read}, {Path: "/a/b", Access: All}, {Path: "/a", Access: ReadWrite, Optional: true}})
	want := []FileRule{{Path: "/", Access: Read}, {Path: "/a", Access: ReadWrite}, {Path: "/a/b", Access: Hide}, {Path: "/a-b", Access: Read}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
