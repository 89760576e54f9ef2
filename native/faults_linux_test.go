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

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/test/survivors"
)

// A setUp is a set-up as Start, Open or Exec make it, up to the point where
// something is cloned.
type setUp struct {
	*starter
	cfg    *reexec.Config
	cgroup sys.Reg // of a sandbox that stays
	stays  bool
	box    *sandbox // for a command in one, else nil
	in     *inside  // that command

	// programs are those that can keep a command from running.
	programs []*sys.Program
}

// setUps are the configurations that faults are tried in. Together they have
// every step that a policy without a security label can have.
var setUps = []struct {
	name    string
	prepare func(t testing.TB, dir string, keep ...int) *setUp
	// runs is from which program on the command may have begun.
	runs int
}{
	{"run", func(t testing.TB, dir string, keep ...int) *setUp { return prepareRun(t, dir, nil, keep) }, 2},
	// With a network of its own and protected paths.
	{"network", func(t testing.TB, dir string, keep ...int) *setUp { return prepareRun(t, dir, everything, keep) }, 2},
	{"overlay", func(t testing.TB, dir string, keep ...int) *setUp {
		return prepareRun(t, dir, func(r *profiles.Request) { r.Workspace = "overlay" }, keep)
	}, 2},
	{"session", func(t testing.TB, dir string, keep ...int) *setUp {
		u := &setUp{starter: prepareSandbox(t, dir), stays: true}
		var err error
		if u.cfg, u.cgroup, err = u.openConfig(); err != nil {
			t.Fatal(err)
		}
		u.cfg.Keep = append(u.cfg.Keep, keep...)
		u.programs = []*sys.Program{u.cfg.Init, u.cfg.Start}
		return u
	}, 2},
	{"command of a session", func(t testing.TB, dir string, keep ...int) *setUp {
		s := prepareSandbox(t, dir)
		defer s.release()
		cfg, cgroup, err := s.openConfig()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Keep = append(cfg.Keep, keep...)
		u := &setUp{starter: s}
		if u.box, err = s.stay(cfg, cgroup); err != nil {
			t.Fatal(err)
		}
		u.layOut(t)
		return u
	}, 0},
}

// everything asks for a network with rules, for every port too, and a terminal.
func everything(r *profiles.Request) {
	mode := policy.EgressProxy
	r.Net = &mode
	r.AllowHosts = []string{"www.example.com:443", "*.example.org"}
	r.Terminal = true
}

// layOut lays out a command of the session.
func (u *setUp) layOut(t testing.TB) {
	t.Helper()
	var err error
	if u.in, err = u.box.job(&specs.Process{Args: []string{"touch", "ran"}, Terminal: true}, nil, driver.Stdio{}, supervisor.Monotonic()); err != nil {
		t.Fatal(err)
	}
	u.programs = []*sys.Program{u.in.job.Steps}
}

func prepareStarter(t testing.TB, dir string, change func(*profiles.Request)) *starter {
	t.Helper()
	return starterOf(t, strictPolicy(t, dir, change))
}

// prepareSandbox is prepareStarter for a sandbox that stays.
func prepareSandbox(t testing.TB, dir string) *starter {
	t.Helper()
	return starterOf(t, withoutCommand(strictPolicy(t, dir, everything)))
}

