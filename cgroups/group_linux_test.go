package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The tests of this file are real: groups are made below the host's own
// hierarchies and limits are run into. They take v1, hybrid and v2 hosts, root
// and a user with a delegated group; what a host cannot give is named.
//
// The test binary starts itself as "stage", the sandbox's PID 1 in a new user
// namespace, which starts the command in the group as the second stage does.

func TestMain(m *testing.M) {
	switch role := os.Getenv("SBXRUN_TEST_ROLE"); role {
	case "":
		os.Exit(m.Run())
	case "stage":
		stage()
	case "hog":
		hog(os.Args[1])
	case "burn":
		for end := time.Now().Add(600 * time.Millisecond); time.Now().Before(end); {
		}
	case "where":
		where()
	default:
		panic(role)
	}
}

// stage is given parents as descriptors 3…, and as arguments "NAME:v1"…, "--",
// and the command. It waits for "go", and ends with the command's code.
func stage() {
	// The thread that joins v1's groups is the one that forks.
	runtime.LockOSThread()
	split := slices.Index(os.Args, "--")
	slots, argv := os.Args[1:split], os.Args[split+1:]
	var word [2]byte
	if n, _ := io.ReadFull(os.Stdin, word[:]); n != 2 {
		os.Exit(90)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = os.Environ()
	for i, v := range cmd.Env {
		if strings.HasPrefix(v, "SBXRUN_TEST_ROLE=") {
			cmd.Env[i] = "SBXRUN_TEST_ROLE=" + os.Getenv("SBXRUN_TEST_COMMAND")
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	for i, s := range slots {
		name, version, _ := strings.Cut(s, ":")
		if version == "v2" {
			fd, err := unix.Openat(3+i, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				fail("open group", err)
			}
			cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
			continue
		}
		if err := writeAt(3+i, name+"/tasks", "0"); err != nil {
			fail("join "+name, err)
		}
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		os.Exit(128 + int(exit.Sys().(syscall.WaitStatus).Signal()))
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	}
	fail("start", err)
}

func fail(what string, err error) {
	fmt.Printf("stage: %s: %v\n", what, err)
	os.Exit(91)
}

// hog touches MiB of memory, and in a child if told so by a trailing "c".
func hog(size string) {
	if in, ok := strings.CutSuffix(size, "c"); ok {
		_ = exec.Command("/proc/self/exe", in).Run()
		os.Exit(7)
	}
	n, err := strconv.Atoi(size)
	if err != nil {
		panic(err)
	}
	mem, err := unix.Mmap(-1, 0, n<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
}

// where prints the process's groups as a cgroup namespace of its own shows them.
func where() {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		fail("unshare", err)
	}
	b, _ := os.ReadFile("/proc/thread-self/cgroup")
	os.Stdout.Write(b)
}

// prepare makes a group, or skips the test, saying why.
func prepare(t testing.TB, r *specs.LinuxResources) *Group {
	t.Helper()
	l, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	g, err := Prepare(l, r)
	if g != nil {
		t.Cleanup(g.Close)
	}
	var missing *MissingError
	if errors.As(err, &missing) {
		t.Skipf("needs a cgroup of its own (root, or a delegated group): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func create(t testing.TB, r *specs.LinuxResources) *Group {
	t.Helper()
	g := prepare(t, r)
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// run starts a command in the group by way of a stage in namespaces of its own,
// and returns the command's code and output. The stage is cloned before the
// group exists.
func run(t *testing.T, g *Group, extra uintptr, role string, argv ...string) (int, string) {
	t.Helper()
	code, out := try(t, g, extra, role, argv...)
	if code == 91 || code == 90 {
		t.Fatalf("stage failed: %s", out)
	}
	return code, out
}

// try is run for a stage that may fail: with code 91.
func try(t *testing.T, g *Group, extra uintptr, role string, argv ...string) (int, string) {
	t.Helper()
	args := []string{}
	cmd := exec.Command("/proc/self/exe")
	for _, s := range g.Parents() {
		version := "v1"
		if s.V2 {
			version = "v2"
		}
		args = append(args, s.Name+":"+version)
		fd, err := unix.FcntlInt(uintptr(s.ParentFD), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "parent")
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.Args = append(append(append(cmd.Args, args...), "--"), argv...)
	cmd.Env = append(os.Environ(), "SBXRUN_TEST_ROLE=stage", "SBXRUN_TEST_COMMAND="+role)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | extra,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("needs user namespaces: %v", err)
	}
	if len(g.slots) > 0 && !g.slots[0].made {
		if err := g.Create(); err != nil {
			t.Fatal(err)
		}
	}
	io.WriteString(in, "go")
	in.Close()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

func stats(t *testing.T, g *Group) Stats {
	t.Helper()
	st, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := g.Counts(); err != nil || c.OOMKills != st.OOMKills || c.PidsDenied != st.PidsDenied || c.MemoryPeak != 0 || c.CPU != 0 {
		t.Errorf("counts %+v, %v of %+v", c, err, st)
	}
	t.Logf("%+v", st)
	return st
}

func memory(n int64) *specs.LinuxResources {
	return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &n}}
}

func TestMemoryLimitHolds(t *testing.T) {
	g := create(t, memory(32<<20))
	code, out := run(t, g, 0, "hog", "/proc/self/exe", "64")
	if code != 128+9 {
		t.Errorf("64 MiB in 32: code %d, want killed: %s", code, out)
	}
	st := stats(t, g)
	// A process that dies is charged a little past the limit.
	if st.OOMKills == 0 || !st.MemoryLimitReached || st.MemoryPeak > 36<<20 || st.MemoryPeak != 0 && st.MemoryPeak < 24<<20 {
		t.Errorf("no evidence of it: %+v", st)
	}

	// Its neighbour: what fits is not touched, and leaves no such evidence.
	g = create(t, memory(32<<20))
	code, out = run(t, g, 0, "hog", "/proc/self/exe", "8")
	if code != 0 {
		t.Errorf("8 MiB in 32: code %d: %s", code, out)
	}
	if st := stats(t, g); st.OOMKills != 0 || st.MemoryLimitReached || st.MemoryPeak != 0 && st.MemoryPeak < 8<<20 {
		t.Errorf("stats: %+v", st)
	}
}

// On v2 the group dies as a whole; on v1 only the process that took the memory.
func TestOOMKillsTheGroup(t *testing.T) {
	g := create(t, memory(32<<20))
	want := 7
	if g.slots[0].V2 {
		want = 128 + 9
	}
	if code, out := run(t, g, 0, "hog", "/proc/self/exe", "64c"); code != want {
		t.Errorf("code %d, want %d: %s", code, want, out)
	}
	if st := stats(t, g); st.OOMKills == 0 {
		t.Errorf("no evidence of it: %+v", st)
	}
}

func TestPidsLimitHolds(t *testing.T) {
	const bomb = `i=0; while [ $i -lt 40 ]; do sleep 30 & i=$((i+1)); done; echo all`
	for _, tc := range []struct {
		limit  int64
		denied bool
	}{{20, true}, {200, false}} {
		g := create(t, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &tc.limit}})
		_, out := run(t, g, 0, "", "/bin/sh", "-c", bomb)
		st := stats(t, g)
		if strings.Contains(out, "all\n") == tc.denied || (st.PidsDenied > 0) != tc.denied {
			t.Errorf("limit %d: denied %d, output %q", tc.limit, st.PidsDenied, out)
		}
		if st.PidsPeak > uint64(tc.limit) {
			t.Errorf("limit %d: peak %d", tc.limit, st.PidsPeak)
		}
	}
}

func TestCPULimitHolds(t *testing.T) {
	for _, quota := range []int64{4000, 400000} { // of 100000: what it gets on a busy machine too, and more than it can use
		g := create(t, &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &quota}})
		before := children(t)
		if code, out := run(t, g, 0, "burn", "/proc/self/exe"); code != 0 {
			t.Fatalf("code %d: %s", code, out)
		}
		used := children(t) - before
		t.Logf("quota %d µs: used %v", quota, used)
		st := stats(t, g)
		if held := st.Throttled > 0 && st.ThrottledPeriods > 0; held != (quota == 4000) {
			t.Errorf("quota %d µs: throttled %v in %d of %d periods", quota, st.Throttled, st.ThrottledPeriods, st.Periods)
		}
		// 600 ms at a twenty-fifth are 24; what the stages need comes on top. On an
		// emulated processor that is more, and takes more periods.
		most := max(400*time.Millisecond, 2*time.Duration(st.Periods*uint64(quota))*time.Microsecond)
		if quota == 4000 && used > most {
			t.Errorf("used %v of cpu time", used)
		}
	}
}

func children(t *testing.T) time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &ru); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// The command can make its cgroup namespace once it has joined; then its own
// group is the root that it sees.
func TestNamespaceAfterJoining(t *testing.T) {
	g := prepare(t, strict()) // made after the stage was cloned
	defer func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}()
	code, out := run(t, g, 0, "where", "/proc/self/exe")
	if code != 0 || strings.Contains(out, g.Name()) {
		t.Errorf("code %d: %s", code, out)
	}
	for _, m := range ParseMemberships(out) {
		if m.Controllers&Limiting != 0 && m.Path != "/" || m.V2 && g.slots[0].V2 && m.Path != "/" {
			t.Errorf("sees itself in %+v", m)
		}
	}
}

