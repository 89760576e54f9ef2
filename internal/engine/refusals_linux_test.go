package engine

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
)

// TestRefusals: what is refused has a line, again refused a new number, and what has no
// room goes, the oldest first. Nobody else can change the file.
func TestRefusals(t *testing.T) {
	r, err := NewRefusals()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", r.File().Fd())
	lines := func() []string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || len(b) != refusalsSize || b[len(b)-1] != 0 {
			t.Fatal(len(b), err)
		}
		text, _, _ := bytes.Cut(b, []byte{0})
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	protected := driver.Denial{Operation: driver.OpWrite, Target: "/w/.mcp.json", Rule: driver.RuleProtected + ".mcp.json",
		Grant: driver.GrantOf("unprotect", ".mcp.json")}
	r.Add(protected)
	r.Add(driver.Denial{Operation: driver.OpWrite, Target: "/usr/a b\n", Rule: "read-only: /usr"})
	r.Add(driver.Denial{Operation: driver.OpConnect, Reason: "no rule allows a.example:80"})
	r.Add(protected)
	want := []string{`2 - refused: "/usr/a b\n": read-only: /usr`, "3 + network: no rule allows a.example:80",
		"4 + refused: /w/.mcp.json: protected path .mcp.json; only who set the sandbox up can allow it: --unprotect .mcp.json"}
	if got := lines(); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q", got)
	}
	for i := range 1000 {
		r.Add(driver.Denial{Operation: driver.OpWrite, Target: fmt.Sprintf("/usr/%d-%s", i, strings.Repeat("x", 3000*(i%2))), Rule: "r"})
	}
	got := lines()
	for i, l := range got {
		want := fmt.Sprintf("%d - refused: /usr/%d-", 1004-len(got)+1+i, 1000-len(got)+i)
		if l = strings.Replace(l, ": \"", ": ", 1); !strings.HasPrefix(l, want) {
			t.Errorf("%.40q, want %q…", l, want)
		}
	}
	if len(got) < 7 {
		t.Errorf("%d lines", len(got))
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
