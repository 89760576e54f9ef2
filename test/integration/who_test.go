//go:build linux

package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ordinary is the user that the suite tests as when it runs as root.
const ordinary = 1000

// A who is a user that runs sbxrun.
type who struct {
	name string
	uid  int

	// become is what stands before a command line to run it as this user, with
	// the cgroups that a login session would have been given.
	become []string

	// noCgroup says why this user can have no cgroup here, or is empty. Then
	// strict runs only with the layer given up, and the tests of its limits are
	// skipped by this reason.
	noCgroup string
}

// whos are the users that each test runs as.
var whos []who

// flags are what every run as this user is given.
func (w who) flags() (flags []string) {
	if w.noCgroup != "" {
		flags = append(flags, "--allow-degraded", "cgroup")
	}
	if breakLayer != "" {
		// It would notice before the tests do.
		flags = append(flags, "--verify=false")
	}
	return flags
}

// sessionFlags are flags for sessions: only runs are tried before the first.
func (w who) sessionFlags() []string {
	return slices.DeleteFunc(w.flags(), func(flag string) bool { return flag == "--verify=false" })
}

// command is a command line that w runs.
func (w who) command(args ...string) []string {
	return append(append([]string{}, w.become...), args...)
}

// isRoot reports whether the suite may do what root may on this host, to set a
// scene for either user.
func isRoot() bool { return os.Getuid() == 0 }

// findSubjects says who the tests run as: root and an ordinary user where the
// suite runs as root, else only the user that it runs as.
func findSubjects() ([]who, func(), error) {
	if !isRoot() {
		w := who{name: "user", uid: os.Getuid()}
		fmt.Fprintln(os.Stderr, "integration: not run as root: only the ordinary user's half runs")
		if err := exec.Command(sbxrun, "--profile", "strict", "-C", runDir, "--", attack, "exit").Run(); err != nil {
			w.noCgroup = "no cgroup is delegated to this user (run the suite by systemd-run --user --scope -p Delegate=yes)"
			fmt.Fprintln(os.Stderr, "integration:", w.noCgroup)
		}
		return []who{w}, func() {}, nil
	}
	groups, cleanup, err := delegate()
	if err != nil {
		return nil, nil, err
	}
	user := who{name: "user", uid: ordinary, become: []string{stage}}
	if err := errors.Join(os.Mkdir(user.cache(), 0o755), os.Chown(user.cache(), ordinary, ordinary)); err != nil {
		cleanup()
		return nil, nil, err
	}
	for _, g := range groups {
		user.become = append(user.become, "-cgroup", g)
	}
	user.become = append(user.become, "-uid", fmt.Sprint(ordinary), "--")
	return []who{{name: "root"}, user}, cleanup, nil
}

// cgroupRoots are the hierarchies that hold the limits: on v2 one, else one for
// each controller.
func cgroupRoots() (roots []string, v2 bool) {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/cgroup.controllers"); err == nil {
		return []string{top}, true
	}
	for _, c := range []string{"memory", "cpu", "pids"} {
		if _, err := os.Stat(filepath.Join(top, c, "cgroup.procs")); err == nil {
			roots = append(roots, filepath.Join(top, c))
		}
	}
	return roots, false
}

// delegate does for the ordinary user what systemd does at a login: it makes a
// group in every hierarchy and gives it to the user.
func delegate() (groups []string, cleanup func(), err error) {
	var made []string
	cleanup = func() {
		for i := len(made) - 1; i >= 0; i-- {
			removeGroups(made[i])
		}
	}
	roots, v2 := cgroupRoots()
	for _, root := range roots {
		// Those of a suite that was killed: nobody else will remove them.
		old, _ := filepath.Glob(filepath.Join(root, "sbxrun-test-*"))
		for _, dir := range old {
			var pid int
			if n, _ := fmt.Sscanf(filepath.Base(dir), "sbxrun-test-%d", &pid); n == 1 && syscall.Kill(pid, 0) == syscall.ESRCH {
				removeGroups(dir)
			}
		}
		dir := filepath.Join(root, fmt.Sprintf("sbxrun-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			cleanup()
			return nil, nil, err
		}
		made = append(made, dir)
		enter := dir
		if v2 {
			const all = "+memory +cpu +pids"
			os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte(all), 0)
			os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(all), 0)
			// A group with processes gives its children no controllers: the
			// session lives in a leaf, as in a user@.service.
			enter = filepath.Join(dir, "session")
			if err := os.Mkdir(enter, 0o755); err != nil {
				cleanup()
				return nil, nil, err
			}
		}
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if base := filepath.Base(path); d.IsDir() || base == "cgroup.procs" || base == "tasks" || base == "cgroup.threads" || base == "cgroup.subtree_control" {
				return errors.Join(err, os.Chown(path, ordinary, ordinary))
			}
			return err
		})
		if err != nil {
			cleanup()
			return nil, nil, err
		}
		groups = append(groups, enter)
		if v2 {
			// And a shell of its own is in it: sbxrun takes a group that it is alone
			// in for itself.
			shell := exec.Command(stage, "-cgroup", enter, "-uid", fmt.Sprint(ordinary), "--", "sleep", "infinity")
			if err := shell.Start(); err != nil {
				cleanup()
				return nil, nil, err
			}
			remove := cleanup
			cleanup = func() { shell.Process.Kill(); shell.Wait(); remove() }
			within(5*time.Second, func() bool { b, _ := os.ReadFile(enter + "/cgroup.procs"); return len(b) > 0 })
		}
	}
	return groups, cleanup, nil
}

// removeGroups removes a cgroup and all below it. A group that still has
// processes stays, and the leak check names it.
func removeGroups(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroups(filepath.Join(dir, e.Name()))
		}
	}
	os.Remove(dir)
}

// delegated are the groups given to the ordinary user, none for the other.
func (w who) delegated() []string {
	var dirs []string
	if !isRoot() {
		// Of v2: this process is in a leaf of what its session was given.
		b, _ := os.ReadFile("/proc/self/cgroup")
		if own, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "0::"); ok {
			if dir := filepath.Dir("/sys/fs/cgroup" + own); unix.Access(dir, unix.W_OK) == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	for i, a := range w.become {
		if a == "-cgroup" {
			dirs = append(dirs, strings.TrimSuffix(w.become[i+1], "/session"))
		}
	}
	return dirs
}

// cache is where sbxrun keeps what it found out about the host. It is one for
// all tests of a user, as in life.
func (w who) cache() string { return filepath.Join(runDir, "cache-"+w.name) }

// needCgroup skips a test of a limit where this user has no cgroup.
func (w who) needCgroup(t *testing.T) {
	t.Helper()
	if w.noCgroup != "" {
		t.Skip(w.noCgroup)
	}
}
