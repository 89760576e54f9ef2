package cgroups

import (
	"os"
	"strings"
	"testing"

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
			var above string
			for i := range g.slots {
				s := &g.slots[i]
				if !s.Controllers.Has(Memory) {
					continue
				}
				file := "memory.limit_in_bytes"
				if s.V2 {
					file = "memory.max"
				}
				above = s.Path + "/with-limit"
				if err := os.Mkdir(above, 0o755); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Rmdir(above) })
				if err := os.WriteFile(above+"/"+file, []byte(tt.above), 0); err != nil {
					t.Fatal(err)
				}
				if s.V2 {
					// What the group above hands down, the sandbox's group may set.
					have, err := os.ReadFile(s.Path + "/cgroup.subtree_control")
					if err == nil {
						err = os.WriteFile(above+"/cgroup.subtree_control", []byte("+"+strings.Join(strings.Fields(string(have)), " +")), 0)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				fd, err := unix.Open(above, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				unix.Close(s.fd)
				s.fd, s.Path = fd, above
				for j := range s.Writes {
					if s.Writes[j].File == file {
						s.Writes[j].Value = tt.own
						g.memory = map[string]int64{"32m": 32 << 20, "512m": 512 << 20}[tt.own]
					}
					if s.Writes[j].File == "memory.memsw.limit_in_bytes" {
						s.Writes[j].Value = tt.own
					}
				}
			}
			if above == "" {
				t.Skip("needs the memory controller")
			}
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
