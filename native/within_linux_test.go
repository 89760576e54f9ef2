package native

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// openLimited opens a sandbox with these limits.
func openLimited(t *testing.T, memory uint64, cpus float64, pids int64) *sandbox {
	t.Helper()
	return openAs(t, &profiles.Request{Dir: t.TempDir(), Memory: &memory, CPUs: &cpus, Pids: &pids}).(*sandbox)
}

// limited skips a test without the cgroups that it is about.
func limited(t *testing.T, b *sandbox) {
	t.Helper()
	if b.controllers() != cgroups.Limiting {
		t.Skip("needs a cgroup of its own (root, or a delegated group)")
	}
}

// shWithin runs a script with limits of its own.
func shWithin(t *testing.T, b *sandbox, limits *specs.LinuxResources, script string) (string, *driver.Status) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := b.ExecWithin(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", script}}, limits, driver.Stdio{Stdout: out, Stderr: out})
	if err != nil {
		t.Errorf("%s: %v", script, err)
		return "", &driver.Status{}
	}
	st, err := p.Wait()
	if err != nil {
		t.Errorf("%s: %v", script, err)
		return "", &driver.Status{}
	}
	text, _ := os.ReadFile(out.Name())
	return string(text), st
}

const forks = `i=0; p=; while [ $i -lt 30 ]; do sleep 60 >/dev/null 2>&1 & p="$p $!"; i=$((i+1)); done; echo all; kill $p`

// TestWithin: each limit holds for the command that has it, is told by that one's
// status, and is nothing to a command that runs at the same time.
func TestWithin(t *testing.T) {
	b := openLimited(t, 1<<30, 4, 200)
	limited(t, b)
	memory, pids := int64(32<<20), int64(12)
	const eat = "head -c 100m /dev/zero | tail | wc -c"
	_, st := shWithin(t, b, policy.Within(&memory, nil, nil), eat+"; exit 9")
	if !st.OOMKilled || st.Usage.OOMKills == 0 || st.Usage.MemoryPeakBytes < 24<<20 || st.Usage.MemoryPeakBytes > 36<<20 {
		t.Errorf("memory: %+v", st)
	}
	if out, st := sh(t, b, eat); strings.TrimSpace(out) != strconv.Itoa(100<<20) || st.OOMKilled {
		t.Errorf("memory, without a limit: %q, %+v", out, st)
	}
	if _, st := sh(t, b, "exit 9"); st.OOMKilled || st.PidsDenied != 0 {
		t.Errorf("told of another's end: %+v", st)
	}
	_, st = shWithin(t, b, policy.Within(nil, nil, &pids), forks)
	if st.PidsDenied == 0 || st.Usage.PidsPeak == 0 || st.Usage.PidsPeak > 12 {
		t.Errorf("pids: %+v", st)
	}
	if out, st := sh(t, b, forks); !strings.Contains(out, "all\n") || st.PidsDenied != 0 {
		t.Errorf("pids, without a limit: %q, %+v", out, st)
	}
	const burn = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"
	if _, st := shWithin(t, b, policy.Within(nil, new(0.04), nil), burn); st.Usage.ThrottledMS == 0 {
		t.Errorf("cpus: %+v", st)
	}
	if _, st := shWithin(t, b, policy.Within(nil, new(4.0), nil), burn); st.Usage.ThrottledMS != 0 {
		t.Errorf("cpus, more than it can use: %+v", st)
	}
	// What fits is not touched.
	if out, st := shWithin(t, b, policy.Within(&memory, new(2.0), &pids), "head -c 4m /dev/zero | tail | wc -c"); strings.TrimSpace(out) != strconv.Itoa(4<<20) || st.OOMKilled || st.PidsDenied != 0 || st.ExitCode != 0 {
		t.Errorf("what fits: %q, %+v", out, st)
	}
	all, err := b.Status()
	if err != nil || all.Usage.OOMKills == 0 || all.PidsDenied == 0 {
		t.Errorf("the sandbox's own counts: %+v, %v", all, err)
	}
}

// groupDirs are the directories of a command's cgroup.
func groupDirs(in *inside) (dirs []string) {
	for _, s := range in.group.Parents() {
		dir, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(s.ParentFD))
		if err == nil {
			dirs = append(dirs, filepath.Join(dir, s.Name))
		}
	}
	return dirs
}