func starterOf(t testing.TB, p *policy.Policy) *starter {
	t.Helper()
	s, err := Driver{}.prepare(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func strictPolicy(t testing.TB, dir string, change func(*profiles.Request)) *policy.Policy {
	t.Helper()
	req := &profiles.Request{Command: []string{"touch", "ran"}, Dir: dir, Degrade: policy.LayerCgroup}
	if change != nil {
		change(req)
	}
	r, err := profiles.Resolve(req,
		&profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	return r.Policy
}

func prepareRun(t testing.TB, dir string, change func(*profiles.Request), keep []int) *setUp {
	t.Helper()
	return runOf(t, prepareStarter(t, dir, change), driver.Stdio{}, keep)
}

// preparePolicy is the set-up of a policy's run.
func preparePolicy(t testing.TB, p *policy.Policy, stdio driver.Stdio) *setUp {
	t.Helper()
	return runOf(t, starterOf(t, p), stdio, nil)
}

func runOf(t testing.TB, s *starter, stdio driver.Stdio, keep []int) *setUp {
	t.Helper()
	u := &setUp{starter: s}
	var err error
	if u.cfg, err = u.runConfig(stdio); err != nil {
		t.Fatal(err)
	}
	u.cfg.Keep = append(u.cfg.Keep, keep...)
	u.programs = []*sys.Program{u.cfg.Init, u.cfg.Start, u.cfg.Command}
	return u
}

// dirs are the directories of the set-up's cgroups, those of what it acts on
// first.
func (u *setUp) dirs() []string {
	if u.box != nil {
		return append(dirsOf(u.in.group), dirsOf(u.box.group)...)
	}
	return dirsOf(u.group)
}

func dirsOf(group *cgroups.Group) []string {
	if group == nil {
		return nil
	}
	var dirs []string
	for _, s := range group.Parents() {
		// Of an O_PATH descriptor too.
		parent, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(s.ParentFD))
		if err != nil {
			panic(err)
		}
		dirs = append(dirs, parent+"/"+s.Name)
	}
	return dirs
}

// drop gives up a set-up that was not acted on.
func (u *setUp) drop() {
	if u.in != nil {
		u.in.drop()
		u.box.Close()
		return
	}
	u.release()
}

// act does what Start, Open or Exec do from there on, and waits for the command's
// end, or ends the sandbox.
func (u *setUp) act() error {
	if u.in != nil {
		if err := u.in.start(); err != nil {
			return err
		}
		_, err := u.in.Wait()
		return err
	}
	defer u.release()
	if u.stays {
		b, err := u.stay(u.cfg, u.cgroup)
		if err != nil {
			return err
		}
		return b.Close()
	}
	p, err := u.run(u.cfg, driver.Stdio{}, supervisor.Monotonic())
	if err != nil {
		return err
	}
	_, err = p.Wait()
	if layer, lerr := p.Layer(); lerr == nil && layer != nil {
		layer.Close() // open until the garbage collector finds it, if nobody takes it
	}
	return err
}

// TestEveryStepFails fails each step of each set-up in turn, with errors that a
// host short of something gives: the run does not happen, the error names the
// step, and no descriptor, process, mount or cgroup is left. A session goes on
// without the command that failed.
//
// In short, what an earlier set-up has as well is tried now and then.
func TestEveryStepFails(t *testing.T) {
	tried := map[string]bool{}
	for _, c := range setUps {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			ran := func() bool { return os.Remove(dir+"/ran") == nil }
			if c.name == "overlay" {
				needOverlay(t)
				ran = func() bool { return false } // nothing of the command reaches the host
			}
			// Threads that make calls for commands stay, and hold descriptors.
			first := c.prepare(t, dir)
			if err := first.act(); err != nil || ran() != (!first.stays && c.name != "overlay") {
				t.Fatalf("without a fault: %v", err)
			}
			limited := first.layers&policy.LayerCgroup != 0
			if !limited {
				t.Log("no cgroup is to be had here: the steps that join one are not among those tried")
			}
			prepare := func() *setUp {
				if first.box == nil {
					return c.prepare(t, dir)
				}
				first.layOut(t)
				return first
			}
			fds, mounts := openFiles(t), mountsHere(t)
			errnos := []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.ENOSPC, syscall.EPERM}
			sample := prepare()
			var sizes []int
			for _, p := range sample.programs {
				sizes = append(sizes, p.Len())
			}
			if sample.box == nil {
				sample.drop()
			} else {
				sample.in.drop()
			}
			steps, about := 0, map[string]int{}
			for which, n := range sizes {
				for i := range n {
					key := fmt.Sprint(which, sample.programs[which].Step(i))
					known := tried[key] && c.name != "run"
					tried[key] = true
					if testing.Short() && known && i%5 != 0 {
						continue
					}
					u := prepare()
					p, dirs := u.programs[which], u.dirs()
					if u.box != nil {
						dirs = dirsOf(u.in.group)
					}
					want, errno := p.Step(i), errnos[(i+which)%len(errnos)]
					p.InjectFault(i, errno)
					err := u.act()
					for _, d := range dirs {
						if _, err := os.Stat(d); err == nil {
							t.Errorf("program %d step %d (%v): %s is left", which, i, want, d)
						}
					}
					var e *reexec.StepError
					switch {
					case err == nil && want.Object == "PR_CAPBSET_DROP":
						// Beyond the last capability that the kernel has: skipped.
						ran()
						continue
					case !errors.As(err, &e):
						t.Fatalf("program %d step %d (%v): %v; want a StepError", which, i, want, err)
					case e.Index != i || e.Op != want.Op || e.Object != want.Object || !errors.Is(err, errno):
						t.Errorf("program %d step %d: %v, want %v: %v", which, i, e, want, errno)
					}
					if ran() {
						t.Fatalf("program %d step %d (%v): the command ran", which, i, want)
					}
					// The error that a person sees has words for it.
					var setup *driver.SetupError
					var unavailable *driver.UnavailableError
					if !errors.As(err, &setup) && !errors.As(err, &unavailable) {
						t.Errorf("no message for %v: %T", e, err)
					}
					steps++
					about[want.Object]++
				}
			}
			t.Logf("%d steps failed", steps)
			least := map[string]int{"run": 250, "network": 250, "overlay": 270, "session": 200, "command of a session": 30}[c.name]
			if testing.Short() && c.name != "run" {
				least /= 5
			}
			whole := c.name == "run" || !testing.Short()
			if steps < least || limited && whole && c.name != "session" && about["cgroup"] == 0 || whole && c.name != "session" && c.name != "overlay" && about["guard"] == 0 || c.name == "overlay" && about["overlay"] == 0 {
				t.Errorf("only %d steps were tried: %v", steps, about)
			}
			if first.box != nil {
				first.layOut(t)
				if err := first.act(); err != nil || !ran() {
					t.Errorf("a command after those that failed: %v", err)
				}
				first.box.Close()
			}
			if err := survivors.Gone(func() []string { return strings.Fields(children(t, os.Getpid())) }); err != nil {
				t.Errorf("processes left: %v", err)
			}
			closes(t, fds)
			if after := mountsHere(t); after != mounts {
				t.Errorf("mounts changed:\n%s", after)
			}
		})
	}
}

