package cgroups

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func ptr[T any](v T) *T { return &v }

// strict are the limits of the profile of that name.
func strict() *specs.LinuxResources {
	return &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: ptr(int64(2 << 30))},
		CPU:    &specs.LinuxCPU{Quota: ptr(int64(100000))},
		Pids:   &specs.LinuxPids{Limit: ptr(int64(256))},
	}
}

// text prints a Setup as the shell commands it amounts to.
func (s Setup) text() string {
	var b strings.Builder
	for _, p := range s.Parents {
		for _, st := range p.Steps {
			if st.Kind == Mkdir {
				fmt.Fprintf(&b, "once: mkdir %s\n", st.Path)
			} else {
				fmt.Fprintf(&b, "once: echo %s > %s\n", st.Value, st.Path)
			}
		}
		version := "v1"
		if p.V2 {
			version = "v2"
		}
		fmt.Fprintf(&b, "%s (%s): mkdir %s/%s\n", version, p.Controllers, p.Path, p.Name)
		for _, w := range p.Writes {
			fmt.Fprintf(&b, "  echo %s > %s\n", w.Value, w.File)
		}
	}
	for _, m := range s.Missing {
		fmt.Fprintf(&b, "missing %s: %s\n", m.Controller, m.Cause)
	}
	return b.String()
}

// A host is what Read would see.
type host struct {
	self, mountinfo string
	dirs            map[string]Dir // by path; a directory that is not here is not writable
}

func (h host) layout() Layout {
	l := NewLayout(ParseMemberships(h.self), ParseMounts(h.mountinfo))
	for i := range l.Hierarchies {
		for j := range l.Hierarchies[i].Dirs {
			d := &l.Hierarchies[i].Dirs[j]
			facts, ok := h.dirs[d.Path]
			if !ok {
				d.Denied = DeniedOwner
				continue
			}
			facts.Path = d.Path
			*d = facts
		}
	}
	return l
}

const (
	unified = "23 31 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
	other   = "22 31 0:21 / /proc rw,relatime - proc proc rw\n"
)

var hybrid = other + `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`

