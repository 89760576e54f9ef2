package landlocked_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/landlocked"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// TestOthers is P21: a command without a pid namespace changes how none of the
// user's other processes run, and changes how it runs itself.
func TestOthers(t *testing.T) {
	if err := (landlocked.Driver{}).Available(t.Context()); err != nil {
		t.Skip(err)
	}
	if os.Getuid() == 0 {
		// The kernel keeps root without capabilities from most of it.
		c := exec.Command("/proc/self/exe", "-test.run=^TestOthers$")
		c.Dir = "/"
		c.Env = append(os.Environ(), "HOME=/nonexistent", "TMPDIR=/tmp")
		c.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("as an ordinary user: %v\n%s", err, out)
		}
	}
	// Each act is on a process that is named, or on all of a user's or a group's.
	const acts = `for a in "renice -n 19 -p $1" "taskset -p 1 $1" "chrt --idle -p 0 $1" "ionice -c 3 -p $1" "prlimit --pid $1 --nofile=64:64" "renice -n 19 -g $1"; do $a >/dev/null 2>&1 && echo "$a"; done; true`
	const own = `nice -n 5 nice; taskset 1 nproc; chrt --batch 0 echo batch; ionice -c 3 echo idle; ulimit -n 99; ulimit -n`
	self, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 - nice
	if err != nil {
		t.Fatal(err)
	}
	nicer := fmt.Sprint(min(20-self+5, 19))
	victim := func() (*exec.Cmd, func() string) {
		c := exec.Command("sleep", "100")
		c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
		return c, func() string {
			pid := c.Process.Pid
			nice, _ := unix.Getpriority(unix.PRIO_PROCESS, pid)
			var cpus unix.CPUSet
			unix.SchedGetaffinity(pid, &cpus)
			attr, _ := unix.SchedGetAttr(pid, 0)
			io, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(pid), 0)
			var files unix.Rlimit
			unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &files)
			return fmt.Sprint(nice, cpus.Count(), attr, io, files)
		}
	}
	run := func(script string, filter string, args ...string) *driver.Result {
		t.Helper()
		host, weaker := policy.EgressHost, policy.LayerNamespaces|policy.LayerProtect|policy.LayerCgroup
		req := &profiles.Request{Command: append([]string{"sh", "-c", script, "sh"}, args...), Profile: "strict", Dir: t.TempDir(), Net: &host, Seccomp: filter, Degrade: weaker}
		r, err := profiles.Resolve(req, &profiles.Facts{Home: "/nonexistent", Cwd: "/", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: 2, FS: os.DirFS("/")})
		if err != nil {
			t.Fatal(err)
		}
		res, err := driver.Run(t.Context(), landlocked.Driver{RunDir: t.TempDir()}, r.Policy, driver.RunOptions{Capture: true})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for _, filter := range []string{"strict", "none"} {
		c, looks := victim()
		before := looks()
		if res := run(acts, filter, fmt.Sprint(c.Process.Pid)); res.Stdout != "" || res.ExitCode != 0 || looks() != before {
			t.Errorf("filter %s: %q, %s, before %s", filter, res.Stdout, looks(), before)
		}
		if res := run(own, filter); res.Stdout != nicer+"\n1\nbatch\nidle\n99\n" {
			t.Errorf("filter %s, itself: %q, %s", filter, res.Stdout, res.Stderr)
		}
	}
	// The control: outside all of it is allowed.
	c, looks := victim()
	before := looks()
	out, err := exec.Command("sh", "-c", acts, "sh", fmt.Sprint(c.Process.Pid)).CombinedOutput()
	if err != nil || strings.Count(string(out), "\n") != 6 || looks() == before {
		t.Errorf("control: %q, %v, %s", out, err, looks())
	}
}

// TestSystemV: without a namespace for them, a command makes no System V objects, which
// would be the host's and stay, and reaches none of the host's.
func TestSystemV(t *testing.T) {
	if err := (landlocked.Driver{}).Available(t.Context()); err != nil {
		t.Skip(err)
	}
	const script = `use IPC::SysV; print defined(shmget($ARGV[0], 4096, 01600)) + 0, defined(semget($ARGV[0], 1, 01600)) + 0, defined(msgget($ARGV[0], 01600)) + 0;
my $b; print shmread($ARGV[1], $b, 0, 4) ? 1 : 0, " $!"`
	key := os.Getpid()<<8 | 0x5b
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	remove := func(id int) { unix.SysvShmCtl(id, unix.IPC_RMID, nil) }
	defer remove(id)
	host := policy.EgressHost
	for _, filter := range []string{"strict", "none"} {
		req := &profiles.Request{Command: []string{"perl", "-e", script, fmt.Sprint(key), fmt.Sprint(id)}, Profile: "strict", Dir: t.TempDir(), Net: &host, Seccomp: filter, Degrade: policy.LayerNamespaces | policy.LayerProtect | policy.LayerCgroup}
		r, err := profiles.Resolve(req, &profiles.Facts{Home: "/nonexistent", Cwd: "/", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: 2, FS: os.DirFS("/")})
		if err != nil {
			t.Fatal(err)
		}
		res, err := driver.Run(t.Context(), landlocked.Driver{RunDir: t.TempDir()}, r.Policy, driver.RunOptions{Capture: true})
		if err != nil || res.Stdout != "0000 Function not implemented" {
			t.Errorf("filter %s: %+v, %v", filter, res, err)
		}
	}
	// The control.
	out, err := exec.Command("perl", "-e", script, fmt.Sprint(key), fmt.Sprint(id)).Output()
	if err != nil || !strings.HasPrefix(string(out), "1111") {
		t.Errorf("control: %q, %v", out, err)
	}
	if made, err := unix.SysvShmGet(key, 0, 0); err == nil {
		remove(made)
	}
	exec.Command("ipcrm", "-S", fmt.Sprint(key), "-Q", fmt.Sprint(key)).Run()
}

