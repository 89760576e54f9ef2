//go:build linux

package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	userSlice   = "/sys/fs/cgroup/user.slice/user-1000.slice"
	userService = "user@1000.service"
	appSlice    = userSlice + "/" + userService + "/app.slice"
)

// TestSystemd is ISO-7 under a real systemd: where the groups of root's and of an
// ordinary user's runs are, that limits hold there, and that nothing of a run is
// left in systemd. It starts and stops the user's manager, so it runs only where
// nobody uses that: make vmtest has such a machine.
func TestSystemd(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root, to start and stop users' service managers")
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("needs systemd as init (the virtual machine systemd of make vmtest has it)")
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		t.Skip("needs cgroup v2 alone: systemd delegates no v1 controller to a user")
	}
	if exec.Command("systemctl", "--quiet", "is-active", userService).Run() == nil {
		t.Skip("the ordinary user's service manager is in use: the test stops it")
	}
	s := &systemdHost{t: t, dir: filepath.Join(runDir, "systemd"), home: filepath.Join(runDir, "home")}
	for _, dir := range []string{s.dir, s.home} {
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.Chown(dir, ordinary, ordinary))
	}
	s.systemctl("start", userService)
	defer s.systemctl("stop", userService)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *systemdHost)
	}{
		{"session", systemdSession},
		{"verdicts", systemdVerdicts},
		{"many", systemdMany},
		{"killed", systemdKilled},
		{"stopped", systemdStopped},
		{"session-limits", systemdSessionLimits},
		{"user-service", systemdUserService},
		{"delegated-scope", systemdDelegatedScope},
		{"system-service", systemdSystemService},
		{"root", systemdRoot},
		{"root-service-again", systemdRootServiceAgain},
		{"doctor", systemdDoctor},
		{"hung", systemdHung},
		{"no-cpu", systemdNoCPU},
		{"setup", systemdSetup},
		{"absent", systemdAbsent},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &systemdHost{t: t, dir: s.dir, home: s.home}
			tc.test(t, s)
			s.empty()
		})
	}
}

type systemdHost struct {
	t         *testing.T
	dir, home string // the user's workspace and home
	n         int
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *systemdHost) systemctl(args ...string) string {
	s.t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("systemctl %v: %v: %s", args, err, out)
	}
	return string(out)
}

// asUser is what makes of a command line one of the ordinary user's.
func (s *systemdHost) asUser(args ...string) []string {
	return append([]string{"setpriv", "--reuid=" + strconv.Itoa(ordinary), "--regid=" + strconv.Itoa(ordinary), "--clear-groups", "--",
		"env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + s.home, "XDG_RUNTIME_DIR=/run/user/1000",
		"DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus"}, args...)
}

// userctl is systemctl --user.
func (s *systemdHost) userctl(args ...string) (string, error) {
	out, err := s.command(s.asUser(append([]string{"systemctl", "--user"}, args...)...)...).CombinedOutput()
	return string(out), err
}

func (s *systemdHost) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = s.dir
	return cmd
}

// session runs a command line of the user's in what a login makes: a scope of
// the system's manager in the user's slice, which belongs to root.
func (s *systemdHost) session(args ...string) *exec.Cmd {
	s.n++
	unit := fmt.Sprintf("session-test%d.scope", s.n)
	return s.command(append([]string{"systemd-run", "--quiet", "--collect", "--scope", "--slice=user-1000.slice", "--unit=" + unit}, s.asUser(args...)...)...)
}

// A verdict is of a result what is of interest here.
type verdict struct {
	Code   int      `json:"exit_code"`
	Reason string   `json:"reason"`
	Layers []string `json:"layers"`
	Error  string   `json:"error"`
	Hint   string   `json:"hint"`
	Usage  struct {
		Throttled float64 `json:"cpu_throttled_ms"`
	} `json:"usage"`
}

