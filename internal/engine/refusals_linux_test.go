package engine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
)

// TestRefusals: what is refused has a line, again refused a new number, and what has no
// room goes, the oldest first, and none for another kind. Nobody else can change the file.
func TestRefusals(t *testing.T) {
	r, err := NewRefusals()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", r.File().Fd())
	lines := func() (list []string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || len(b) != refusalsSize {
			t.Fatal(len(b), err)
		}
		for _, l := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
			if len(l) != refusalLine-1 {
				t.Fatalf("%d: %q", len(l), l)
			}
			if l = strings.TrimSpace(l); l == "" {
				continue
			}
			number, _, _ := strings.Cut(l, " ")
			text, twice := strings.CutSuffix(l, " "+number)
			if !twice {
				t.Errorf("%q", l)
			}
			list = append(list, strings.TrimRight(text, " "))
		}
		return list
	}
	protected := driver.Denial{Operation: driver.OpWrite, Target: "/w/.mcp.json", Rule: driver.RuleProtected + ".mcp.json",
		Grant: driver.GrantOf("unprotect", ".mcp.json")}
	r.Add(protected)
	r.Add(driver.Denial{Operation: driver.OpWrite, Target: "/usr/a b\n", Rule: "read-only: /usr"})
	r.Add(driver.Denial{Operation: driver.OpConnect, Reason: "no rule allows a.example:80"})
	r.Add(protected)
	want := []string{"4 + refused: /w/.mcp.json: protected path .mcp.json; only who set the sandbox up can allow it: --unprotect .mcp.json",
		"3 + network: no rule allows a.example:80", `2 - refused: "/usr/a b\n": read-only: /usr`}
	if got := lines(); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q", got)
	}
	r.Add(driver.Denial{Operation: driver.OpRead, Target: "/root/secret", Rule: "not shown"})
	for i := range 1000 {
		r.Add(driver.Denial{Operation: driver.OpWrite, Target: fmt.Sprintf("/usr/%d-%s", i, strings.Repeat("é", 1000*(i%2))), Rule: "r"})
	}
	got := lines()
	if len(got) != 2+refusalLines/2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%q", got)
	}
	left := map[string]bool{}
	for _, l := range got[2:] {
		n, text, _ := strings.Cut(strings.Replace(l, `"`, "", 1), " - refused: /usr/")
		i, _, _ := strings.Cut(text, "-")
		left[n+" "+i] = true
	}
	for i := 1000 - refusalLines/2; i < 1000; i++ {
		if !left[fmt.Sprintf("%d %d", i+5, i)] {
			t.Errorf("%d: not in %v", i, left)
		}
	}

	f, err := os.OpenFile(path, os.O_RDWR, 0) // as root, whom the mode does not stop
	if err != nil {
		if f, err = os.Open(path); err != nil {
			t.Fatal(err)
		}
	}
	defer f.Close()
	for what, err := range map[string]error{
		"write":       func() error { _, err := f.WriteAt([]byte("x"), 0); return err }(),
		"ftruncate":   f.Truncate(0),
		"mmap":        func() error { _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED); return err }(),
		"F_ADD_SEALS": func() error { _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: allowed", what)
		}
	}
	r.Close()
	r.Add(protected)
}

// TestRefusalsTorn: however fast lines change, one whose numbers are equal is whole.
func TestRefusalsTorn(t *testing.T) {
	r, err := NewRefusals()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200000 {
			r.Add(driver.Denial{Operation: driver.OpWrite, Target: "/" + strings.Repeat(string(rune('a'+i%26)), i%150), Rule: strings.Repeat(string(rune('a'+i%26)), 99)})
		}
	}()
	whole, torn, b := 0, 0, make([]byte, refusalsSize)
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		// In pieces, as a shell reads.
		for at := 0; at < len(b); at += 128 {
			if _, err := r.File().ReadAt(b[at:at+128], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range strings.Split(string(b), "\n") {
			f := strings.Fields(l)
			if len(f) < 2 || f[0] != f[len(f)-1] {
				torn++
				continue
			}
			whole++
			n, _ := strconv.Atoi(f[0])
			c := string(rune('a' + (n-1)%26))
			if text := strings.Join(f[2:len(f)-1], ""); strings.Trim(strings.TrimPrefix(text, "refused:/"), c) != ":" {
				t.Fatalf("%q", l)
			}
		}
	}
	if whole < refusalLines/2 || torn == 0 {
		t.Errorf("%d whole, %d torn or blank", whole, torn)
	}
}
