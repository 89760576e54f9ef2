//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKilledTogether kills, at a random moment, a supervisor and process 1, or all that
// a run or a session consists of, some of them stopped before, and looks at what is
// left: no process, and after the next run, or prune, no group, no mount and no file.
// KILLS in the environment says how many of each.
func TestKilledTogether(t *testing.T) {
	t.Parallel()
	kills := 2
	if n, err := strconv.Atoi(os.Getenv("KILLS")); err == nil {
		kills = n
	}
	type killing struct {
		name string
		pick func(supervisor int, below []int) []int // in this order
	}
	killings := []killing{
		{"supervisor", func(s int, _ []int) []int { return []int{s} }},
		{"supervisor and process 1", func(s int, below []int) []int { return append([]int{s}, head(below)...) }},
		{"process 1 and supervisor", func(s int, below []int) []int { return append(head(below), s) }},
		{"all", func(s int, below []int) []int { return append([]int{s}, below...) }},
		{"all, from below", func(s int, below []int) []int {
			below = slices.Clone(below)
			slices.Reverse(below)
			return append(below, s)
		}},
	}
	asEachUser(t, func(t *testing.T, w who) {
		f := newFixture(t, w)
		before := f.snapshot()
		run := func(flags ...string) []string {
			return f.strict(flags, "/bin/sh", "-c", "sleep 1000 & (sleep 1000 & wait) & wait", f.unique("mark"))
		}
		session := func(id string) []string {
			args := append(w.command(sbxrun, "session", "create", "-C", f.ws), w.sessionFlags()...)
			return append(args, id)
		}
		rt := f.path("run")
		if err := os.Mkdir(rt, 0o700); err != nil {
			t.Fatal(err)
		}
		f.own()
		env := f.environ("XDG_RUNTIME_DIR="+rt, "TMPDIR="+rt)
		start := func(args []string) *exec.Cmd {
			c := exec.Command(args[0], args[1:]...)
			c.Dir, c.Env = f.ws, env
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, what := range []struct {
			name string
			args []string
		}{
			{"native", run()},
			{"landlock", run("--driver", "landlock", "--allow-degraded", "namespaces,protect")},
			{"bwrap", run("--driver", "bwrap", "--allow-degraded", "landlock,protect")},
			{"session", nil},
		} {
			if _, err := exec.LookPath("bwrap"); what.name == "bwrap" && err != nil {
				continue
			}
			if what.name != "session" {
				// A self-test that is killed leaves what the next one removes, and that may be
				// long after this test.
				if out, err := runWith(env, f.ws, append(slices.Clone(what.args[:len(what.args)-4]), "true")); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			for _, k := range killings {
				for i := range kills {
					stopped := i%2 == 1
					name := fmt.Sprintf("%s, %s, %d", what.name, k.name, i)
					var supervisor int
					var c *exec.Cmd
					if what.name == "session" {
						id := fmt.Sprintf("k%d", time.Now().UnixNano())
						if err := start(session(id)).Wait(); err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						supervisor = holderOf(rt, id)
						c = start(append(w.command(sbxrun, "session", "exec", id, "--"), "sleep", "1000"))
					} else {
						c = start(what.args)
						supervisor = c.Process.Pid
					}
					if supervisor == 0 || !within(10*time.Second, func() bool { return len(descendants(supervisor)) >= 2 }) {
						t.Fatalf("%s: nothing runs", name)
					}
					// Without a group nothing knows what is left; docs/reliability.md says so. The
					// test must know all of it then.
					alone := w.noCgroup != "" && (what.name == "landlock" || what.name == "bwrap")
					if alone && !within(10*time.Second, func() bool { return count(descendants(supervisor), "sleep") == 2 }) {
						t.Fatalf("%s: the command does not run", name)
					}
					time.Sleep(time.Duration(i*7%20) * time.Millisecond)
					below := descendants(supervisor)
					victims := k.pick(supervisor, below)
					for _, pid := range victims {
						if stopped {
							syscall.Kill(pid, syscall.SIGSTOP)
						}
					}
					for _, pid := range victims {
						syscall.Kill(pid, syscall.SIGKILL)
					}
					c.Process.Kill() // the client of a session, if it does not end
					c.Wait()
					if what.name == "native" || what.name == "session" || k.name == "supervisor" {
						if !within(10*time.Second, func() bool { return !slices.ContainsFunc(append(below, supervisor), living) }) {
							t.Errorf("%s: a process lives", name)
						}
					}
					// The next that comes removes what nobody holds.
					if what.name == "session" {
						if out, err := runWith(env, f.ws, w.command(sbxrun, "prune", "--older-than", "0s")); err != nil {
							t.Errorf("%s: prune: %v: %s", name, err, out)
						}
					} else if out, err := runWith(env, f.ws, f.strict(nil, "true")); err != nil {
						t.Errorf("%s: the next run: %v: %s", name, err, out)
					}
					if alone {
						for _, pid := range below {
							syscall.Kill(pid, syscall.SIGKILL)
						}
					} else if !within(time.Second, func() bool { return !slices.ContainsFunc(below, living) }) {
						// A process leaves its group before it is seen to be dead.
						t.Errorf("%s: a process lives after the next run", name)
					}
					for _, dir := range groupsOf(supervisor) {
						t.Errorf("%s: %s is left", name, dir)
					}
				}
			}
		}
		runWith(env, f.ws, f.strict([]string{"--driver", "landlock", "--allow-degraded", "namespaces,protect"}, "true"))
		if after := f.snapshot(); fmt.Sprint(without(after, "run")) != fmt.Sprint(without(before, "run")) {
			t.Errorf("the tree is another: %v, %v before", after, before)
		}
		left, _ := filepath.Glob(rt + "/sbxrun-*/r-*")
		if more, _ := filepath.Glob(rt + "/sbxrun/*/k*"); len(left)+len(more) > 0 {
			t.Errorf("left: %q %q", left, more)
		}
	})
}

// count counts those that run a program of that name.
func count(pids []int, name string) (n int) {
	for _, pid := range pids {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(b) == name+"\n" {
			n++
		}
	}
	return n
}

func head(list []int) []int { return slices.Clone(list[:min(1, len(list))]) }

func runWith(env []string, dir string, args []string) (string, error) {
	c := exec.Command(args[0], args[1:]...)
	c.Env, c.Dir = env, dir
	out, err := c.CombinedOutput()
	return string(out), err
}

// descendants are a process's children, then theirs.
func descendants(pid int) (list []int) {
	for level := childrenOf(pid); len(level) > 0; {
		list = append(list, level...)
		var next []int
		for _, p := range level {
			next = append(next, childrenOf(p)...)
		}
		level = next
	}
	return list
}

// holderOf is the process that holds a session.
func holderOf(runtime, id string) int {
	records, _ := filepath.Glob(runtime + "/sbxrun/*/" + id + "/*.json")
	for _, name := range records {
		b, _ := os.ReadFile(name)
		_, rest, ok := strings.Cut(string(b), `"pid":`)
		if !ok {
			continue
		}
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		if pid, _ := strconv.Atoi(digits); pid != 0 {
			return pid
		}
	}
	return 0
}

// groupsOf are the cgroups that a process has made.
func groupsOf(pid int) (list []string) {
	roots, _ := cgroupRoots()
	for _, root := range roots {
		for _, pattern := range []string{"/sbxrun/r-*", "/sbxrun-test-*/sbxrun/r-*", "/sbxrun-test-*/*/sbxrun/r-*"} {
			found, _ := filepath.Glob(root + strings.Replace(pattern, "r-*", fmt.Sprintf("r-*-%d-*", pid), 1))
			list = append(list, found...)
		}
	}
	return list
}

func without(m map[string]string, prefix string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		if !strings.HasPrefix(k, prefix) {
			out[k] = v
		}
	}
	return out
}