// json runs sbxrun --json, of which cmd is the whole command line.
func (s *systemdHost) json(cmd *exec.Cmd) verdict {
	s.t.Helper()
	var v verdict
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(out, &v); err != nil {
		s.t.Fatalf("%v: %v: %s%s", cmd.Args, err, out, &stderr)
	}
	return v
}

var cgroupLayers = []string{"cgroup.memory", "cgroup.cpu", "cgroup.pids"}

func (s *systemdHost) limited(v verdict) {
	s.t.Helper()
	for _, l := range cgroupLayers {
		if !slices.Contains(v.Layers, l) {
			s.t.Errorf("layer %s is not in %v: %s", l, v.Layers, v.Error)
		}
	}
}

// groups are the cgroups of runs, found all over the tree.
func groups() (all []string) {
	name := regexp.MustCompile(`^r-[0-9a-f]+-[0-9]+-[0-9a-f]{16}$`)
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && name.MatchString(d.Name()) {
			all = append(all, path)
		}
		return nil
	})
	return all
}

func soon(what func() bool) bool {
	for range 300 {
		if what() {
			return true
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

// during starts a run whose command waits, calls see with its group, and lets it
// end.
func (s *systemdHost) during(cmd *exec.Cmd, see func(group string)) {
	s.t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	stdin, err := cmd.StdinPipe()
	must(s.t, err)
	must(s.t, cmd.Start())
	var found []string
	if soon(func() bool {
		found = groups()
		// That of a self-test, which may come first, is soon gone.
		return len(found) == 1 && slices.ContainsFunc(strings.Fields(read(found[0]+"/cgroup.procs")), func(pid string) bool {
			return read("/proc/"+pid+"/comm") == "cat"
		})
	}) {
		see(found[0])
	} else {
		s.t.Errorf("groups %v", found)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		s.t.Errorf("%v: %s", err, &out)
	}
}

func read(file string) string {
	b, _ := os.ReadFile(file)
	return strings.TrimSpace(string(b))
}

// empty reports what is left of runs: units, and groups but for the directory
// sbxrun, which stays.
func (s *systemdHost) empty() {
	s.t.Helper()
	var left string
	if !soon(func() bool {
		left = strings.Join(groups(), "\n")
		if out, err := s.userctl("list-units", "--all", "--no-legend", "--plain", "sbxrun-*"); err == nil {
			left += out
		}
		scopes, _ := filepath.Glob(appSlice + "/sbxrun-*")
		left += strings.Join(scopes, "\n")
		return left == ""
	}) {
		s.t.Errorf("left behind:\n%s", left)
	}
}

var scopeGroup = regexp.MustCompile(`^` + regexp.QuoteMeta(appSlice) + `/sbxrun-[0-9]+-[0-9a-f]{16}\.scope/sbxrun/r-`)

func systemdSession(t *testing.T, s *systemdHost) {
	out, err := s.session("cat", "/proc/self/cgroup").Output()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), ".scope") || strings.Contains(string(out), userService) {
		t.Fatalf("a session of the test's own: %q, %v", out, err)
	}
	s.during(s.session(sbxrun, "--memory", "64m", "--pids", "32", "--cpus", "0.5", "--", "cat"), func(group string) {
		if !scopeGroup.MatchString(group) {
			t.Errorf("the group is %s", group)
		}
		for file, want := range map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "pids.max": "32", "cpu.max": "50000 100000"} {
			if got := read(group + "/" + file); got != want && !(file == "memory.swap.max" && got == "") {
				t.Errorf("%s: %q, want %q", file, got, want)
			}
		}
		units, _ := s.userctl("list-units", "--no-legend", "--plain", "sbxrun-*")
		if strings.Count(units, "sbxrun-") == 0 || !strings.Contains(units, "running") {
			t.Errorf("units: %q", units)
		}
	})
	s.limited(s.json(s.session(sbxrun, "--json", "--profile", "strict", "--", "true")))
}