func TestPlan(t *testing.T) {
	const (
		v2done = `v2 (memory cpu pids): mkdir /sys/fs/cgroup/sbxrun/NAME
  echo 2147483648 > memory.max
  echo 0 > memory.swap.max
  echo 1 > memory.oom.group
  echo 100000 100000 > cpu.max
  echo 256 > pids.max
`
		user = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
	)
	v2in := func(dir string) string { return strings.Replace(v2done, "/sys/fs/cgroup/sbxrun", dir+"/sbxrun", 1) }
	for _, tc := range []struct {
		name string
		host host
		want string
	}{
		{
			name: "root on v2, every run but the first",
			host: host{self: "0::/user.slice/user-0.slice/session-1.scope\n", mountinfo: other + unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {ParentUsable: true, ParentEnabled: Limiting}}},
			want: v2done,
		},
		{
			name: "root in a login session: in its slice, whose limits hold",
			host: host{self: "0::/user.slice/user-0.slice/session-1.scope\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup":                                         {Top: true, Available: Limiting, Enabled: Memory | Pids, Occupants: Nobody, ParentUsable: true, ParentEnabled: Limiting},
				"/sys/fs/cgroup/user.slice":                              {Available: Memory | Pids, Enabled: Memory | Pids, Occupants: Nobody},
				"/sys/fs/cgroup/user.slice/user-0.slice":                 {Available: Memory | Pids, Enabled: Memory | Pids, Occupants: Nobody},
				"/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope": {Available: Memory | Pids, Occupants: Others}}},
			want: "once: echo +cpu > /sys/fs/cgroup/cgroup.subtree_control\n" +
				"once: echo +cpu > /sys/fs/cgroup/user.slice/cgroup.subtree_control\n" +
				"once: echo +cpu > /sys/fs/cgroup/user.slice/user-0.slice/cgroup.subtree_control\n" +
				"once: mkdir /sys/fs/cgroup/user.slice/user-0.slice/sbxrun\n" +
				"once: echo +memory +cpu +pids > /sys/fs/cgroup/user.slice/user-0.slice/sbxrun/cgroup.subtree_control\n" +
				v2in("/sys/fs/cgroup/user.slice/user-0.slice"),
		},
		{
			name: "root in a service with limits: beside it, with its limits where they are tighter",
			host: host{self: "0::/system.slice/ci.service\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup/system.slice": {ParentUsable: true, ParentEnabled: Limiting},
				"/sys/fs/cgroup/system.slice/ci.service": {Available: Memory | Pids, Occupants: Others,
					Limits: Limits{Memory: 1 << 30, CPUQuota: 1000000, CPUPeriod: 100000, Pids: 100}}}},
			want: `v2 (memory cpu pids): mkdir /sys/fs/cgroup/system.slice/sbxrun/NAME
  echo 1073741824 > memory.max
  echo 0 > memory.swap.max
  echo 1 > memory.oom.group
  echo 100000 100000 > cpu.max
  echo 100 > pids.max
`,
		},
		{
			name: "root alone in a service: the next command of it could not be put into a group that hands down",
			host: host{self: "0::/system.slice/ci.service\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup/system.slice":            {ParentUsable: true, ParentEnabled: Limiting},
				"/sys/fs/cgroup/system.slice/ci.service": {Available: Limiting, Occupants: OnlyCaller, Limits: Limits{Pids: 100}}}},
			want: strings.Replace(v2in("/sys/fs/cgroup/system.slice"), "256", "100", 1),
		},
		{
			name: "root alone in a service that manages its own group: inside it",
			host: host{self: "0::/system.slice/ci.service\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup/system.slice":            {ParentUsable: true, ParentEnabled: Limiting},
				"/sys/fs/cgroup/system.slice/ci.service": {Available: Limiting, Occupants: OnlyCaller, Delegated: true, Limits: Limits{Memory: 1 << 30}}}},
			want: "once: mkdir /sys/fs/cgroup/system.slice/ci.service/sbxrun.supervisor\n" +
				"once: echo 0 > /sys/fs/cgroup/system.slice/ci.service/sbxrun.supervisor/cgroup.procs\n" +
				"once: echo +memory +cpu +pids > /sys/fs/cgroup/system.slice/ci.service/cgroup.subtree_control\n" +
				"once: mkdir /sys/fs/cgroup/system.slice/ci.service/sbxrun\n" +
				"once: echo +memory +cpu +pids > /sys/fs/cgroup/system.slice/ci.service/sbxrun/cgroup.subtree_control\n" +
				v2in("/sys/fs/cgroup/system.slice/ci.service"),
		},
		{
			name: "root on v2, first run under systemd",
			host: host{self: "0::/user.slice/user-0.slice/session-1.scope\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {Top: true, Available: Limiting, Enabled: Limiting, Occupants: Others}}},
			want: "once: mkdir /sys/fs/cgroup/sbxrun\n" +
				"once: echo +memory +cpu +pids > /sys/fs/cgroup/sbxrun/cgroup.subtree_control\n" + v2done,
		},
		{
			name: "root on v2, nothing enabled at the top, where processes may stay",
			host: host{self: "0::/\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {Top: true, Available: Limiting, Enabled: Pids, Occupants: Others}}},
			want: "once: echo +memory +cpu > /sys/fs/cgroup/cgroup.subtree_control\n" +
				"once: mkdir /sys/fs/cgroup/sbxrun\n" +
				"once: echo +memory +cpu +pids > /sys/fs/cgroup/sbxrun/cgroup.subtree_control\n" + v2done,
		},
		{
			name: "container with a cgroup namespace, sbxrun its only process",
			host: host{self: "0::/\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {Available: Limiting, Occupants: OnlyCaller}}},
			want: "once: mkdir /sys/fs/cgroup/sbxrun.supervisor\n" +
				"once: echo 0 > /sys/fs/cgroup/sbxrun.supervisor/cgroup.procs\n" +
				"once: echo +memory +cpu +pids > /sys/fs/cgroup/cgroup.subtree_control\n" +
				"once: mkdir /sys/fs/cgroup/sbxrun\n" +
				"once: echo +memory +cpu +pids > /sys/fs/cgroup/sbxrun/cgroup.subtree_control\n" + v2done,
		},
		{
			name: "container with other processes: they are never moved",
			host: host{self: "0::/\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {Available: Limiting, Occupants: Others}}},
			want: "missing memory: the group /sys/fs/cgroup holds other processes than sbxrun and therefore cannot hand it to groups below (cgroup v2 allows no internal processes)\n" +
				"missing cpu: the group /sys/fs/cgroup holds other processes than sbxrun and therefore cannot hand it to groups below (cgroup v2 allows no internal processes)\n" +
				"missing pids: the group /sys/fs/cgroup holds other processes than sbxrun and therefore cannot hand it to groups below (cgroup v2 allows no internal processes)\n",
		},
		{
			name: "unknown occupants count as others",
			host: host{self: "0::/\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {Available: Limiting, Enabled: Memory | Pids}}},
			want: `once: mkdir /sys/fs/cgroup/sbxrun
once: echo +memory +pids > /sys/fs/cgroup/sbxrun/cgroup.subtree_control
v2 (memory pids): mkdir /sys/fs/cgroup/sbxrun/NAME
  echo 2147483648 > memory.max
  echo 0 > memory.swap.max
  echo 1 > memory.oom.group
  echo 256 > pids.max
missing cpu: the group /sys/fs/cgroup holds other processes than sbxrun and therefore cannot hand it to groups below (cgroup v2 allows no internal processes)
`,
		},
		{
			name: "container whose cgroups are read-only",
			host: host{self: "0::/\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {Denied: DeniedReadOnly}}},
			want: "missing memory: /sys/fs/cgroup is mounted read-only\nmissing cpu: /sys/fs/cgroup is mounted read-only\nmissing pids: /sys/fs/cgroup is mounted read-only\n",
		},
		{
			name: "user in a desktop session: the lowest that holds no processes",
			host: host{self: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n", mountinfo: unified, dirs: map[string]Dir{
				user:                               {Available: Limiting, Enabled: Limiting, Occupants: Nobody},
				user + "/app.slice":                {Available: Limiting, Enabled: Limiting, Occupants: Nobody},
				user + "/app.slice/term.scope":     {Available: Limiting, Occupants: Others},
				"/sys/fs/cgroup/not-an-ancestor":   {Available: Limiting},
				"/sys/fs/cgroup/user.slice/sbxrun": {},
			}},
			want: "once: mkdir " + user + "/app.slice/sbxrun\n" +
				"once: echo +memory +cpu +pids > " + user + "/app.slice/sbxrun/cgroup.subtree_control\n" + v2in(user+"/app.slice"),
		},
		{
			name: "user in a desktop session whose app.slice has no cpu yet",
			host: host{self: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n", mountinfo: unified, dirs: map[string]Dir{
				user:                           {Available: Limiting, Enabled: Memory | Pids, Occupants: Nobody},
				user + "/app.slice":            {Available: Memory | Pids, Enabled: Memory | Pids, Occupants: Nobody},
				user + "/app.slice/term.scope": {Available: Memory | Pids, Occupants: Others},
			}},
			want: "once: echo +cpu > " + user + "/cgroup.subtree_control\n" +
				"once: echo +cpu > " + user + "/app.slice/cgroup.subtree_control\n" +
				"once: mkdir " + user + "/app.slice/sbxrun\n" +
				"once: echo +memory +cpu +pids > " + user + "/app.slice/sbxrun/cgroup.subtree_control\n" + v2in(user+"/app.slice"),
		},
		{
			name: "user in a scope of its own: inside",
			host: host{self: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n", mountinfo: unified, dirs: map[string]Dir{
				user:                            {Available: Limiting, Enabled: Limiting, Occupants: Nobody},
				user + "/app.slice":             {Available: Limiting, Enabled: Limiting, Occupants: Nobody, ParentUsable: true, ParentEnabled: Limiting},
				user + "/app.slice/run-1.scope": {Available: Limiting, Occupants: OnlyCaller, Delegated: true},
			}},
			want: "once: mkdir " + user + "/app.slice/run-1.scope/sbxrun.supervisor\n" +
				"once: echo 0 > " + user + "/app.slice/run-1.scope/sbxrun.supervisor/cgroup.procs\n" +
				"once: echo +memory +cpu +pids > " + user + "/app.slice/run-1.scope/cgroup.subtree_control\n" +
				"once: mkdir " + user + "/app.slice/run-1.scope/sbxrun\n" +
				"once: echo +memory +cpu +pids > " + user + "/app.slice/run-1.scope/sbxrun/cgroup.subtree_control\n" + v2in(user+"/app.slice/run-1.scope"),
		},
		{
			name: "user whose systemd delegates no cpu",
			host: host{self: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n", mountinfo: unified, dirs: map[string]Dir{
				user: {Available: Memory | Pids, Enabled: Memory | Pids, ParentUsable: true, ParentEnabled: Memory | Pids, Occupants: Nobody}}},
			want: "v2 (memory pids): mkdir " + user + `/sbxrun/NAME
  echo 2147483648 > memory.max
  echo 0 > memory.swap.max
  echo 1 > memory.oom.group
  echo 256 > pids.max
missing cpu: it is not delegated to ` + user + ` (see cgroup.controllers there)
`,
		},
		{
			name: "user over ssh: a session scope is not delegated",
			host: host{self: "0::/user.slice/user-1000.slice/session-3.scope\n", mountinfo: unified},
			want: "missing memory: neither the caller's cgroup /sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope nor one above it is delegated to this user\n" +
				"missing cpu: neither the caller's cgroup /sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope nor one above it is delegated to this user\n" +
				"missing pids: neither the caller's cgroup /sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope nor one above it is delegated to this user\n",
		},
		{
			name: "hybrid, root, first run: own groups below the tops, wherever the caller is",
			host: host{self: "9:name=systemd:/\n8:pids:/\n4:memory:/somewhere/deep\n3:cpuset:/\n2:cpu,cpuacct:/\n0::/\n", mountinfo: hybrid, dirs: map[string]Dir{
				"/sys/fs/cgroup/memory": {}, "/sys/fs/cgroup/memory/somewhere": {}, "/sys/fs/cgroup/cpu,cpuacct": {ParentUsable: true}, "/sys/fs/cgroup/pids": {}, "/sys/fs/cgroup/unified": {}}},
			want: `once: mkdir /sys/fs/cgroup/pids/sbxrun
v1 (pids): mkdir /sys/fs/cgroup/pids/sbxrun/NAME
  echo 256 > pids.max
once: mkdir /sys/fs/cgroup/memory/sbxrun
v1 (memory): mkdir /sys/fs/cgroup/memory/sbxrun/NAME
  echo 2147483648 > memory.limit_in_bytes
  echo 2147483648 > memory.memsw.limit_in_bytes
  echo 536870912 > memory.kmem.tcp.limit_in_bytes
v1 (cpu): mkdir /sys/fs/cgroup/cpu,cpuacct/sbxrun/NAME
  echo 100000 > cpu.cfs_quota_us
`,
		},
		{
			name: "hybrid, root, in a group with limits: they are taken over",
			host: host{self: "8:pids:/ci\n4:memory:/ci\n2:cpu,cpuacct:/\n0::/\n", mountinfo: hybrid, dirs: map[string]Dir{
				"/sys/fs/cgroup/memory": {ParentUsable: true}, "/sys/fs/cgroup/cpu,cpuacct": {ParentUsable: true}, "/sys/fs/cgroup/pids": {ParentUsable: true},
				"/sys/fs/cgroup/memory/ci": {Limits: Limits{Memory: 1 << 30}}, "/sys/fs/cgroup/pids/ci": {Limits: Limits{Pids: 1000}}}},
			want: `v1 (pids): mkdir /sys/fs/cgroup/pids/sbxrun/NAME
  echo 256 > pids.max
v1 (memory): mkdir /sys/fs/cgroup/memory/sbxrun/NAME
  echo 1073741824 > memory.limit_in_bytes
  echo 1073741824 > memory.memsw.limit_in_bytes
  echo 268435456 > memory.kmem.tcp.limit_in_bytes
v1 (cpu): mkdir /sys/fs/cgroup/cpu,cpuacct/sbxrun/NAME
  echo 100000 > cpu.cfs_quota_us
`,
		},
		{
			name: "hybrid, user: a group of its own, one made for it, and none",
			host: host{self: "8:pids:/a/b\n4:memory:/u\n2:cpu,cpuacct:/\n0::/\n", mountinfo: hybrid, dirs: map[string]Dir{
				"/sys/fs/cgroup/memory/u":    {},
				"/sys/fs/cgroup/cpu,cpuacct": {Denied: DeniedOwner, ParentUsable: true}}},
			want: `once: mkdir /sys/fs/cgroup/memory/u/sbxrun
v1 (memory): mkdir /sys/fs/cgroup/memory/u/sbxrun/NAME
  echo 2147483648 > memory.limit_in_bytes
  echo 2147483648 > memory.memsw.limit_in_bytes
  echo 536870912 > memory.kmem.tcp.limit_in_bytes
v1 (cpu): mkdir /sys/fs/cgroup/cpu,cpuacct/sbxrun/NAME
  echo 100000 > cpu.cfs_quota_us
missing pids: no group of cgroup v1 can be written by this user
`,
		},
		{
			name: "hybrid with pids left to v2",
			host: host{self: "4:memory:/\n2:cpu,cpuacct:/\n0::/\n", mountinfo: hybrid, dirs: map[string]Dir{
				"/sys/fs/cgroup/memory": {ParentUsable: true}, "/sys/fs/cgroup/cpu,cpuacct": {ParentUsable: true},
				"/sys/fs/cgroup/unified": {Top: true, Available: Pids, Occupants: Others}}},
			want: `v1 (memory): mkdir /sys/fs/cgroup/memory/sbxrun/NAME
  echo 2147483648 > memory.limit_in_bytes
  echo 2147483648 > memory.memsw.limit_in_bytes
  echo 536870912 > memory.kmem.tcp.limit_in_bytes
v1 (cpu): mkdir /sys/fs/cgroup/cpu,cpuacct/sbxrun/NAME
  echo 100000 > cpu.cfs_quota_us
once: echo +pids > /sys/fs/cgroup/unified/cgroup.subtree_control
once: mkdir /sys/fs/cgroup/unified/sbxrun
once: echo +pids > /sys/fs/cgroup/unified/sbxrun/cgroup.subtree_control
v2 (pids): mkdir /sys/fs/cgroup/unified/sbxrun/NAME
  echo 256 > pids.max
`,
		},
		{
			name: "no cgroups at all",
			host: host{self: "", mountinfo: other},
			want: "missing memory: no mounted cgroup hierarchy has it\nmissing cpu: no mounted cgroup hierarchy has it\nmissing pids: no mounted cgroup hierarchy has it\n",
		},
		{
			name: "v2 without the controller in the kernel",
			host: host{self: "0::/\n", mountinfo: unified, dirs: map[string]Dir{
				"/sys/fs/cgroup": {Top: true, Available: CPU | Pids, Enabled: CPU | Pids, ParentUsable: true, ParentEnabled: CPU | Pids}}},
			want: `v2 (cpu pids): mkdir /sys/fs/cgroup/sbxrun/NAME
  echo 100000 100000 > cpu.max
  echo 256 > pids.max
missing memory: this kernel has it not, or has it off, or on a v1 hierarchy that is not mounted here
`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Plan(tc.host.layout(), strict(), "NAME")
			if err != nil {
				t.Fatal(err)
			}
			if got := s.text(); got != tc.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tc.want)
			}
			for _, m := range s.Missing {
				if m.Fix == "" || m.Cause == "" || len(each(m.Controller, "", "")) != 1 {
					t.Errorf("not one controller with cause and fix: %+v", m)
				}
			}
		})
	}
}