// children are the processes that a process started, of whichever of its
// threads, and theirs.
func children(t *testing.T, pid int) string {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, f := range files {
		b, _ := os.ReadFile(f) // gone by now
		for child := range strings.FieldsSeq(string(b)) {
			n, _ := strconv.Atoi(child)
			all += child + " " + children(t, n)
		}
	}
	return all
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
// cgroups it made, and waits to be killed.
func pausedSupervisor(at string) {
	var c, which, step int
	fmt.Sscanf(at, "%d.%d.%d", &c, &which, &step)
	// The end that is kept closes with this process, and the set-up goes on:
	// it has to find out by itself that there is nobody left.
	pr, _, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	u := setUps[c].prepare(&testing.T{}, os.Getenv("NATIVE_TEST_DIR"), int(pr.Fd()))
	closed := u.box != nil
	for i := range step {
		closed = closed || which > 1 && u.programs[which].Step(i).Op == "close_range"
	}
	if closed {
		u.programs[which].InsertSleep(step, 60*time.Millisecond)
	} else {
		u.programs[which].InsertPause(step, int(pr.Fd()))
	}
	dirs := u.dirs()
	ended := make(chan error, 1)
	go func() { ended <- u.act() }()
	for made := false; !made; time.Sleep(100 * time.Microsecond) {
		select {
		case err := <-ended:
			if err != nil {
				fmt.Println("ended:", err)
				os.Exit(1)
			}
			// It slept, or could not wait because the end that is read is closed by
			// then, and went on to its end before this one got to look: a point to
			// be killed at, too.
			made = true
			continue
		default:
		}
		made = len(children(&testing.T{}, os.Getpid())) > 0
		for _, d := range dirs {
			_, err := os.Stat(d)
			made = made && err == nil
		}
	}
	fmt.Println("started " + strings.Join(dirs, " "))
	time.Sleep(time.Minute)
}

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
	tried := map[string]bool{}
	for n, c := range setUps {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "overlay" {
				needOverlay(t)
			}
			first := c.prepare(t, dir)
			var programs [][]sys.Step
			for _, p := range first.programs {
				var steps []sys.Step
				for i := range p.Len() {
					steps = append(steps, p.Step(i))
				}
				programs = append(programs, steps)
			}
			limited := len(first.dirs()) > 0
			first.drop()
			kills, groups := 0, 0
			for which, steps := range programs {
				for i, step := range steps {
					// All steps of the first, and of the others those that it does
					// not have and some of the rest.
					key := fmt.Sprint(c.runs, which, step)
					known := tried[key]
					tried[key] = true
					every := 1
					switch {
					case testing.Short():
						every = 10
					case step.Object == "PR_CAPBSET_DROP":
						every = 16 // sixty of one kind
					case n > 0 && known:
						every = 5
					}
					if i%every != 0 {
						continue
					}
					cmd := exec.Command("/proc/self/exe")
					cmd.Env = append(os.Environ(), fmt.Sprintf("NATIVE_TEST_PAUSE=%d.%d.%d", n, which, i), "NATIVE_TEST_DIR="+dir)
					cmd.Stderr = os.Stderr
					out, err := cmd.StdoutPipe()
					if err != nil {
						t.Fatal(err)
					}
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					hung := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
					line, _ := bufio.NewReader(out).ReadString('\n')
					hung.Stop()
					dirs, ok := strings.CutPrefix(strings.TrimSpace(line), "started")
					if !ok {
						t.Fatalf("%s: program %d step %d (%v): %q", c.name, which, i, step, line)
					}
					// Time to get to the step. Earlier is a point to be killed at, too.
					time.Sleep(4 * time.Millisecond)
					cmd.Process.Kill()
					cmd.Wait()
					kills++
					// What is left is ours now.
					if err := survivors.Gone(func() []string {
						for {
							switch pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil); {
							case err == unix.ECHILD:
								return nil
							case err != nil || pid == 0:
								return strings.Fields(children(t, os.Getpid()))
							}
						}
					}); err != nil {
						t.Fatalf("%s: program %d step %d (%v): %v", c.name, which, i, step, err)
					}
					for _, d := range strings.Fields(dirs) {
						groups++
						if _, err := os.Stat(d); err == nil {
							t.Fatalf("%s: program %d step %d (%v): %s is left", c.name, which, i, step, d)
						}
					}
					// From its own process on, the command may begin before process 1
					// finds out, and end with it.
					if err := os.Remove(dir + "/ran"); err == nil && which < c.runs {
						t.Fatalf("%s: program %d step %d (%v): the command ran", c.name, which, i, step)
					}
				}
			}
			t.Logf("%s: killed before %d steps", c.name, kills)
			if kills == 0 || limited && groups == 0 {
				t.Errorf("%s: killed %d times, with %d cgroups", c.name, kills, groups)
			}
		})
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

// openFiles are the descriptors of this process, with what each is of.
func openFiles(t *testing.T) map[string]string {
	t.Helper()
	const dir = "/proc/self/fd"
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]string{}
	for _, e := range list {
		if of, err := os.Readlink(dir + "/" + e.Name()); err == nil { // dir itself is closed by now
			open[e.Name()] = of
		}
	}
	return open
}

// closes waits until no more descriptors are open than there were: what goes on for the
// rest of a sandbox closes some when that has ended.
func closes(t *testing.T, were map[string]string) {
	t.Helper()
	now := openFiles(t)
	for end := time.Now().Add(10 * time.Second); len(now) > len(were) && time.Now().Before(end); now = openFiles(t) {
		time.Sleep(10 * time.Millisecond)
	}
	if len(now) > len(were) {
		t.Errorf("%d descriptors open, %d before:\n%v\n%v", len(now), len(were), now, were)
	}
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