func systemdVerdicts(t *testing.T, s *systemdHost) {
	hog := "head -c 300m /dev/zero | tail >/dev/null"
	if v := s.json(s.session(sbxrun, "--json", "--memory", "32m", "--", "sh", "-c", hog)); v.Reason != "oom" {
		t.Errorf("memory: %+v", v)
	}
	forks := "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; wait"
	if v := s.json(s.session(sbxrun, "--json", "--pids", "6", "--", "sh", "-c", forks)); v.Reason != "pids" {
		t.Errorf("pids: %+v", v)
	}
	if v := s.json(s.session(sbxrun, "--json", "--timeout", "1s", "--", "sleep", "60")); v.Reason != "timeout" || v.Code != 124 {
		t.Errorf("time: %+v", v)
	}
	burn := "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
	if v := s.json(s.session(sbxrun, "--json", "--cpus", "0.2", "--", "sh", "-c", burn)); v.Code != 0 || v.Usage.Throttled == 0 {
		t.Errorf("cpu: %+v", v)
	}
}

// Many at once, and one after the other, leave no unit behind: 100 runs.
func systemdMany(t *testing.T, s *systemdHost) {
	script := `fail=0
for round in $(seq 25); do
	for i in 1 2 3 4; do "$0" -- true || echo failed & done; wait
done`
	out, err := s.session("sh", "-c", script, sbxrun).CombinedOutput()
	if err != nil || len(out) != 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// SIGKILL of sbxrun ends everything, and systemd forgets the scope.
func systemdKilled(t *testing.T, s *systemdHost) {
	cmd := s.session(sbxrun, "--", "sleep", "1000")
	must(t, cmd.Start())
	if !soon(func() bool { return len(groups()) == 1 && read(groups()[0]+"/cgroup.procs") != "" }) {
		t.Fatal("it did not start")
	}
	if !strings.Contains(read(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid)), "/sbxrun-") {
		t.Error("sbxrun itself is not in the scope")
	}
	pid, err := strconv.Atoi(strings.Fields(read(groups()[0] + "/cgroup.procs"))[0])
	must(t, err)
	must(t, cmd.Process.Kill())
	cmd.Wait()
	if !soon(func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }) {
		t.Error("the command survived")
	}
}

