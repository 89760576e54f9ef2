package native

import (
	"bufio"
	"context"
	"errors"
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

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// A strictRun is a strict run up to the clone: the second stage and, where this
// host has one to give, the cgroup.
type strictRun struct {
	cfg   *reexec.Config
	group *cgroups.Group // nil for none
}

// prepareStrict does what Start does before it clones.
func prepareStrict(t *testing.T, dir string) *strictRun {
	t.Helper()
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"touch", "ran"}, Dir: dir, Degrade: policy.LayerCgroup},
		&profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	return preparePolicy(t, r.Policy, driver.Stdio{})
}

// preparePolicy does for a policy what Start does before it clones.
func preparePolicy(t *testing.T, p *policy.Policy, stdio driver.Stdio) *strictRun {
	t.Helper()
	s, err := Driver{}.prepare(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	if s.stdio, err = streams(stdio, s.low.Devices); err != nil {
		t.Fatal(err)
	}
	cfg, err := s.config()
	if err != nil {
		t.Fatal(err)
	}
	return &strictRun{cfg, s.group}
}

// programs are those of the second stage that can keep a command from running.
func (r *strictRun) programs() []*sys.Program {
	return []*sys.Program{r.cfg.Init, r.cfg.Start, r.cfg.Command}
}

// dirs are the directories of the run's cgroup.
func (r *strictRun) dirs() []string {
	var dirs []string
	if r.group != nil {
		for _, s := range r.group.Parents() {
			// Of an O_PATH descriptor too.
			parent, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(s.ParentFD))
			if err != nil {
				panic(err)
			}
			dirs = append(dirs, parent+"/"+s.Name)
		}
	}
	return dirs
}

// start does what Start does from the clone on.
func (r *strictRun) start() (*reexec.Child, error) {
	child, err := reexec.Start(r.cfg)
	if err != nil {
		return nil, err
	}
	if r.group != nil {
		if err := r.group.Create(); err != nil {
			child.Close(false)
			return nil, err
		}
	}
	child.Go()
	return child, nil
}

// end removes the cgroup, if it is there, and closes it.
func (r *strictRun) end(t *testing.T) {
	t.Helper()
	if r.group != nil {
		if err := r.group.Remove(); err != nil {
			t.Error(err)
		}
		r.group.Close()
	}
}

// TestEveryStepFails fails each step of a strict set-up in turn, with errors
// that a host short of something gives: the run does not happen, the report
// names the step, and no descriptor, process, mount or cgroup is left.
func TestEveryStepFails(t *testing.T) {
	dir := t.TempDir()
	first := prepareStrict(t, dir)
	if first.group == nil {
		t.Log("no cgroup is to be had here: the steps that join one are not among those tried")
	}
	first.end(t)
	fds, mounts := count(t, "/proc/self/fd"), mountsHere(t)
	errnos := []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.ENOSPC, syscall.EPERM}
	steps, joins := 0, 0
	for which := range first.programs() {
		n := first.programs()[which].Len()
		for i := range n {
			r := prepareStrict(t, dir)
			p, dirs := r.programs()[which], r.dirs()
			want, errno := p.Step(i), errnos[i%len(errnos)]
			p.InjectFault(i, errno)
			child, err := r.start()
			if err != nil {
				t.Fatal(err)
			}
			exit, err := child.Wait()
			// Every other time the stage has to remove the cgroup, as it would
			// for a supervisor that could not.
			child.Close(i%2 == 0)
			for _, d := range dirs {
				if _, err := os.Stat(d); (err == nil) != (i%2 == 0) {
					t.Errorf("program %d step %d (%v): %s: %v", which, i, want, d, err)
				}
			}
			r.end(t)
			for _, d := range dirs {
				if _, err := os.Stat(d); err == nil {
					t.Errorf("program %d step %d (%v): %s is left", which, i, want, d)
				}
			}
			var e *reexec.StepError
			switch {
			case exit != nil && want.Path == "PR_CAPBSET_DROP":
				// Beyond the last capability that the kernel has: skipped.
				os.Remove(dir + "/ran")
				continue
			case !errors.As(err, &e):
				t.Fatalf("program %d step %d (%v): %+v, %v; want a StepError", which, i, want, exit, err)
			case e.Index != i || e.Step != want.Name || e.Path != want.Path || !errors.Is(err, errno):
				t.Errorf("program %d step %d: %v, want %v: %v", which, i, e, want, errno)
			}
			if _, err := os.Stat(dir + "/ran"); err == nil {
				t.Fatalf("program %d step %d (%v): the command ran", which, i, want)
			}
			// The error that a person sees has words for it.
			if msg := explain(err).Error(); msg == "" {
				t.Errorf("no message for %v", e)
			}
			steps++
			if want.Path == "cgroup" {
				joins++
			}
		}
	}
	if steps < 250 || first.group != nil && joins == 0 {
		t.Errorf("only %d steps were tried, %d of them about cgroups", steps, joins)
	}
	if n := count(t, "/proc/self/fd"); n > fds {
		t.Errorf("%d descriptors open, %d before", n, fds)
	}
	if after := mountsHere(t); after != mounts {
		t.Errorf("mounts changed:\n%s", after)
	}
	if b := contents(t, "/proc/thread-self/children"); b != "" {
		t.Errorf("processes left: %s", b)
	}
}