// TestWithinFromTheStart: the command is in all of its groups when it begins, they
// stay for what it leaves behind, and go when that has gone.
func TestWithinFromTheStart(t *testing.T) {
	b := openLimited(t, 1<<30, 2, 200)
	limited(t, b)
	memory, pids := int64(64<<20), int64(20)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p, err := b.ExecWithin(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "sleep 600 & read x; exit 3"}}, policy.Within(&memory, new(1.0), &pids), driver.Stdio{Stdin: r})
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
	dirs := groupDirs(p.(*inside))
	if len(dirs) == 0 {
		t.Fatal("no groups")
	}
	for _, dir := range dirs {
		if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || len(b) == 0 {
			t.Errorf("%s: %q, %v", dir, b, err)
		}
	}
	w.Close()
	if st, err := p.Wait(); err != nil || st.ExitCode != 3 {
		t.Errorf("%+v, %v", st, err)
	}
	for _, dir := range dirs {
		if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || len(b) == 0 {
			t.Errorf("what it left behind is not in %s: %q, %v", dir, b, err)
		}
	}
	if _, st := sh(t, b, "until pkill sleep; do :; done"); st.ExitCode != 0 {
		t.Errorf("%+v", st)
	}
	// As many as there are places, so that the first is looked at again.
	for i := range maxLimited + 5 {
		if _, st := shWithin(t, b, policy.Within(&memory, new(1.0), &pids), "exit 4"); st.ExitCode != 4 {
			t.Fatalf("%d: %+v", i, st)
		}
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s: %v", dir, err)
		}
	}
	groups := b.group.Parents()
	var own []string
	for _, s := range groups {
		dir, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(s.ParentFD))
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, filepath.Join(dir, s.Name))
	}
	shWithin(t, b, policy.Within(&memory, new(1.0), &pids), "sleep 600 &")
	b.Close()
	for _, dir := range own {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind at the end: %s: %v", dir, err)
		}
	}
}

// TestWithinKill ends a command in several groups, with what it started.
func TestWithinKill(t *testing.T) {
	b := openLimited(t, 1<<30, 2, 200)
	limited(t, b)
	pids, memory := int64(20), int64(64<<20)
	p, err := b.ExecWithin(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "setsid sleep 601 & sleep 602"}}, policy.Within(&memory, nil, &pids), driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if st, err := p.Wait(); err != nil || st.Signal == 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if out, _ := sh(t, b, "pgrep -f 'sleep 60[12]' || echo none"); out != "none\n" {
		t.Errorf("left: %s", out)
	}
}

// TestWithinRefused: no limit is more than the sandbox's, nor where it has none.
func TestWithinRefused(t *testing.T) {
	b := openLimited(t, 64<<20, 0, 30)
	n := func(n int64) *int64 { return &n }
	for _, tt := range []struct {
		limits *specs.LinuxResources
		want   string
	}{
		{policy.Within(n(65<<20), nil, nil), "limits.memory"},
		{policy.Within(n(0), nil, nil), "limits.memory"},
		{policy.Within(n(1), nil, nil), "1 MiB"},
		{policy.Within(nil, new(0.5), nil), "limits.cpus"},
		{policy.Within(nil, nil, n(31)), "limits.pids"},
		{policy.Within(nil, nil, n(0)), "limits.pids"},
	} {
		_, err := b.ExecWithin(context.Background(), &specs.Process{Args: []string{"true"}}, tt.limits, driver.Stdio{})
		var invalid *policy.InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt.limits, err)
		}
	}
	var unsupported *driver.UnsupportedError
	if _, err := b.ExecWithin(context.Background(), &specs.Process{Args: []string{"true"}}, &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0"}}, driver.Stdio{}); !errors.As(err, &unsupported) {
		t.Errorf("cpuset: %v", err)
	}
	for _, ok := range []*specs.LinuxResources{policy.Within(n(64<<20), nil, n(30)), policy.Within(nil, new(0.0), nil)} {
		if _, st := shWithin(t, b, ok, "exit 5"); st.ExitCode != 5 {
			t.Errorf("%+v: %+v", ok, st)
		}
	}
}