// What an ordinary user's administrator has to do about version 1 is one command
// for all controllers, and names the user: in a shell of root's $USER is root.
func TestPlanFixV1(t *testing.T) {
	h := host{self: "8:pids:/a\n4:memory:/\n2:cpu,cpuacct:/\n0::/\n", mountinfo: hybrid, dirs: map[string]Dir{
		"/sys/fs/cgroup/cpu,cpuacct": {Denied: DeniedOwner, ParentUsable: true}, "/sys/fs/cgroup/memory": {Denied: DeniedOwner}}}
	l := h.layout()
	l.User = 1000
	s, err := Plan(l, strict(), "NAME")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Missing) != 2 {
		t.Fatalf("missing %+v", s.Missing)
	}
	const dirs = "/sys/fs/cgroup/pids/sbxrun /sys/fs/cgroup/memory/sbxrun"
	for _, m := range s.Missing {
		if want := "as root: mkdir -p " + dirs + " && chown 1000 " + dirs; m.Fix != want {
			t.Errorf("%s: %q, want %q", m.Controller, m.Fix, want)
		}
	}
}

// Every controller asked for is either held or missing, never silently neither:
// over all combinations of what a host hands down.
func TestPlanAccountsForEveryController(t *testing.T) {
	for top := range 2 {
		for available := range Limiting + 1 {
			for enabled := range Limiting + 1 {
				for parent := range Limiting + 1 {
					for occupants := Unknown; occupants <= Others; occupants++ {
						l := Layout{Hierarchies: []Hierarchy{{V2: true, Dirs: []Dir{{Path: "/c", Top: top == 1, Available: available,
							Enabled: enabled, ParentUsable: parent != 0, ParentEnabled: parent, Occupants: occupants}}}}}
						s, err := Plan(l, strict(), "NAME")
						if err != nil {
							t.Fatal(err)
						}
						var held Controllers
						for _, p := range s.Parents {
							held |= p.Controllers
						}
						missing := (&MissingError{s.Missing}).Controllers()
						if held|missing != Limiting || held&missing != 0 {
							t.Fatalf("top %d available %v enabled %v parent %v occupants %d: held %v, missing %v", top, available, enabled, parent, occupants, held, missing)
						}
					}
				}
			}
		}
	}
}

