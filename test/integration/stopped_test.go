//go:build linux

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestStopped: a command that ended in time is not told as timed out because who
// watches over it was stopped when the time was up; one that did not end is (the
// control).
func TestStopped(t *testing.T) {
	t.Parallel()
	const wall = 4 * time.Second
	// Whoever is stopped cannot open a file for it: the guard is the supervisor's.
	script := `exec 9>out-$0; echo up >&9; while [ ! -e go-$0 ]; do sleep 0.05; done; echo said; echo over >&9; exit 3`
	f := newFixture(t, whos[0])
	flags := append(f.who.flags(), "--timeout", wall.String(), "--json")
	run := func(driver ...string) []string {
		return append(append(f.who.command(sbxrun, "--profile", "strict", "-C", f.ws), flags...), append(driver, "--", "/bin/sh", "-c", script)...)
	}
	s, held := newSession(t, whos[0]), newSession(t, whos[0])
	in := func(s *session) []string {
		return append(s.who.command(sbxrun, "session", "exec", "--timeout", wall.String(), "--json", s.id, "--"), "/bin/sh", "-c", script)
	}
	stage := func(pid int) []int { return append(childrenOf(pid), pid) }
	only := func(pid int) []int { return []int{pid} }
	tests := []struct {
		name string
		args []string
		ws   *fixture
		env  string
		stop func(client int) []int // in the order in which they continue
	}{
		{"native", run(), f, "", only},
		{"native with process 1", run(), f, "", func(pid int) []int { return append([]int{pid}, childrenOf(pid)...) }},
		{"native, process 1 first", run(), f, "", stage},
		{"landlock", run("--driver", "landlock", "--allow-degraded", "namespaces,protect"), f, "", only},
		{"bwrap", run("--driver", "bwrap", "--allow-degraded", "landlock,protect"), f, "", only},
		{"host", run("--driver", "host"), f, "", only},
		{"session, its client", in(s), s.fixture, s.env, only},
		{"session, its holder", in(held), held.fixture, held.env, func(int) []int { return []int{held.info().Pid} }},
	}
	// All at once: each waits for its time limit.
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, tt := range tests {
		for _, ends := range []bool{true, false} {
			name := strings.NewReplacer(" ", "-", ",", "").Replace(tt.name) + "-" + strconv.FormatBool(ends)
			wg.Go(func() {
				t.Run(name, func(t *testing.T) {
					if tt.ws == held.fixture && !ends {
						t.Skip("the other of the two has stopped the holder")
					}
					if tt.name == "bwrap" {
						if _, err := exec.LookPath("bwrap"); err != nil {
							t.Skip("bwrap is not installed")
						}
					}
					said := func(what string) bool {
						return within(10*time.Second, func() bool {
							b, _ := os.ReadFile(filepath.Join(tt.ws.ws, "out-"+name))
							return strings.Contains(string(b), what)
						})
					}
					o := tt.ws.do(call{args: append(append([]string{}, tt.args...), name), env: []string{tt.env}, started: func(c *exec.Cmd) {
						begin := time.Now()
						if !said("up") {
							t.Error("the command did not start")
						}
						pids := tt.stop(c.Process.Pid)
						for _, pid := range pids {
							syscall.Kill(pid, syscall.SIGSTOP)
						}
						if ends {
							os.WriteFile(filepath.Join(tt.ws.ws, "go-"+name), nil, 0o644)
							if !said("over") {
								t.Error("the command did not end")
							}
						}
						time.Sleep(wall + time.Second - time.Since(begin))
						for _, pid := range pids {
							syscall.Kill(pid, syscall.SIGCONT)
							time.Sleep(50 * time.Millisecond)
						}
					}})
					r := tt.ws.result(o)
					if ends && (r.ExitCode != 3 || r.Reason != "exit" || r.Stdout != "said\n") {
						t.Errorf("%d, %s, %q: it ended in time: %v", r.ExitCode, r.Reason, r.Stdout, o)
					}
					if !ends && (r.ExitCode != 124 || r.Reason != "timeout") {
						t.Errorf("%d, %s: it did not end in time", r.ExitCode, r.Reason)
					}
				})
			})
		}
	}
}