// TestWithinRlimits: in a sandbox that may go without a cgroup, commands have
// rlimits instead of one, as that of a run, and the status says so.
func TestWithinRlimits(t *testing.T) {
	b := openLimited(t, 64<<20, 0, 200)
	if b.group != nil {
		withoutGroup(t, b)
		b.s.limits = []specs.POSIXRlimit{supervisor.DataLimit(64 << 20), supervisor.NprocLimit(200)}
	}
	memory, pids := int64(32<<20), int64(50)
	const script = "ulimit -d; grep processes /proc/self/limits | tr -s ' ' | cut -d' ' -f3,4"
	out, st := shWithin(t, b, policy.Within(&memory, nil, &pids), script)
	if out != "32768\n50 50\n" || !st.Layers.Has(policy.LayerRlimits) {
		t.Errorf("%q, %+v", out, st)
	}
	if out, _ := sh(t, b, script); out != "65536\n200 200\n" {
		t.Errorf("without: %q", out)
	}
}

// withoutGroup makes a sandbox as it is for a user who can have no cgroup.
func withoutGroup(t *testing.T, b *sandbox) {
	b.mu.Lock()
	group := b.group
	b.group = nil
	b.mu.Unlock()
	t.Cleanup(func() {
		b.mu.Lock()
		b.group = group
		b.mu.Unlock()
		b.Close()
	})
}

// TestTerminateWithoutGroup: who ends a command is told that there was one to end,
// also if that was gone before the second of the two signals: else a time limit
// would be told as a signal of somebody else's.
func TestTerminateWithoutGroup(t *testing.T) {
	b := open(t, t.TempDir()).(*sandbox)
	withoutGroup(t, b)
	for range 500 {
		p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "600"}}, driver.Stdio{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan *driver.Status, 1)
		go func() {
			st, _ := p.Wait()
			ended <- st
		}()
		if err := p.Terminate(); err != nil {
			p.Kill()
			t.Errorf("Terminate: %v", err)
		}
		if st := <-ended; st == nil || st.Signal != syscall.SIGTERM {
			t.Fatalf("%+v", st)
		}
		if t.Failed() {
			return
		}
	}
}

// TestWithinTooMany: there are so many places, and one that is given back is one
// again.
func TestWithinTooMany(t *testing.T) {
	b := openLimited(t, 1<<30, 2, 2000)
	limited(t, b)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	pids := int64(20)
	var procs []driver.Process
	for range maxLimited {
		p, err := b.ExecWithin(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "read x; exit 3"}}, policy.Within(nil, nil, &pids), driver.Stdio{Stdin: r})
		if err != nil {
			t.Fatal(err)
		}
		procs = append(procs, p)
	}
	r.Close()
	_, err = b.ExecWithin(context.Background(), &specs.Process{Args: []string{"true"}}, policy.Within(nil, nil, &pids), driver.Stdio{})
	if driver.HintOf(err) == "" {
		t.Errorf("one too many: %v", err)
	}
	if _, st := sh(t, b, "exit 6"); st.ExitCode != 6 {
		t.Errorf("a command without limits: %+v", st)
	}
	w.Close()
	for _, p := range procs {
		if st, err := p.Wait(); err != nil || st.ExitCode != 3 {
			t.Errorf("%+v, %v", st, err)
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		p, err := b.ExecWithin(context.Background(), &specs.Process{Args: []string{"true"}}, policy.Within(nil, nil, &pids), driver.Stdio{})
		if err == nil {
			p.Wait()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestGroupGoesLate: what keeps a command's cgroup busy for longer than the first
// try to remove it takes, and longer than a sandbox may take to end, as a machine
// that has much else to do can, keeps it no longer than that.
func TestGroupGoesLate(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	b := openLimited(t, 1<<30, 2, 200)
	limited(t, b)
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"sleep", "600"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	in := p.(*inside)
	var own []string
	for _, dir := range groupDirs(in) {
		own = append(own, dir, filepath.Dir(dir))
	}
	// A group within cannot be removed by what knows nothing of it.
	busy := filepath.Join(own[0], "busy")
	if err := os.Mkdir(busy, 0o755); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(closePatience+time.Second, func() { os.Remove(busy) })
	b.Close()
	for _, dir := range own {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s: %v", dir, err)
			os.Remove(busy)
			os.Remove(dir)
		}
	}
}