// TestMain is also the supervisor that TestSupervisorKilledAtEveryStep kills, and
// the attacker of TestSwapRaces.
func TestMain(m *testing.M) {
	if base := os.Getenv("NATIVE_TEST_SWAP"); base != "" {
		swapper(base)
	}
	if at := os.Getenv("NATIVE_TEST_PAUSE"); at != "" {
		pausedSupervisor(at)
	}
	os.Exit(m.Run())
}

// pausedSupervisor starts a sandbox whose set-up stops before a step, tells which
// cgroup it made, and waits to be killed.
func pausedSupervisor(at string) {
	which, step, _ := strings.Cut(at, ".")
	w, _ := strconv.Atoi(which)
	i, _ := strconv.Atoi(step)
	r := prepareStrict(&testing.T{}, os.Getenv("NATIVE_TEST_DIR"))
	// The end that is kept closes with this process, and the set-up goes on:
	// it has to find out by itself that there is nobody left.
	pr, _, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	r.programs()[w].InsertPause(i, int(pr.Fd()))
	r.cfg.Keep = append(r.cfg.Keep, int(pr.Fd()))
	child, err := r.start()
	if err != nil {
		panic(err)
	}
	fmt.Println("started " + strings.Join(r.dirs(), " "))
	child.Wait()
	time.Sleep(time.Minute)
}

// patience is how long what a killed supervisor leaves may take to be gone. It is
// a second, and some milliseconds are usual; but a machine that is busy with
// other tests may not give the second stage a processor for that long.
const patience = 10 * time.Second

// TestSupervisorKilledAtEveryStep is V01: a supervisor that is SIGKILLed before
// any step of a set-up leaves no process and no cgroup behind after a second,
// and its command does not run if it had not begun to.
//
// The supervisor's own steps are TestSupervisorKilledAtEveryCall of
// test/integration.
func TestSupervisorKilledAtEveryStep(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	dir := t.TempDir()
	mounts := mountsHere(t)
	every := 1
	if testing.Short() {
		every = 10
	}
	first := prepareStrict(t, dir)
	defer first.end(t)
	groups := 0
	for which, p := range first.programs() {
		for i := 0; i < p.Len(); i += every {
			if p.Step(i).Path == "PR_CAPBSET_DROP" && i%16 != 0 {
				continue // sixty of one kind
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), fmt.Sprintf("NATIVE_TEST_PAUSE=%d.%d", which, i), "NATIVE_TEST_DIR="+dir)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, _ := bufio.NewReader(out).ReadString('\n')
			dirs, ok := strings.CutPrefix(strings.TrimSpace(line), "started")
			if !ok {
				t.Fatalf("%q", line)
			}
			// Time to get to the step. Earlier is a point to be killed at, too.
			time.Sleep(4 * time.Millisecond)
			cmd.Process.Kill()
			cmd.Wait()
			deadline := time.Now().Add(patience)
			for {
				// What is left is ours now: wait for all of it.
				_, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
				if err == unix.ECHILD {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("program %d step %d (%v): something survives", which, i, p.Step(i))
				}
				time.Sleep(time.Millisecond)
			}
			for _, d := range strings.Fields(dirs) {
				groups++
				if _, err := os.Stat(d); err == nil {
					t.Fatalf("program %d step %d (%v): %s is left", which, i, p.Step(i), d)
				}
			}
			// From its own process on, the command may begin before process 1
			// finds out, and end with it.
			if err := os.Remove(dir + "/ran"); err == nil && which < 2 {
				t.Fatalf("program %d step %d (%v): the command ran", which, i, p.Step(i))
			}
		}
	}
	if first.group != nil && groups == 0 {
		t.Error("no run made a cgroup")
	}
	if after := mountsHere(t); after != mounts {
		t.Errorf("mounts changed:\n%s", after)
	}
}

func count(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// mountsHere are the mounts of this namespace where a set-up could leave one: a
// new root and its storage are mounted over / and /proc of the host's tree
// before they are entered. What container engines and other packages' tests
// mount meanwhile is in directories of theirs.
func mountsHere(t *testing.T) string {
	t.Helper()
	var here []string
	for line := range strings.Lines(contents(t, "/proc/self/mountinfo")) {
		at := strings.Fields(line)[4] // see proc_pid_mountinfo(5)
		elsewhere := slices.ContainsFunc([]string{os.TempDir(), "/tmp", "/var", "/run"}, func(dir string) bool { return strings.HasPrefix(at, dir+"/") })
		if !elsewhere || strings.HasPrefix(at, filepath.Dir(t.TempDir())+"/") {
			here = append(here, line)
		}
	}
	return strings.Join(here, "")
}

func contents(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
