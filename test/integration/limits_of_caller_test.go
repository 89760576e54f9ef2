//go:build linux

package integration

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestCallersLimits: limits of the caller's that are too small for sbxrun itself are
// named before anything is set up; with enough it runs (the control).
func TestCallersLimits(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		f := newFixture(t, w)
		for _, tt := range []struct {
			limit, want string
			code        int
		}{
			{"ulimit -n 12", "the limit on open files is 12", 125},
			{"ulimit -n 1024", "", 0},
		} {
			o := f.do(call{args: append([]string{"sh", "-c", tt.limit + ` && exec "$@"`, "sh"}, f.strict(nil, "true")...)})
			if o.code != tt.code || !strings.Contains(o.stderr, tt.want) || tt.code != 0 && !strings.Contains(o.stderr, "hint: raise it") {
				t.Errorf("%s: %v", tt.limit, o)
			}
		}
	})
}

// TestDirectoryGone: from a working directory that was removed, what needs none works.
func TestDirectoryGone(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		f := newFixture(t, w)
		for _, tt := range []struct {
			name string
			args []string
			code int
			want string
		}{
			{"-C", f.strict(nil, "pwd"), 0, f.ws + "\n"},
			{"session ls", w.command(sbxrun, "session", "ls"), 0, "ID"},
			{"doctor", w.command(sbxrun, "doctor"), 0, "strict runs here"},
			{"no -C", w.command(sbxrun, "--", "pwd"), 125, "the working directory is gone"},
			{"a relative path", f.strict([]string{"--ro", "x"}, "pwd"), 125, "flag --ro"},
		} {
			gone := f.path("gone")
			if err := os.MkdirAll(gone, 0o777); err != nil {
				t.Fatal(err)
			}
			c := exec.Command("sh", append([]string{"-c", `cd "$0" && rmdir "$0" && exec "$@"`, gone}, tt.args...)...)
			if w.uid != os.Getuid() {
				os.Chown(f.dir, 0, 0) // the shell is not that user, and the directory is to go all the same
			}
			c.Dir, c.Env = f.ws, f.environ()
			out, _ := c.CombinedOutput()
			if c.ProcessState.ExitCode() != tt.code || !strings.Contains(string(out), tt.want) {
				if tt.name == "doctor" && w.noCgroup != "" {
					continue // it says what is missing
				}
				t.Errorf("%s: %d: %s", tt.name, c.ProcessState.ExitCode(), out)
			}
		}
	})
}