// TestForksAfterTheEnd: what a command leaves behind forks as fast as it is killed, until
// its group lets it fork no more. That is no limit of the command's, and no verdict.
func TestForksAfterTheEnd(t *testing.T) {
	if err := (landlocked.Driver{}).Available(t.Context()); err != nil {
		t.Skip(err)
	}
	const script = `use POSIX; $end = time + 20; for (1..48) { if (!fork) { while (time < $end) { POSIX::_exit(0) if fork } POSIX::_exit(0) } } select(undef, undef, undef, 0.3); POSIX::_exit(1)`
	host, pids := policy.EgressHost, int64(1000)
	for range 2 {
		req := &profiles.Request{Command: []string{"perl", "-e", script}, Profile: "strict", Dir: t.TempDir(), Net: &host, Pids: &pids, Degrade: policy.LayerNamespaces | policy.LayerProtect}
		r, err := profiles.Resolve(req, &profiles.Facts{Home: "/nonexistent", Cwd: "/", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: 2, FS: os.DirFS("/")})
		if err != nil {
			t.Fatal(err)
		}
		res, err := driver.Run(t.Context(), landlocked.Driver{RunDir: t.TempDir()}, r.Policy, driver.RunOptions{Capture: true})
		if driver.CodeOf(err) == driver.CodeUnavailable {
			t.Skip(err)
		}
		if err != nil || res.ExitCode != 1 || res.Usage.PidsPeak >= uint64(pids) {
			t.Fatalf("%+v, %v", res, err)
		}
		if res.Reason != driver.ReasonExit || res.Usage.PidsDenied != 0 {
			t.Errorf("%s, with %d forks denied and %d processes at most", res.Reason, res.Usage.PidsDenied, res.Usage.PidsPeak)
		}
	}
}

// TestHadAnyway: a layer that a run was allowed to go without, and has, is not missing.
func TestHadAnyway(t *testing.T) {
	if err := (landlocked.Driver{}).Available(t.Context()); err != nil {
		t.Skip(err)
	}
	host, had := policy.EgressHost, policy.LayerSeccomp|policy.LayerLandlock|policy.LayerNoNewPrivs|policy.LayerRlimits
	req := &profiles.Request{Command: []string{"sed", "-n", "s/^Seccomp://p; s/^NoNewPrivs://p", "/proc/self/status"}, Profile: "strict", Dir: t.TempDir(), Net: &host, Degrade: had | policy.LayerNamespaces | policy.LayerProtect | policy.LayerCgroup}
	r, err := profiles.Resolve(req, &profiles.Facts{Home: "/nonexistent", Cwd: "/", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	res, err := driver.Run(t.Context(), landlocked.Driver{RunDir: t.TempDir()}, r.Policy, driver.RunOptions{Capture: true})
	if err != nil || strings.Join(strings.Fields(res.Stdout), " ") != "1 2" {
		t.Fatalf("%+v, %v", res, err)
	}
	if !res.Layers.Has(had) || res.Degraded&had != 0 || !res.Degraded.Has(policy.LayerNamespaces|policy.LayerProtect) {
		t.Errorf("layers %v, degraded %v", res.Layers, res.Degraded)
	}
}

// TestStageKilled: a run whose stage somebody kills is no set-up that failed, after which
// a caller may take it that nothing ran.
func TestStageKilled(t *testing.T) {
	if err := (landlocked.Driver{}).Available(t.Context()); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	host, weaker := policy.EgressHost, policy.LayerNamespaces|policy.LayerProtect|policy.LayerCgroup
	// The kernel may keep it from the parent, so it says who that is.
	req := &profiles.Request{Command: []string{"sh", "-c", "echo $PPID; exec sleep 30"}, Profile: "strict", Dir: dir, Net: &host, Degrade: weaker}
	r, err := profiles.Resolve(req, &profiles.Facts{Home: "/nonexistent", Cwd: "/", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	begin := time.Now()
	res, err := driver.Run(t.Context(), landlocked.Driver{RunDir: t.TempDir()}, r.Policy, driver.RunOptions{Stdio: driver.Stdio{Stdout: out}, Started: func(driver.Process) func() {
		out.Close()
		var parent int
		if _, err := fmt.Fscan(in, &parent); err != nil || parent < 2 || syscall.Kill(parent, syscall.SIGKILL) != nil {
			t.Errorf("%d was not killed: %v", parent, err)
		}
		return nil
	}})
	var lost *driver.LostError
	if !errors.As(err, &lost) || res.Reason != driver.ReasonLost || res.ExitCode != driver.ExitLost || time.Since(begin) > 20*time.Second {
		t.Errorf("%+v, %v", res, err)
	}
}
