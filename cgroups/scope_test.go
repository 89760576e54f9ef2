package cgroups

import (
	"strings"
	"testing"
)

func TestNeedsScope(t *testing.T) {
	const session = "0::/user.slice/user-1000.slice/session-3.scope\n"
	for _, tc := range []struct {
		name  string
		host  host
		needs bool
		may   bool
	}{
		{"user over ssh", host{self: session, mountinfo: unified}, true, true},
		{"what is delegated is used", host{self: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", mountinfo: unified, dirs: map[string]Dir{
			"/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service": {}}}, false, true},
		{"user of a system service", host{self: "0::/system.slice/ci.service\n", mountinfo: unified}, true, false},
		{"a unit that only looks like a session", host{self: "0::/system.slice/user.slice\n", mountinfo: unified}, true, false},
		{"at the top, where nothing holds it", host{self: "0::/\n", mountinfo: unified}, true, true},
		{"a container's groups, read-only", host{self: "0::/\n", mountinfo: unified, dirs: map[string]Dir{"/sys/fs/cgroup": {Denied: DeniedReadOnly}}}, false, true},
		{"hybrid: version 1 is delegated to nobody", host{self: "8:pids:/\n4:memory:/\n2:cpu,cpuacct:/\n" + session, mountinfo: hybrid}, false, true},
		{"no cgroups at all", host{mountinfo: other}, false, true},
	} {
		l := tc.host.layout()
		if got := l.needsScope(Limiting); got != tc.needs {
			t.Errorf("%s: needs a scope: %v", tc.name, got)
		}
		if h := l.unified(); h != nil {
			if c, may := mayLeave(h); may != tc.may || may != (c == Cause{}) {
				t.Errorf("%s: may leave: %v, %+v", tc.name, may, c)
			}
		}
		if l.needsScope(0) {
			t.Errorf("%s: needs a scope for nothing", tc.name)
		}
	}
}

// Why there is no scope is part of why there is no limit, and what helps is said.
func TestNoScope(t *testing.T) {
	l := host{self: "0::/user.slice/user-1000.slice/session-3.scope\n", mountinfo: unified}.layout()
	l.NoScope = Cause{"the moon is full", "wait"}
	s, err := Plan(l, strict(), "NAME")
	if err != nil || len(s.Missing) != 3 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, m := range s.Missing {
		if !strings.HasSuffix(m.Cause, "delegated to this user, and the moon is full") || m.Fix != "wait" {
			t.Errorf("%+v", m)
		}
	}
}

// The limits that bind no longer are those of groups that are above the old
// place and not above the new one.
func TestLeftBehind(t *testing.T) {
	h := &Hierarchy{V2: true, Dirs: []Dir{
		{Path: "/c"}, {Path: "/c/user.slice", Limits: Limits{Memory: 1 << 21}},
		{Path: "/c/user.slice/user-1.slice", Limits: Limits{Memory: 1 << 22}},
		{Path: "/c/user.slice/user-1.slice/s.scope", Limits: Limits{Memory: 1 << 30, Pids: 9}},
		{Path: "/c/user.slice/user-1.slice/s.scope/x", Limits: Limits{Pids: 7}},
	}}
	if got, want := leftBehind(h, "/c/user.slice/user-1.slice/user@1.service/a.scope"), (Limits{Memory: 1 << 30, Pids: 7}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := leftBehind(h, "/c/user.slice/user-1.slice/s.scope/x"); got != (Limits{}) {
		t.Errorf("it did not move: %+v", got)
	}
	if got := leftBehind(h, "/c/user.slice/user-1.slice/s.scope2"); got.Memory != 1<<30 {
		t.Errorf("a name that only begins alike: %+v", got)
	}
}
