//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestResultRoom: that the result cannot be written is found before anything runs, or
// said with a code that does not mean that nothing ran.
func TestResultRoom(t *testing.T) {
	if !isRoot() {
		t.Skip("mounts a small file system: root is needed")
	}
	f := newFixture(t, whos[0])
	disk := f.path("disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, fill, flags, redirect string
		code                        int
		ran                         bool
		result                      string // "" for none
	}{
		{"room", "0", "--result-file $D/r.json", "", 3, true, "r.json"},
		{"room, by descriptor", "0", "--result-fd 3", "3>$D/fd.json", 3, true, "fd.json"},
		{"full", "120k", "--result-file $D/r.json", "", 125, false, ""},
		{"full, by descriptor", "120k", "--result-fd 3", "3>$D/fd.json", 125, false, ""},
		{"no disk at all", "0", "--result-fd 3", "3>/dev/full", 123, true, ""},
		{"json", "0", "--json", ">/dev/full", 123, true, ""},
		{"json, and a file", "0", "--json --result-file $D/r.json", ">/dev/full", 123, true, "r.json"},
		{"json that nobody reads", "0", "--json", ">&9", 123, true, ""},
		{"by descriptor 1, that nobody reads", "0", "--result-fd 1", ">&9", 123, true, ""},
		{"messages that nobody reads", "0", "-v", "2>&9", 3, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			os.Remove(filepath.Join(f.ws, "ran"))
			args := f.strict(nil, "/bin/sh", "-c", ": > ran; exit 3")
			own := strings.Join(args[:len(args)-4], " ") // up to "--"
			script := "D=" + disk + "; mount -t tmpfs -o size=128k none $D || exit 99; head -c " + tt.fill + " /dev/zero > $D/fill; " +
				"mkfifo $D/p; exec 8<>$D/p 9>$D/p 8<&-; " + // a pipe that nobody reads
				own + " " + tt.flags + ` -- "$@" ` + tt.redirect + `; echo "code $?" >&2; ls -A $D >&2; cat $D/*.json >&2`
			o := f.do(call{args: append([]string{"unshare", "-m", "sh", "-c", script, "sh"}, args[len(args)-3:]...)})
			want := fmt.Sprintf("code %d\n", tt.code)
			if !strings.Contains(o.stderr, want) || exists(filepath.Join(f.ws, "ran")) != tt.ran {
				t.Errorf("ran %v: %v", exists(filepath.Join(f.ws, "ran")), o)
			}
			if tt.result != "" && !strings.Contains(o.stderr, `"exit_code":3`) {
				t.Errorf("no result: %v", o)
			}
			if strings.Contains(o.stderr, ".tmp\n") {
				t.Errorf("something is left: %v", o)
			}
		})
	}
}

// TestApplyKilled kills sbxrun apply while it writes: nothing but whole files is in the
// workspace, by no name but their own.
func TestApplyKilled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	f.write("ws/big1", "old", 0o644)
	f.own()
	data := "XDG_STATE_HOME=" + f.path("sets")
	const size = 64 << 20
	o := f.do(call{args: f.strict([]string{"--workspace", "overlay", "--disk", "1g"}, "/bin/sh", "-c", "for i in 1 2 3; do head -c 64m /dev/zero > big$i; done"), env: []string{data}})
	if o.code != 0 {
		t.Fatal(o)
	}
	done := false
	for i := 0; i < 12 && !done; i++ {
		args := f.who.command(sbxrun, "apply")
		c := exec.Command(args[0], args[1:]...)
		c.Dir, c.Env = f.ws, f.environ(data)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(5+7*i) * time.Millisecond)
		c.Process.Signal(syscall.SIGKILL)
		done = c.Wait() == nil // before the signal
		entries, err := os.ReadDir(f.ws)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			fi, err := e.Info()
			if err == nil && strings.HasPrefix(e.Name(), "big") && fi.Size() != size && fi.Size() != 3 {
				t.Errorf("kill %d: %s has %d bytes", i, e.Name(), fi.Size())
			}
			if strings.HasPrefix(e.Name(), ".sbxrun-") {
				t.Errorf("kill %d: %s is left", i, e.Name())
				os.Remove(filepath.Join(f.ws, e.Name()))
			}
		}
	}
	if o := f.do(call{args: f.who.command(sbxrun, "apply"), env: []string{data}}); !done && o.code != 0 {
		t.Errorf("the control, an apply that is not killed: %v", o)
	}
	if fi, err := os.Stat(filepath.Join(f.ws, "big3")); err != nil || fi.Size() != size {
		t.Errorf("big3: %v", err)
	}
}
