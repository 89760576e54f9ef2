package cgroups

import (
	"os"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestOOMBy: a kill is the group's own doing if the group has reached its limit, and
// else that of the group above which has.
func TestOOMBy(t *testing.T) {
	for _, tt := range []struct {
		name, above, own string
		want             string
	}{
		{"own", "512m", "32m", ""},
		{"above", "32m", "512m", "with-limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := prepare(t, strict())
			between(t, g, Memory, tt.above, tt.own)
			if err := g.Create(); err != nil {
				t.Fatal(err)
			}
			defer g.Remove()
			code, out := run(t, g, 0, "", "/bin/sh", "-c", "head -c 128m /dev/zero | tail >/dev/null; exit 3")
			st, err := g.Stats()
			if err != nil || st.OOMKills == 0 {
				t.Fatalf("nothing was killed: %d, %s: %+v, %v", code, out, st, err)
			}
			if st.OOMBy != "" != (tt.want != "") || !strings.Contains(st.OOMBy, tt.want) {
				t.Errorf("%q, want %q", st.OOMBy, tt.want)
			}
		})
	}
}

// between puts a group with a limit between a sandbox's group, which is to have another,
// and the one above.
func between(t *testing.T, g *Group, c Controllers, above, own string) {
	t.Helper()
	found := false
	for i := range g.slots {
		s := &g.slots[i]
		if !s.Controllers.Has(c) {
			continue
		}
		found = true
		file := map[Controllers]string{Memory: "memory.limit_in_bytes", Pids: "pids.max"}[c]
		if s.V2 && c == Memory {
			file = "memory.max"
		}
		dir := s.Path + "/with-limit"
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Rmdir(dir) })
		if err := os.WriteFile(dir+"/"+file, []byte(above), 0); err != nil {
			t.Fatal(err)
		}
		if s.V2 {
			// What the group above hands down, the sandbox's group may set.
			have, err := os.ReadFile(s.Path + "/cgroup.subtree_control")
			if err == nil {
				err = os.WriteFile(dir+"/cgroup.subtree_control", []byte("+"+strings.Join(strings.Fields(string(have)), " +")), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(s.fd)
		s.fd, s.Path = fd, dir
		for j := range s.Writes {
			if f := s.Writes[j].File; f == file || c == Memory && f == "memory.memsw.limit_in_bytes" {
				s.Writes[j].Value = own
			}
		}
		switch c {
		case Memory:
			g.memory = map[string]int64{"32m": 32 << 20, "512m": 512 << 20}[own]
		case Pids:
			if g.pids, err = strconv.ParseInt(own, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !found {
		t.Skip("needs the controller of ", c)
	}
}

// TestPidsBy: a fork that a group above refused is told as that group's doing.
func TestPidsBy(t *testing.T) {
	for _, tt := range []struct{ name, above, own, want string }{
		{"own", "20", "4", ""},
		{"above", "4", "20", "with-limit, which has a limit of 4 processes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := prepare(t, strict())
			between(t, g, Pids, tt.above, tt.own)
			if err := g.Create(); err != nil {
				t.Fatal(err)
			}
			defer g.Remove()
			run(t, g, 0, "", "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done")
			st, err := g.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if st.PidsDenied == 0 && tt.want != "" {
				t.Skip("since Linux 6.11 a fork is counted in the group whose limit refused it, and not here")
			}
			if st.PidsDenied == 0 || (st.PidsBy != "") != (tt.want != "") || !strings.Contains(st.PidsBy, tt.want) {
				t.Errorf("%+v, want %q", st, tt.want)
			}
		})
	}
}

// TestLimitBy: a limit of the caller's own group that the sandbox's has taken over is
// told as the caller's, for memory and for processes.
func TestLimitBy(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		tighten      func(*Group)
		want         string
		by           func(Stats) string
	}{
		{"own processes", "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done", func(*Group) {}, "", func(s Stats) string { return s.PidsBy }},
		{"the caller's processes", "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done", func(g *Group) { g.theirs.Pids = 4 }, "smaller", func(s Stats) string { return s.PidsBy }},
		{"own memory", "head -c 128m /dev/zero | tail >/dev/null", func(*Group) {}, "", func(s Stats) string { return s.OOMBy }},
		{"the caller's memory", "head -c 128m /dev/zero | tail >/dev/null", func(g *Group) { g.theirs.Memory = 32 << 20 }, "smaller", func(s Stats) string { return s.OOMBy }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			memory, pids := int64(32<<20), int64(4)
			g := prepare(t, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory}, Pids: &specs.LinuxPids{Limit: &pids}})
			tt.tighten(g)
			if err := g.Create(); err != nil {
				t.Fatal(err)
			}
			defer g.Remove()
			run(t, g, 0, "", "/bin/sh", "-c", tt.script)
			st, err := g.Stats()
			if err != nil || st.OOMKills+st.PidsDenied == 0 {
				t.Fatalf("%+v, %v", st, err)
			}
			if by := tt.by(st); (by != "") != (tt.want != "") || !strings.Contains(by, tt.want) {
				t.Errorf("%q, want %q", by, tt.want)
			}
		})
	}
}

// TestTheirs: what the caller's own groups make smaller is kept apart from what was
// asked for.
func TestTheirs(t *testing.T) {
	memory, pids := int64(1<<30), int64(100)
	l, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	l.Left = Limits{Memory: 64 << 20, Pids: 10}
	g, err := Prepare(l, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}, Pids: &specs.LinuxPids{Limit: &pids}})
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	defer g.Close()
	if g.theirs.Memory != 64<<20 || g.theirs.Pids != 10 || g.memory != 64<<20 || g.pids != 10 {
		t.Errorf("%+v, %d, %d", g.theirs, g.memory, g.pids)
	}
}