// A cgroup namespace that is made with the others, before joining, is in the
// way on v2 where that is mounted with nsdelegate and the group is not below the
// caller's own; v1 does not ask for the namespace.
func TestNamespaceBeforeJoining(t *testing.T) {
	g := create(t, strict())
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	refused := false
	for _, m := range ParseMemberships(string(self)) {
		if m.V2 && g.slots[0].V2 && strings.Contains(string(mounts), "nsdelegate") {
			refused = m.Path != "/" && !strings.HasPrefix(g.slots[0].Path, "/sys/fs/cgroup"+m.Path+"/")
		}
	}
	code, out := try(t, g, unix.CLONE_NEWCGROUP, "", "/bin/true")
	t.Logf("refused: want %v; code %d: %s", refused, code, out)
	if refused && (code != 91 || !strings.Contains(out, "no such file or directory")) || !refused && code != 0 {
		t.Errorf("code %d: %s", code, out)
	}
}

// Removal kills what is still in the group, and only that.
func TestRemoveKills(t *testing.T) {
	g := create(t, strict())
	inside, outside := sleeper(t, g), sleeper(t, nil)
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := inside.Wait(); err == nil || inside.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("inside: %v", err)
	}
	if err := outside.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("outside: %v", err)
	}
	for _, s := range g.slots {
		if _, err := os.Stat(s.Path + "/" + s.Name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %v", err)
		}
		if _, err := os.Stat(s.Path); err != nil {
			t.Errorf("the directory above should stay: %v", err)
		}
	}
	// Again, as when PID 1 was first.
	for i := range g.slots {
		g.slots[i].made = true
	}
	if err := g.Remove(); err != nil {
		t.Errorf("second time: %v", err)
	}
	if _, err := g.Stats(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("stats of a group that is gone: %v, want ENOENT", err)
	}
	if err := g.Kill(); err != nil && !errors.Is(err, unix.ENOENT) {
		t.Errorf("kill of a group that is gone: %v", err)
	}
}