func TestLimits(t *testing.T) {
	resources := func(memory, swap, quota *int64, period *uint64, pids *int64) *specs.LinuxResources {
		return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: memory, Swap: swap}, CPU: &specs.LinuxCPU{Quota: quota, Period: period}, Pids: &specs.LinuxPids{Limit: pids}}
	}
	n := func(v int64) *int64 { return &v }
	for _, tc := range []struct {
		name string
		r    *specs.LinuxResources
		want Limits
		bad  string
	}{
		{"nothing", nil, Limits{}, ""},
		{"empty", &specs.LinuxResources{}, Limits{}, ""},
		{"no values", resources(nil, nil, nil, nil, nil), Limits{}, ""},
		{"no limits", resources(n(-1), n(-1), n(-1), nil, n(-1)), Limits{Swap: -1}, ""},
		{"least", resources(n(MinMemory), nil, n(MinQuota), ptr(uint64(MinPeriod)), n(1)), Limits{MinMemory, 0, MinQuota, MinPeriod, 1}, ""},
		{"most", resources(n(1<<62), nil, n(MaxQuota), ptr(uint64(MaxPeriod)), n(MaxPids)), Limits{1 << 62, 0, MaxQuota, MaxPeriod, MaxPids}, ""},
		{"usual period", resources(nil, nil, n(150000), nil, nil), Limits{CPUQuota: 150000, CPUPeriod: 100000}, ""},
		{"some swap", resources(n(64<<20), n(96<<20), nil, nil, nil), Limits{Memory: 64 << 20, Swap: 32 << 20}, ""},
		{"any swap", resources(n(64<<20), n(-1), nil, nil, nil), Limits{Memory: 64 << 20, Swap: -1}, ""},
		{"no memory", resources(n(0), nil, nil, nil, nil), Limits{}, "memory.limit"},
		{"little memory", resources(n(MinMemory-1), nil, nil, nil, nil), Limits{}, "memory.limit"},
		{"negative memory", resources(n(-2), nil, nil, nil, nil), Limits{}, "memory.limit"},
		{"swap below memory", resources(n(64<<20), n(32<<20), nil, nil, nil), Limits{}, "memory.swap"},
		{"swap alone", resources(nil, n(32<<20), nil, nil, nil), Limits{}, "memory.swap"},
		{"small quota", resources(nil, nil, n(999), nil, nil), Limits{}, "cpu.quota"},
		{"no quota", resources(nil, nil, n(0), nil, nil), Limits{}, "cpu.quota"},
		{"huge quota", resources(nil, nil, n(1<<44), nil, nil), Limits{}, "cpu.quota"},
		{"short period", resources(nil, nil, n(5000), ptr(uint64(999)), nil), Limits{}, "cpu.period"},
		{"long period", resources(nil, nil, n(5000), ptr(uint64(1000001)), nil), Limits{}, "cpu.period"},
		{"endless period", resources(nil, nil, n(5000), ptr(^uint64(0)), nil), Limits{}, "cpu.period"},
		{"no pids", resources(nil, nil, nil, nil, n(0)), Limits{}, "pids.limit"},
		{"many pids", resources(nil, nil, nil, nil, n(MaxPids+1)), Limits{}, "pids.limit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := LimitsOf(tc.r)
			if tc.bad != "" {
				var le *LimitError
				if !errors.As(err, &le) || le.Field != "linux.resources."+tc.bad || le.Want == "" {
					t.Fatalf("error %v, want a LimitError for %s", err, tc.bad)
				}
				if _, err := Plan(Layout{}, tc.r, "NAME"); err == nil {
					t.Error("Plan took it")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestWrites(t *testing.T) {
	files := func(w []Write) string {
		var b strings.Builder
		for _, x := range w {
			fmt.Fprintf(&b, "%s=%s;", x.File, x.Value)
		}
		return b.String()
	}
	swap := Limits{Memory: 64 << 20, Swap: 32 << 20}
	for _, tc := range []struct{ got, want string }{
		{files(writesV2(swap, Memory)), "memory.max=67108864;memory.swap.max=33554432;memory.oom.group=1;"},
		{files(writesV1(swap, Memory)), "memory.limit_in_bytes=67108864;memory.memsw.limit_in_bytes=100663296;memory.kmem.tcp.limit_in_bytes=16777216;"},
		{files(writesV2(Limits{Memory: 64 << 20, Swap: -1}, Memory)), "memory.max=67108864;memory.oom.group=1;"},
		{files(writesV1(Limits{Memory: 64 << 20, Swap: -1}, Memory)), "memory.limit_in_bytes=67108864;memory.kmem.tcp.limit_in_bytes=16777216;"},
		{files(writesV2(Limits{CPUQuota: 50000, CPUPeriod: 200000}, CPU)), "cpu.max=50000 200000;"},
		{files(writesV1(Limits{CPUQuota: 50000, CPUPeriod: 200000}, CPU)), "cpu.cfs_period_us=200000;cpu.cfs_quota_us=50000;"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s want %s", tc.got, tc.want)
		}
	}
}

// Everything in the resources is either limited or named as not supported.
func TestUnsupported(t *testing.T) {
	if got := Unsupported(strict()); got != nil {
		t.Errorf("strict: %v", got)
	}
	r := &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{}},
		//lint:ignore SA1019 deprecated fields too
		Memory: &specs.LinuxMemory{Reservation: ptr(int64(1)), Kernel: ptr(int64(1)), KernelTCP: ptr(int64(1)), Swappiness: ptr(uint64(1)),
			DisableOOMKiller: ptr(true), UseHierarchy: ptr(false), CheckBeforeUpdate: ptr(true)},
		CPU: &specs.LinuxCPU{Shares: ptr(uint64(1)), Burst: ptr(uint64(1)), RealtimeRuntime: ptr(int64(1)), RealtimePeriod: ptr(uint64(1)),
			Cpus: "0", Mems: "0", Idle: ptr(int64(1))},
		BlockIO: &specs.LinuxBlockIO{}, HugepageLimits: []specs.LinuxHugepageLimit{{}}, Network: &specs.LinuxNetwork{},
		Rdma: map[string]specs.LinuxRdma{"a": {}}, Unified: map[string]string{"a": "b"},
	}
	want := "devices memory.reservation memory.kernel memory.kernelTCP memory.swappiness memory.disableOOMKiller memory.useHierarchy memory.checkBeforeUpdate " +
		"cpu.shares cpu.burst cpu.realtimeRuntime cpu.realtimePeriod cpu.cpus cpu.mems cpu.idle blockIO hugepageLimits network rdma unified"
	if got := strings.ReplaceAll(strings.Join(Unsupported(r), " "), "linux.resources.", ""); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A limit that nobody asked for is the caller's all the same, once there is a
// group; where there is none the command stays in the caller's.
func TestPlanOutside(t *testing.T) {
	l := Layout{Left: Limits{Pids: 50}, Hierarchies: []Hierarchy{{V2: true, Dirs: []Dir{
		{Path: "/c", ParentUsable: true, ParentEnabled: Limiting}, {Path: "/c/own", Denied: DeniedOwner, Limits: Limits{CPUQuota: 50000, CPUPeriod: 100000}}}}}}
	s, err := Plan(l, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr(int64(1 << 30))}}, "NAME")
	if err != nil || len(s.Parents) != 1 || s.Parents[0].Controllers != Limiting {
		t.Fatalf("%+v, %v", s, err)
	}
	if want := (Limits{Memory: 1 << 30, CPUQuota: 50000, CPUPeriod: 100000, Pids: 50}); s.Limits != want {
		t.Errorf("got %+v, want %+v", s.Limits, want)
	}
	if s, err := Plan(l, nil, "NAME"); err != nil || len(s.Parents)+len(s.Missing) != 0 {
		t.Errorf("without limits: %+v, %v", s, err)
	}
}

func TestWithin(t *testing.T) {
	for _, tc := range []struct{ a, b, want Limits }{
		{Limits{}, Limits{}, Limits{}},
		{Limits{Memory: 1 << 30, Swap: -1, Pids: 5}, Limits{Memory: 2 << 30, Pids: 6}, Limits{Memory: 1 << 30, Swap: -1, Pids: 5}},
		{Limits{Memory: 2 << 30, Pids: 6}, Limits{Memory: 1 << 30, Pids: 5}, Limits{Memory: 1 << 30, Pids: 5}},
		{Limits{}, Limits{Memory: 1}, Limits{Memory: MinMemory}},
		{Limits{CPUQuota: 100000, CPUPeriod: 100000}, Limits{CPUQuota: 400000, CPUPeriod: 1000000}, Limits{CPUQuota: 400000, CPUPeriod: 1000000}},
		{Limits{CPUQuota: 400000, CPUPeriod: 1000000}, Limits{CPUQuota: 100000, CPUPeriod: 100000}, Limits{CPUQuota: 400000, CPUPeriod: 1000000}},
	} {
		if got := tc.a.within(tc.b); got != tc.want {
			t.Errorf("%+v within %+v: got %+v, want %+v", tc.a, tc.b, got, tc.want)
		}
	}
}
