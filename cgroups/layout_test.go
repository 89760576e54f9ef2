package cgroups

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseMemberships(t *testing.T) {
	got := ParseMemberships("9:name=systemd:/x\n8:pids:/a:b\n5:devices:/\n2:cpu,cpuacct:/c (deleted)\ngarbage\n1:2\n7:memory:relative\n0::/../d e\n")
	want := []Membership{
		{Controllers: Pids, Path: "/a:b"},
		{Controllers: CPU | CPUAcct, Path: "/c"},
		{V2: true, Path: "/../d e"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestParseMounts(t *testing.T) {
	got := ParseMounts(hybrid + unified +
		"50 31 0:40 /docker/x /mnt/a\\040b\\134 rw - cgroup none rw,pids,memory\n" +
		"51 31 0:40 / /mnt/cgroupish rw - cgroupfs none rw,pids\n" +
		"52 31 0:40 / - cgroup none rw,pids\n- cgroup \n - cgroup\n")
	want := []Mount{
		{false, CPU | CPUAcct, "/sys/fs/cgroup/cpu,cpuacct", "/"},
		{false, Memory, "/sys/fs/cgroup/memory", "/"},
		{false, Pids, "/sys/fs/cgroup/pids", "/"},
		{true, 0, "/sys/fs/cgroup/unified", "/"},
		{true, 0, "/sys/fs/cgroup", "/"},
		{false, Memory | Pids, `/mnt/a b\`, "/docker/x"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestDirs(t *testing.T) {
	for _, tc := range []struct{ point, root, own, want string }{
		{"/c", "/", "/", "/c"},
		{"/c", "/", "/a/b", "/c /c/a /c/a/b"},
		{"/c", "/docker/x", "/docker/x", "/c"},
		{"/c", "/docker/x", "/docker/x/y", "/c /c/y"},
		{"/c", "/docker/x", "/docker/xy", "/c"}, // a neighbour, not below
		{"/c", "/docker/x", "/docker", "/c"},    // above what is shown
		{"/c", "/..", "/", "/c"},                // the mount shows more than the namespace does
		{"/c", "/", "/../other", "/c"},          // the caller is outside of its namespace's view
		{"/c", "/", "/a/b (deleted)x", "/c /c/a /c/a/b (deleted)x"},
	} {
		if got := strings.Join(dirsTo(tc.point, tc.root, tc.own), " "); got != tc.want {
			t.Errorf("dirsTo(%q, %q, %q) = %q, want %q", tc.point, tc.root, tc.own, got, tc.want)
		}
	}
}

// The mount that shows the most of a hierarchy is the one used.
func TestLayoutPrefersTheWidestMount(t *testing.T) {
	l := NewLayout(ParseMemberships("0::/a/b\n"), []Mount{{true, 0, "/bound", "/a"}, {true, 0, "/whole", "/"}, {false, Memory, "/v1", "/"}})
	if len(l.Hierarchies) != 1 || len(l.Hierarchies[0].Dirs) != 3 || l.Hierarchies[0].Dirs[0].Path != "/whole" {
		t.Errorf("got %+v", l)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("4:memory:/a\n0::/b\n", hybrid+unified)
	f.Fuzz(func(t *testing.T, self, mounts string) {
		l := NewLayout(ParseMemberships(self), ParseMounts(mounts))
		for _, h := range l.Hierarchies {
			if len(h.Dirs) == 0 {
				t.Error("a hierarchy without its top")
			}
		}
		if _, err := Plan(l, strict(), "NAME"); err != nil {
			t.Error(err)
		}
	})
}

func TestScan(t *testing.T) {
	var oom, kill, single, none, huge uint64
	scan([]byte("low 0\nhigh 0\nmax 31\noom 2\noom_kill 3\noom_group_kill 1\n"), counter{"oom", &oom}, counter{"oom_kill", &kill}, counter{"oo", &none})
	scan([]byte("33554432\n"), counter{"", &single})
	scan([]byte("max\n"), counter{"", &none})
	scan([]byte("\n \n x\nx \nx -1\nx 1 2\n"), counter{"x", &none}, counter{"", &none})
	scan([]byte("18446744073709551610\n"), counter{"", &huge})
	scan([]byte("99999999999999999999"), counter{"", &none})
	if oom != 2 || kill != 3 || single != 33554432 || none != 0 {
		t.Errorf("got oom %d, oom_kill %d, single %d, none %d", oom, kill, single, none)
	}
}

func TestNames(t *testing.T) {
	now := time.Unix(1795000000, 5)
	name := groupName(now, 4711, 0x0123456789abcdef)
	if want := "r-6afd86c0-4711-0123456789abcdef"; name != want {
		t.Errorf("got %s, want %s", name, want)
	}
	if made, pid, ok := parseName(name); !ok || made.Unix() != now.Unix() || pid != 4711 {
		t.Errorf("parseName: %v, %d, %v", made, pid, ok)
	}
	for _, bad := range []string{"", "r-", "sbxrun", "r-6afd6ec0-4711-0123456789abcde", "r-6afd6ec0-4711-0123456789abcdeg", "x-6afd6ec0-4711-0123456789abcdef",
		"r-6afd6ec0-47a1-0123456789abcdef", "r-6afd6ec0--0123456789abcdef", "r--4711-0123456789abcdef", "r-6afd6ec0-4711-0123456789abcdef0", "r-6afd6ec0-4711-0123456789ABCDEF",
		"r-ffffffffffffffffff-1-0123456789abcdef", "r-0-1-0123456789abcdef/..", "r-6afd6ec0-4711_0123456789abcdef", "process_api"} {
		if _, _, ok := parseName(bad); ok {
			t.Errorf("%q taken for a group's name", bad)
		}
	}
}