func TestKill(t *testing.T) {
	g := create(t, strict())
	var inside []*exec.Cmd
	for range 5 {
		inside = append(inside, sleeper(t, g))
	}
	// Stopped processes too.
	if err := inside[0].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, c := range inside {
		if err := c.Wait(); err == nil || c.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
			t.Errorf("inside: %v", err)
		}
	}
	if err := g.Kill(); err != nil {
		t.Errorf("kill of an empty group: %v", err)
	}
}

// What Kill refuses is not told as refused by the limit.
func TestKillCountsNoForks(t *testing.T) {
	g := create(t, strict())
	i := slices.IndexFunc(g.slots, func(s slot) bool { return s.Controllers.Has(Pids) })
	s := &g.slots[i]
	closed := filepath.Join(t.TempDir(), "closed")
	c := start(t, g, "/bin/sh", "-c", `until [ -e "$0" ]; do :; done; (:)`, closed)
	if err := g.closeForks(s); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(closed, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("it could fork")
	}
	if b, err := os.ReadFile(s.Path + "/" + s.Name + "/pids.events"); err != nil || string(b) != "max 1\n" {
		t.Errorf("the kernel counts %q, %v", b, err)
	}
	if st, err := g.Stats(); err != nil || st.PidsDenied != 0 {
		t.Errorf("%d forks refused, %v", st.PidsDenied, err)
	}
}