// systemd stops a scope as it stops any: the run ends as by SIGTERM.
func systemdStopped(t *testing.T, s *systemdHost) {
	cmd := s.session(sbxrun, "--", "sleep", "1000")
	must(t, cmd.Start())
	if !soon(func() bool { return len(groups()) == 1 && read(groups()[0]+"/cgroup.procs") != "" }) {
		t.Fatal("it did not start")
	}
	if out, err := s.userctl("stop", "sbxrun-*"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
}

// What limits the session limits the run, though it is elsewhere.
func systemdSessionLimits(t *testing.T, s *systemdHost) {
	cmd := s.session(sbxrun, "--", "cat")
	cmd.Args = slices.Insert(cmd.Args, 1, "-p", "MemoryMax=99M", "-p", "TasksMax=44", "-p", "CPUQuota=30%")
	s.during(cmd, func(group string) {
		if !scopeGroup.MatchString(group) {
			t.Errorf("the group is %s", group)
		}
		for file, want := range map[string]string{"memory.max": "103809024", "pids.max": "44", "cpu.max": "30000 100000"} {
			if got := read(group + "/" + file); got != want {
				t.Errorf("%s: %q, want %q", file, got, want)
			}
		}
	})
}

// userRun runs a unit of the user's manager.
func (s *systemdHost) userRun(args ...string) *exec.Cmd {
	return s.command(s.asUser(append([]string{"systemd-run", "--user", "--quiet", "--collect", "--working-directory=" + s.dir}, args...)...)...)
}

// In a user's service what systemd delegated to the user is at hand.
func systemdUserService(t *testing.T, s *systemdHost) {
	script := `"$0" -- cat; exit $?`
	s.during(s.userRun("--pipe", "--wait", "-p", "MemoryMax=99M", "sh", "-c", script, sbxrun), func(group string) {
		if !strings.HasPrefix(group, appSlice+"/sbxrun/r-") {
			t.Errorf("the group is %s", group)
		}
		if got := read(group + "/memory.max"); got != "103809024" {
			t.Errorf("memory.max: %q", got)
		}
	})
}

// A scope of one's own that is delegated is used as it is.
func systemdDelegatedScope(t *testing.T, s *systemdHost) {
	s.during(s.userRun("--scope", "--unit=mine.scope", "-p", "Delegate=yes", "-p", "MemoryMax=99M", sbxrun, "--", "cat"), func(group string) {
		if !strings.HasPrefix(group, appSlice+"/mine.scope/sbxrun/r-") {
			t.Errorf("the group is %s", group)
		}
	})
}

func (s *systemdHost) systemRun(args ...string) *exec.Cmd {
	return s.command(append([]string{"systemd-run", "--quiet", "--collect", "--pipe", "--wait", "--working-directory=" + s.dir}, args...)...)
}

// A system service that runs as the user is not left; told to delegate, it is
// used.
func systemdSystemService(t *testing.T, s *systemdHost) {
	user := []string{"-p", "User=" + strconv.Itoa(ordinary), "--setenv=HOME=" + s.home}
	v := s.json(s.systemRun(append(user, sbxrun, "--json", "--", "true")...))
	if v.Code != 125 || !strings.Contains(v.Error, "belongs to a system service") || !strings.Contains(v.Hint, "Delegate=yes") {
		t.Errorf("%+v", v)
	}
	s.limited(s.json(s.systemRun(append(user, "-p", "Delegate=yes", sbxrun, "--json", "--", "true")...)))
}

// Root's groups are in the slice of its unit, whose limits hold them; those of
// the unit itself are taken over; and a unit with Delegate=yes has them inside.
func systemdRoot(t *testing.T, s *systemdHost) {
	script := `"$0" -- cat; exit $?`
	s.during(s.systemRun("--slice=sbxruntest.slice", "-p", "MemoryMax=99M", "sh", "-c", script, sbxrun), func(group string) {
		if !strings.HasPrefix(group, "/sys/fs/cgroup/sbxruntest.slice/sbxrun/r-") {
			t.Errorf("the group is %s", group)
		}
		if got := read(group + "/memory.max"); got != "103809024" {
			t.Errorf("memory.max: %q", got)
		}
	})
	s.during(s.systemRun("--unit=sbxruntest", "-p", "Delegate=yes", sbxrun, "--", "cat"), func(group string) {
		if !strings.HasPrefix(group, "/sys/fs/cgroup/system.slice/sbxruntest.service/sbxrun/r-") {
			t.Errorf("the group is %s", group)
		}
	})
}

// systemd puts the next command of a unit where the last one was.
func systemdRootServiceAgain(t *testing.T, s *systemdHost) {
	const unit = "/run/systemd/system/sbxruntest.service"
	must(t, os.WriteFile(unit, fmt.Appendf(nil, "[Service]\nType=oneshot\nWorkingDirectory=%s\nEnvironment=HOME=/root\nExecStart=%s -- true\nExecStart=%[2]s -- true\n", s.dir, sbxrun), 0o644))
	defer s.systemctl("daemon-reload")
	defer os.Remove(unit)
	s.systemctl("daemon-reload")
	s.systemctl("start", "sbxruntest.service")
	s.systemctl("start", "sbxruntest.service")
}

func systemdDoctor(t *testing.T, s *systemdHost) {
	out, err := s.session(sbxrun, "doctor").CombinedOutput()
	if err != nil || strings.Count(string(out), "each run in a scope of its own from systemd") != 3 {
		t.Errorf("%v: %s", err, out)
	}
}

// A manager that does not answer costs a run some seconds, not for ever.
func systemdHung(t *testing.T, s *systemdHost) {
	pid := strings.TrimSpace(s.systemctl("show", "-p", "MainPID", "--value", userService))
	n, err := strconv.Atoi(pid)
	must(t, err)
	must(t, syscall.Kill(n, syscall.SIGSTOP))
	v := s.json(s.session("timeout", "60", sbxrun, "--json", "--", "true"))
	must(t, syscall.Kill(n, syscall.SIGCONT))
	if v.Code != 125 || !strings.Contains(v.Error, "did not answer in time") {
		t.Errorf("%+v", v)
	}
}

// A controller that the administrator did not delegate is named, with the way to
// delegate it, and the run can agree to go without it.
func systemdNoCPU(t *testing.T, s *systemdHost) {
	dir := "/run/systemd/system/" + userService + ".d"
	must(t, os.Mkdir(dir, 0o755))
	defer func() {
		os.RemoveAll(dir)
		s.systemctl("daemon-reload")
		s.systemctl("restart", userService)
	}()
	must(t, os.WriteFile(dir+"/test.conf", []byte("[Service]\nDelegate=\nDelegate=memory pids\n"), 0o644))
	s.systemctl("daemon-reload")
	s.systemctl("restart", userService)
	v := s.json(s.session(sbxrun, "--json", "--", "true"))
	if v.Code != 125 || !strings.Contains(v.Error, "layer cgroup.cpu is not available: it is not delegated") || !strings.Contains(v.Hint, "Delegate=cpu memory pids") {
		t.Errorf("%+v", v)
	}
	v = s.json(s.session(sbxrun, "--json", "--allow-degraded", "cgroup.cpu", "--memory", "32m", "--", "sh", "-c", "head -c 300m /dev/zero | tail >/dev/null"))
	if v.Reason != "oom" || slices.Contains(v.Layers, "cgroup.cpu") || !slices.Contains(v.Layers, "cgroup.pids") {
		t.Errorf("%+v", v)
	}
}

// sbxrun setup has systemd delegate what the limits need, and takes that back.
func systemdSetup(t *testing.T, s *systemdHost) {
	dir := "/run/systemd/system/user@.service.d"
	again := func() {
		s.systemctl("daemon-reload")
		s.systemctl("restart", userService)
	}
	must(t, os.Mkdir(dir, 0o755))
	defer func() {
		os.RemoveAll(dir)
		again()
	}()
	must(t, os.WriteFile(dir+"/10-test.conf", []byte("[Service]\nDelegate=\nDelegate=memory pids\n"), 0o644))
	again()
	setup := func(flag string) {
		cmd := s.command(sbxrun, "setup", flag)
		cmd.Env = append(os.Environ(), "SUDO_UID="+strconv.Itoa(ordinary))
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "delegation") && flag == "--yes" {
			t.Fatalf("%s: %v: %s", flag, err, out)
		}
		s.systemctl("restart", userService)
	}
	denied := func(when string) {
		if v := s.json(s.session(sbxrun, "--json", "--", "true")); v.Code != 125 || !strings.Contains(v.Error, "cgroup.cpu") {
			t.Errorf("%s: %+v", when, v)
		}
	}
	denied("before")
	setup("--yes")
	s.limited(s.json(s.session(sbxrun, "--json", "--", "true")))
	setup("--undo")
	denied("after --undo")
}

// Without a manager the reason is that, and what to do.
func systemdAbsent(t *testing.T, s *systemdHost) {
	s.systemctl("stop", userService)
	// It goes with its last unit; until it is gone no other can be started.
	s.systemctl("stop", "user-1000.slice")
	defer s.systemctl("start", userService)
	v := s.json(s.session(sbxrun, "--json", "--", "true"))
	if v.Code != 125 || !strings.Contains(v.Error, "no systemd user manager is running") || !strings.Contains(v.Hint, "enable-linger") {
		t.Errorf("%+v", v)
	}
	v = s.json(s.session(sbxrun, "--json", "--allow-degraded", "cgroup", "--", "true"))
	if v.Code != 0 || slices.Contains(v.Layers, "cgroup.memory") {
		t.Errorf("%+v", v)
	}
}
