package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/profiles"
)

// strictConfig is the second stage of a strict run without cgroups.
func strictConfig(t *testing.T, dir string) *reexec.Config {
	t.Helper()
	zero, zeroF, zeroI := uint64(0), float64(0), int64(0)
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"touch", "ran"}, Dir: dir, Memory: &zero, CPUs: &zeroF, Pids: &zeroI},
		&profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	low, err := lower(r.Policy, HostFS{})
	if err != nil {
		t.Fatal(err)
	}
	s := &starter{p: r.Policy, low: low, layers: planned(r.Policy)}
	for _, err := range []error{s.streams(driver.Stdio{}), s.filter(context.Background(), Driver{}), s.landlock(), s.prepareCgroup()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := s.config()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestEveryStepFails fails each step of a strict set-up in turn, with errors
// that a host short of something gives: the run does not happen, the report
// names the step, and no descriptor, process or mount is left.
func TestEveryStepFails(t *testing.T) {
	dir := t.TempDir()
	fds, mounts := count(t, "/proc/self/fd"), contents(t, "/proc/self/mountinfo")
	programs := func(c *reexec.Config) []*sys.Program { return []*sys.Program{c.Init, c.Start, c.Command} }
	errnos := []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.ENOSPC, syscall.EPERM}
	steps := 0
	for which := range programs(strictConfig(t, dir)) {
		n := programs(strictConfig(t, dir))[which].Len()
		for i := range n {
			cfg := strictConfig(t, dir)
			p := programs(cfg)[which]
			want, errno := p.Step(i), errnos[i%len(errnos)]
			p.InjectFault(i, errno)
			child, err := reexec.Start(cfg)
			if err != nil {
				t.Fatal(err)
			}
			child.Go()
			exit, err := child.Wait()
			child.Close(true)
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
		}
	}
	if steps < 250 {
		t.Errorf("only %d steps were tried", steps)
	}
	if n := count(t, "/proc/self/fd"); n > fds {
		t.Errorf("%d descriptors open, %d before", n, fds)
	}
	if after := contents(t, "/proc/self/mountinfo"); after != mounts {
		t.Errorf("mounts changed:\n%s", after)
	}
	if b := contents(t, "/proc/thread-self/children"); b != "" {
		t.Errorf("processes left: %s", b)
	}
}

// TestMain is also the supervisor that TestSupervisorKilledAtEveryStep kills.
func TestMain(m *testing.M) {
	if at := os.Getenv("NATIVE_TEST_PAUSE"); at != "" {
		pausedSupervisor(at)
	}
	os.Exit(m.Run())
}

// pausedSupervisor starts a sandbox whose set-up stops before a step, and waits
// to be killed.
func pausedSupervisor(at string) {
	which, step, _ := strings.Cut(at, ".")
	w, _ := strconv.Atoi(which)
	i, _ := strconv.Atoi(step)
	t := &testing.T{}
	cfg := strictConfig(t, os.Getenv("NATIVE_TEST_DIR"))
	// The end that is kept closes with this process, and the set-up goes on:
	// it has to find out by itself that there is nobody left.
	r, _, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	[]*sys.Program{cfg.Init, cfg.Start, cfg.Command}[w].InsertPause(i, int(r.Fd()))
	cfg.Keep = append(cfg.Keep, int(r.Fd()))
	child, err := reexec.Start(cfg)
	if err != nil {
		panic(err)
	}
	child.Go()
	os.Stdout.WriteString("started\n")
	child.Wait()
	time.Sleep(time.Minute)
}

// TestSupervisorKilledAtEveryStep is V01 without cgroups: a supervisor that is
// SIGKILLed before any step of a set-up leaves no process behind after a second,
// and its command does not run if it had not begun to.
func TestSupervisorKilledAtEveryStep(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	dir := t.TempDir()
	mounts := contents(t, "/proc/self/mountinfo")
	every := 1
	if testing.Short() {
		every = 10
	}
	cfg := strictConfig(t, dir)
	for which, p := range []*sys.Program{cfg.Init, cfg.Start, cfg.Command} {
		for i := 0; i < p.Len(); i += every {
			if p.Step(i).Path == "PR_CAPBSET_DROP" && i%16 != 0 {
				continue // sixty of one kind
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), fmt.Sprintf("NATIVE_TEST_PAUSE=%d.%d", which, i), "NATIVE_TEST_DIR="+dir)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 16)
			if n, _ := out.Read(buf); string(buf[:n]) != "started\n" {
				t.Fatalf("%q", buf[:n])
			}
			// Time to get to the step. Earlier is a point to be killed at, too.
			time.Sleep(4 * time.Millisecond)
			cmd.Process.Kill()
			cmd.Wait()
			deadline := time.Now().Add(time.Second)
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
			// From its own process on, the command may begin before process 1
			// finds out, and end with it.
			if err := os.Remove(dir + "/ran"); err == nil && which < 2 {
				t.Fatalf("program %d step %d (%v): the command ran", which, i, p.Step(i))
			}
		}
	}
	if after := contents(t, "/proc/self/mountinfo"); after != mounts {
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

func contents(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