// A fork bomb is killed although it forks faster than it is listed.
func TestKillForkBomb(t *testing.T) {
	r := strict()
	r.Pids.Limit = ptr(int64(40))
	g := create(t, r)
	c := start(t, g, "/bin/sh", "-c", `f() { while :; do (f) & sleep 0.01; done; }; f 2>/dev/null`)
	time.Sleep(100 * time.Millisecond)
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	c.Wait()
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// sleeper starts a process in the group, or outside of any for nil.
func sleeper(t *testing.T, g *Group) *exec.Cmd { return start(t, g, "/bin/sleep", "60") }

func start(t *testing.T, g *Group, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	done := make(chan error)
	go func() {
		// A thread that joined a group ends with its goroutine: still locked.
		runtime.LockOSThread()
		if g != nil {
			for _, s := range g.Parents() {
				if s.V2 {
					fd, err := unix.Openat(s.ParentFD, s.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
					if err != nil {
						done <- err
						return
					}
					defer unix.Close(fd)
					cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
				} else if err := writeAt(s.ParentFD, s.Name+"/tasks", "0"); err != nil {
					done <- err
					return
				}
			}
		}
		err := cmd.Start()
		// Back out, or a kill of the group would kill the test.
		if g != nil {
			for _, s := range g.Parents() {
				if !s.V2 {
					err = errors.Join(err, writeAt(s.ParentFD, "../tasks", "0"))
				}
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// The kernel holds what the plan says, swap included: none.
func TestCreateWritesLimits(t *testing.T) {
	g := create(t, strict())
	for _, s := range g.slots {
		for _, w := range s.Writes {
			b, err := os.ReadFile(s.Path + "/" + s.Name + "/" + w.File)
			if errors.Is(err, os.ErrNotExist) && w.Refused != Fail {
				t.Logf("this kernel has no %s", w.File)
				continue
			}
			if got := strings.TrimSpace(string(b)); err != nil || got != w.Value {
				t.Errorf("%s: got %q, %v, want %q", w.File, got, err, w.Value)
			}
		}
	}
	if g.Controllers() != Limiting {
		t.Errorf("controllers: %v", g.Controllers())
	}
}

// What bears the name already is not taken over, and not removed.
func TestCreateTakesNothingOver(t *testing.T) {
	g := prepare(t, strict())
	last := g.slots[len(g.slots)-1]
	there := last.Path + "/" + last.Name
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	defer unix.Rmdir(there)
	if err := g.Create(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("got %v, want EEXIST", err)
	}
	if _, err := os.Stat(there); err != nil {
		t.Error(err)
	}
	for _, s := range g.slots[:len(g.slots)-1] {
		if _, err := os.Stat(s.Path + "/" + s.Name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s: %v", s.Path, err)
		}
	}
}

// A write that the kernel refuses ends the set-up, and nothing is left.
func TestCreateFailsClosed(t *testing.T) {
	g := prepare(t, strict())
	s := &g.slots[len(g.slots)-1]
	s.Writes = append(s.Writes, Write{File: "no.such.file", Value: "1"})
	if err := g.Create(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v, want ENOENT", err)
	}
	for _, s := range g.slots {
		if _, err := os.Stat(s.Path + "/" + s.Name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s: %v", s.Path, err)
		}
	}
}

func TestNoDescriptorsLeak(t *testing.T) {
	prepare(t, strict()).Close()
	count := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	before := count()
	for range 20 {
		g := prepare(t, strict())
		if err := g.Create(); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Stats(); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(g.Kill(), g.Remove()); err != nil {
			t.Fatal(err)
		}
		g.Close()
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestPrune: what nobody holds is removed at once, with what is in it, by Prune and by
// the next run; what somebody holds stays, however old and empty it is.
func TestPrune(t *testing.T) {
	old := time.Now().Add(-48 * time.Hour)
	there := func(g *Group) bool {
		t.Helper()
		n := 0
		for _, s := range g.slots {
			if _, err := os.Stat(s.Path + "/" + s.Name); err == nil {
				n++
			}
		}
		if n != 0 && n != len(g.slots) {
			t.Errorf("in %d of %d hierarchies", n, len(g.slots))
		}
		return n > 0
	}
	by := 1
	made := func(t *testing.T, when time.Time, random uint64) *Group {
		t.Helper()
		g := prepare(t, strict())
		g.name = groupName(when, by, random)
		for i := range g.slots {
			g.slots[i].Name = g.name
		}
		if err := g.Create(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.Remove() })
		if _, err := g.Sub("c0"); err != nil { // as in a session
			t.Fatal(err)
		}
		return g
	}
	// leave is the end of an owner that was killed.
	leave := func(g *Group) {
		for i := range g.slots {
			unix.Close(g.slots[i].lock)
			g.slots[i].lock = 0
		}
	}
	pruned := func(g *Group) bool {
		t.Helper()
		removed, err := Prune()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(removed, func(path string) bool { return strings.HasSuffix(path, "/"+g.name) })
	}

	t.Run("held", func(t *testing.T) {
		if g := made(t, old, 1); pruned(g) || !there(g) {
			t.Error("removed, and somebody holds it")
		}
	})
	t.Run("left", func(t *testing.T) {
		g := made(t, time.Now(), 2)
		leave(g)
		if !pruned(g) || there(g) {
			t.Error("stays, and nobody holds it")
		}
	})
	t.Run("left with a process", func(t *testing.T) {
		g := made(t, time.Now(), 3)
		c := sleeper(t, g)
		leave(g)
		if !pruned(g) || there(g) {
			t.Error("stays, and nobody holds it")
		}
		if err := c.Wait(); err == nil {
			t.Error("the process lives")
		}
	})
	t.Run("left among many that are held, and the next run", func(t *testing.T) {
		c := exec.Command("true")
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		var held, dead []*Group
		for i := range uint64(30) {
			by = 1
			held = append(held, made(t, old, 100+i))
			by = c.Process.Pid // whose number nobody has
			dead = append(dead, made(t, old, 200+i))
			leave(dead[i])
		}
		by = 1
		next := made(t, old, 300)
		next.Remove()
		swept.Store(0)
		next.Close()
		// A run of somebody else's may be about to remove one.
		for end := time.Now().Add(5 * time.Second); slices.ContainsFunc(dead, there) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		if slices.ContainsFunc(dead, there) {
			t.Error("stays, and nobody holds it")
		}
		for _, g := range held {
			if !there(g) {
				t.Fatal("removed, and somebody holds it")
			}
		}
	})
	t.Run("removed before it is held", func(t *testing.T) {
		var g atomic.Pointer[Group]
		g.Store(prepare(t, strict()))
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for {
				select {
				case <-stop:
					return
				default:
					for _, s := range g.Load().slots {
						prune(unix.AT_FDCWD, s.Path+"/"+s.Name, s.V2, time.Now())
					}
				}
			}
		}()
		for range 50 {
			next := prepare(t, strict())
			g.Store(next)
			if err := next.Create(); err != nil {
				t.Fatal(err)
			}
			if !there(next) {
				t.Fatal("removed, and somebody holds it")
			}
			if err := next.Remove(); err != nil {
				t.Fatal(err)
			}
		}
		close(stop)
		<-over
	})
	t.Run("of a version without locks", func(t *testing.T) {
		g := prepare(t, strict())
		s := g.slots[0]
		for _, tc := range []struct {
			name string
			gone bool
		}{
			{groupName(old, 1, 7), true},
			{groupName(time.Now(), 1, 8), false},
			{"someone-elses", false},
		} {
			dir := s.Path + "/" + tc.name
			// A run of another test may remove what nobody holds before it is whole.
			err := os.MkdirAll(dir+"/c0", 0o755)
			for range 10 {
				if !tc.gone || !errors.Is(err, os.ErrNotExist) {
					break
				}
				err = os.MkdirAll(dir+"/c0", 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Rmdir(dir)
			defer unix.Rmdir(dir + "/c0")
			if _, err := Prune(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) != tc.gone {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	})
}

// The usual, short way of reading gives what the long one does.
func TestReadUsual(t *testing.T) {
	prepare(t, strict())
	members, err := memberships()
	if err != nil {
		t.Fatal(err)
	}
	short, ok := readUsual(members)
	if !ok {
		t.Skip("needs a host where the tops of all hierarchies are writable and in their usual place")
	}
	long, err := readAll(members)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := Plan(short, strict(), "NAME")
	b, _ := Plan(long, strict(), "NAME")
	sort := func(s Setup) Setup {
		slices.SortFunc(s.Parents, func(a, b ParentSetup) int { return int(a.Controllers) - int(b.Controllers) })
		return s
	}
	if sort(a).text() != sort(b).text() {
		t.Errorf("short:\n%s\nlong:\n%s", a.text(), b.text())
	}
}

// A hierarchy that is mounted read-only is missing, with a cause, also where earlier runs
// have made the groups' parents: a unit of systemd's with ProtectControlGroups=.
func TestReadOnly(t *testing.T) {
	prepare(t, strict())
	l, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	skip := make(chan error, 1)
	go func() {
		defer close(skip)
		runtime.LockOSThread() // the thread ends with its mount namespace
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			skip <- err
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Error(err)
			return
		}
		for _, h := range l.Hierarchies {
			attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
			if err := unix.MountSetattr(unix.AT_FDCWD, h.Dirs[0].Path, unix.AT_RECURSIVE, attr); err != nil {
				t.Errorf("%s: %v", h.Dirs[0].Path, err)
				return
			}
		}
		l, err := Read()
		if err != nil {
			t.Error(err)
			return
		}
		g, err := Prepare(l, strict())
		if g != nil {
			defer g.Close()
		}
		var missing *MissingError
		if !errors.As(err, &missing) || !missing.Controllers().Has(Limiting) {
			t.Errorf("%v; want all controllers missing", err)
			return
		}
		for _, m := range missing.Missing {
			if !strings.Contains(m.Cause, "read-only") {
				t.Errorf("%s: %s", m.Controller, m.Cause)
			}
		}
	}()
	if err := <-skip; err != nil {
		t.Skipf("needs a mount namespace: %v", err)
	}
}

// v2's way in and out, also where v2 has no controllers (hybrid hosts).
func TestV2WithoutControllers(t *testing.T) {
	members, err := memberships()
	if err != nil {
		t.Fatal(err)
	}
	l, err := readAll(members)
	if err != nil {
		t.Fatal(err)
	}
	var top string
	for _, h := range l.Hierarchies {
		for _, d := range h.Dirs {
			if h.V2 && d.Denied == Granted {
				top = d.Path
			}
		}
	}
	if top == "" {
		t.Skip("needs a cgroup v2 hierarchy that it may write")
	}
	g := &Group{name: groupName(time.Now(), os.Getpid(), 7)}
	if _, err := os.Stat(top + "/" + Parent); errors.Is(err, os.ErrNotExist) {
		defer unix.Rmdir(top + "/" + Parent)
	}
	p := ParentSetup{Path: top + "/" + Parent, V2: true, Name: g.name, Steps: []Step{{Mkdir, top + "/" + Parent, ""}}}
	fd, err := openParent(&p)
	if err != nil {
		t.Fatal(err)
	}
	g.slots = []slot{{fd: fd, ParentSetup: p}}
	defer g.Close()
	defer g.Remove()
	code, out := run(t, g, 0, "", "/bin/sh", "-c", "cat /proc/self/cgroup")
	if code != 0 || !strings.Contains(out, g.name) {
		t.Errorf("code %d: %s", code, out)
	}
	s := sleeper(t, g)
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err == nil {
		t.Error("survived")
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// The same for an ordinary user, in groups that root delegated to it: as an
// administrator would (v1), or as systemd does (v2).
func TestAsUser(t *testing.T) { asUser(t, false) }

// And for a user, or a container, that has nothing but the group that it is in:
// it gives that group's controllers to children and moves out of their way.
func TestAsOnlyProcess(t *testing.T) {
	if g := prepare(t, strict()); !g.slots[0].V2 {
		t.Skip("needs cgroup v2 with controllers: v1 has no such rule")
	}
	asUser(t, true)
}

func asUser(t *testing.T, within bool) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to delegate groups to a user")
	}
	probe := prepare(t, strict())
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(dir, "cgroups.test")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	const uid = 1000
	cmd := exec.Command(exe, "-test.v", "-test.run=Holds|Remove|Kill|Namespace|Create|Leak|Prune")
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var join []string // v1 groups
	for _, s := range probe.slots {
		d := fmt.Sprintf("%s/sbxrun-test-%d", filepath.Dir(s.Path), os.Getpid())
		// The tests' way back out of a v1 group; making groups needs it not.
		groups, files := []string{d}, []string{"tasks"}
		if s.V2 {
			// What systemd gives a user; see Delegate= in systemd.resource-control(5).
			files = []string{"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"}
			if !within {
				groups = append(groups, d+"/own")
			}
		} else {
			join = append(join, d)
		}
		for _, dir := range groups {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			defer func() {
				unix.Rmdir(dir + "/" + Parent)
				unix.Rmdir(dir + "/" + Supervisor)
				if err := unix.Rmdir(dir); err != nil {
					t.Errorf("rmdir %s: %v", dir, err)
				}
			}()
			for _, f := range append(files, ".") {
				if err := os.Chown(dir+"/"+f, uid, uid); err != nil {
					t.Fatal(err)
				}
			}
		}
		if s.V2 {
			f, err := os.Open(groups[len(groups)-1])
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
		}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		for _, d := range join {
			if err := writeAt(unix.AT_FDCWD, d+"/tasks", "0"); err != nil {
				done <- err
				return
			}
		}
		err := cmd.Start()
		for _, d := range join {
			err = errors.Join(err, writeAt(unix.AT_FDCWD, filepath.Dir(d)+"/tasks", "0"))
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	t.Logf("%s", out.String())
	if err != nil {
		t.Error(err)
	}
	if strings.Contains(out.String(), "--- SKIP") {
		t.Error("the delegated groups were not used")
	}
}

func BenchmarkGroup(b *testing.B) {
	prepare(b, strict())
	r := strict()
	var read, prep, make, count, remove time.Duration
	for b.Loop() {
		t0 := time.Now()
		l, err := Read()
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		g, err := Prepare(l, r)
		if err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		if err := g.Create(); err != nil {
			b.Fatal(err)
		}
		t3 := time.Now()
		if _, err := g.Stats(); err != nil {
			b.Fatal(err)
		}
		t4 := time.Now()
		if err := g.Remove(); err != nil {
			b.Fatal(err)
		}
		t5 := time.Now()
		g.Close()
		read, prep, make, count, remove = read+t1.Sub(t0), prep+t2.Sub(t1), make+t3.Sub(t2), count+t4.Sub(t3), remove+t5.Sub(t4)
	}
	for name, d := range map[string]time.Duration{"read": read, "prepare": prep, "create": make, "stats": count, "remove": remove} {
		b.ReportMetric(float64(d.Nanoseconds())/1000/float64(b.N), "µs-"+name)
	}
}
