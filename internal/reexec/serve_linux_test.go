package reexec

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/namespaces"
)

// serving starts a stage that serves.
func serving(t *testing.T, max int) *Child {
	t.Helper()
	cfg := config("unused")
	cfg.MaxJobs = max
	c, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Go(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(true) })
	return c
}

// shell is a job, a script whose standard output is returned by out.
func shell(t *testing.T, c *Child, script string) (j *Job, out func() string) {
	t.Helper()
	j, err := c.NewJob()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fd := j.Pass(int(w.Fd()))
	j.Steps.Call(0, sys.Step{Op: "setsid"}, unix.SYS_SETSID)
	// It may have arrived as 1, and dup3 refuses that.
	away := j.Steps.NewReg()
	j.Steps.Call(away, sys.Step{Op: "fcntl"}, unix.SYS_FCNTL, fd.Value(), sys.Imm(unix.F_DUPFD_CLOEXEC), sys.Imm(3))
	j.Steps.Call(0, sys.Step{Op: "dup3"}, unix.SYS_DUP3, away.Value(), sys.Imm(1), sys.Imm(0))
	j.Steps.Call(0, sys.Step{Op: "rt_sigprocmask"}, unix.SYS_RT_SIGPROCMASK, sys.Imm(unix.SIG_SETMASK), sys.Ptr(j.Steps, new(uint64)), sys.Imm(0), sys.Imm(8))
	j.Paths, j.Argv, j.Env = []string{"/bin/sh"}, []string{"sh", "-c", script}, []string{"PATH=/usr/bin:/bin"}
	return j, func() string {
		w.Close()
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
}

func TestServe(t *testing.T) {
	before := openFDs(t)
	c := serving(t, 4)
	for _, tt := range []struct {
		script, out string
		want        syscall.WaitStatus
	}{
		{"echo hello", "hello\n", 0},
		{"exit 7", "", 7 << 8},
		{"kill -KILL $$", "", syscall.WaitStatus(syscall.SIGKILL)},
		{"yes | head -c 300000 | wc -c", "300000\n", 0},
	} {
		j, out := shell(t, c, tt.script)
		if err := j.Exec(); err != nil {
			t.Fatalf("%s: %v", tt.script, err)
		}
		if got := out(); got != tt.out {
			t.Errorf("%s: output %q, want %q", tt.script, got, tt.out)
		}
		exit, err := j.Wait()
		if err != nil || exit.Status != tt.want {
			t.Errorf("%s: %+v, %v; want %#x", tt.script, exit, err, tt.want)
		}
		if exit.ExecNS == 0 || exit.Usage.MaxRSSKiB == 0 {
			t.Errorf("%s: nothing recorded: %+v", tt.script, exit)
		}
		if !exit.Alone {
			t.Errorf("%s: something was left", tt.script)
		}
		if err := j.Signal(unix.SIGTERM, false); err != syscall.ESRCH {
			t.Errorf("%s: signal after the end: %v", tt.script, err)
		}
	}
	// A process that outlives its command ends later: then nothing runs.
	end := filepath.Join(t.TempDir(), "end")
	j, out := shell(t, c, "while [ ! -e "+end+" ]; do sleep 0.05; done &")
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	if exit, err := j.Wait(); err != nil || exit.Alone || c.Quiet() == 5 {
		t.Errorf("before the end of a background process: %+v, %v", exit, err)
	}
	if err := os.WriteFile(end, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	out()
	for wait := 0; c.Quiet() != 5; wait++ {
		if wait == 1000 {
			t.Fatalf("after the end of a background process: %d of 5", c.Quiet())
		}
		time.Sleep(10 * time.Millisecond)
	}
	// What a command leaves behind lives on until the end, and not longer.
	j, out = shell(t, c, "sleep 600 >/dev/null & echo $!")
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(out())
	if exit, err := j.Wait(); err != nil || exit.Alone {
		t.Errorf("a background process: %+v, %v", exit, err)
	}
	j, out = shell(t, c, "kill -0 "+pid+" && echo alive")
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	if got := out(); got != "alive\n" {
		t.Errorf("background process: %q", got)
	}
	if exit, err := j.Wait(); err != nil || exit.Alone {
		t.Errorf("beside a background process: %+v, %v", exit, err)
	}
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := c.NewJob(); err != syscall.ESRCH {
		t.Errorf("job after the end: %v", err)
	}
	c.Close(true)
	if after := openFDs(t); after != before {
		t.Errorf("descriptors before %v, after %v", before, after)
	}
}

// TestCloseTwice: the second Close leaves alone what has the numbers of the first by then.
func TestCloseTwice(t *testing.T) {
	c := serving(t, 2)
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(true); err != nil {
		t.Fatal(err)
	}
	numbers := []int{c.fd, c.pidfd}
	for _, fd := range numbers {
		if err := unix.Dup3(1, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(true); err != nil {
		t.Error(err)
	}
	for _, fd := range numbers {
		if err := unix.Close(fd); err != nil {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}

func TestServeFailures(t *testing.T) {
	c := serving(t, 2)
	j, out := shell(t, c, "")
	j.Paths = []string{"/nonexistent"}
	var exec *ExecError
	if err := j.Exec(); !errors.As(err, &exec) || exec.Errno != syscall.ENOENT {
		t.Errorf("no such command: %v", err)
	}
	out()
	for i := range 4 {
		j, out := shell(t, c, "exit 0")
		j.Steps.InjectFault(i, syscall.ENOMEM)
		var step *StepError
		if err := j.Exec(); !errors.As(err, &step) || step.Errno != syscall.ENOMEM || step.Index != i || step.Op != j.Steps.Step(i).Op {
			t.Errorf("fault %d: %v", i, err)
		}
		out()
	}
	// Places are given back, and there are no more than were asked for.
	a, outA := shell(t, c, "exec sleep 600")
	b, outB := shell(t, c, "sleep 600")
	if _, err := c.NewJob(); err != syscall.EAGAIN {
		t.Errorf("third job: %v", err)
	}
	if err := a.Exec(); err != nil {
		t.Fatal(err)
	}
	if err := a.Signal(syscall.SIGTERM, false); err != nil {
		t.Error(err)
	}
	if exit, err := a.Wait(); err != nil || exit.Status.Signal() != syscall.SIGTERM {
		t.Errorf("%+v, %v", exit, err)
	}
	// The group: the shell waits for a child that ignores nothing.
	b.Argv = []string{"sh", "-c", "sleep 600; exit 3"}
	if err := b.Exec(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		time.Sleep(time.Millisecond) // the shell forks
	}
	if err := b.Signal(syscall.SIGKILL, true); err != nil {
		t.Error(err)
	}
	if exit, err := b.Wait(); err != nil || exit.Status.Signal() != syscall.SIGKILL {
		t.Errorf("%+v, %v", exit, err)
	}
	// A member that is deaf to TERM does not outlive the command.
	b, outC := shell(t, c, "(trap '' TERM; sleep 600; sleep 600) & wait")
	if err := b.Exec(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if err := b.Signal(syscall.SIGTERM, true); err != nil {
		t.Error(err)
	}
	if exit, err := b.Wait(); err != nil || exit.Status.Signal() != syscall.SIGTERM {
		t.Errorf("%+v, %v", exit, err)
	}
	outC() // at its end: the deaf one had it too
	outA()
	outB() // ends because the child of the shell is gone as well
}

// TestServeCall runs steps in PID 1.
func TestServeCall(t *testing.T) {
	c := serving(t, 2)
	j, err := c.NewJob()
	if err != nil {
		t.Fatal(err)
	}
	pid := new([8]byte)
	r := j.Steps.NewReg()
	j.Steps.Call(r, sys.Step{Op: "getpid"}, unix.SYS_GETPID)
	j.Steps.Store32(pid[:], 0, r.Value())
	if err := j.Call(); err != nil {
		t.Fatal(err)
	}
	if pid[0] != 1 {
		t.Errorf("ran in process %d, not in PID 1", pid[0])
	}
}

// TestServeManyAtOnce is for cross-talk: each command says its own number.
func TestServeManyAtOnce(t *testing.T) {
	const n = 200
	c := serving(t, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			want := strings.Repeat("x", i)
			j, out := shell(t, c, "echo "+want+"; exit "+strconv.Itoa(i%256))
			if err := j.Exec(); err != nil {
				t.Error(err)
				return
			}
			if got := out(); got != want+"\n" {
				t.Errorf("job %d: %q", i, got)
			}
			exit, err := j.Wait()
			if err != nil || exit.Status.ExitStatus() != i%256 {
				t.Errorf("job %d: %+v, %v", i, exit, err)
			}
		})
	}
	wg.Wait()
}

// TestServeStageKilled ends every wait when the stage dies.
func TestServeStageKilled(t *testing.T) {
	c := serving(t, 2)
	j, out := shell(t, c, "sleep 600")
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Wait(); err != syscall.ESRCH {
		t.Errorf("job: %v", err)
	}
	out() // the pipe is at its end: the command is gone
	var p *ProtocolError
	if _, err := c.Wait(); !errors.As(err, &p) {
		t.Errorf("stage: %v", err)
	}
}

// TestServeEnded: how each command ended is told at the end, too.
func TestServeEnded(t *testing.T) {
	c := serving(t, 2)
	var all []*Job
	for range 2 {
		j, out := shell(t, c, "exec sleep 600")
		defer out()
		if err := j.Exec(); err != nil {
			t.Fatal(err)
		}
		all = append(all, j)
	}
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	for _, j := range all {
		if exit, err := j.Wait(); err != nil || exit.Status.Signal() != unix.SIGKILL || exit.First || exit.Alone {
			t.Errorf("%+v, %v", exit, err)
		}
	}
	if exit, err := c.Wait(); err != nil || exit.Status != 0 {
		t.Errorf("the stage: %+v, %v", exit, err)
	}
}

// TestServeStuck: a job whose process does not come to execute its command is given
// up; the stage goes on if what hangs can be killed, and else is ended.
func TestServeStuck(t *testing.T) {
	for _, kills := range []bool{true, false} {
		t.Run(strconv.FormatBool(kills), func(t *testing.T) {
			t.Parallel()
			c := serving(t, 8)
			before, out := shell(t, c, "exec sleep 600")
			if err := before.Exec(); err != nil {
				t.Fatal(err)
			}
			defer out()
			j, jout := shell(t, c, "echo never")
			defer jout()
			j.Patience = time.Second
			if !kills {
				// What is not found is not killed alone.
				tid := unsafe.Slice((*byte)(unsafe.Pointer(&j.native.tid)), 4)
				j.Steps.Store32(tid, 0, sys.Imm(1<<30))
			}
			// All signals are blocked here; that is how a stopped process looks to PID 1.
			j.Steps.Call(0, sys.Step{Op: "ppoll"}, unix.SYS_PPOLL, sys.Imm(0), sys.Imm(0), sys.Imm(0), sys.Imm(0), sys.Imm(0))
			late, lout := shell(t, c, "echo next")
			defer lout()
			done := make(chan error)
			go func() {
				for !j.Taken() {
					time.Sleep(time.Millisecond)
				}
				late.Patience = time.Second // not while another has its turn
				done <- late.Exec()
			}()
			if err := j.Exec(); err != ErrStuck {
				t.Errorf("got %v, want ErrStuck", err)
			}
			if j.Begun() {
				t.Error("a command that did not begin, begun")
			}
			err := <-done
			if !kills {
				if err != syscall.ESRCH {
					t.Errorf("the next job of a dead stage: %v", err)
				}
				if _, err := before.Wait(); err != syscall.ESRCH {
					t.Errorf("one that ran: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("the next job: %v", err)
			}
			if exit, err := late.Wait(); err != nil || exit.Status != 0 {
				t.Errorf("the next job: %+v, %v", exit, err)
			}
			if err := before.Signal(unix.SIGKILL, false); err != nil {
				t.Errorf("one that ran: %v", err)
			}
			if _, err := before.Wait(); err != nil {
				t.Errorf("one that ran: %v", err)
			}
		})
	}
}

// TestServeSlow: what waits for the processor is not taken for stuck, and is not waited for
// without end.
func TestServeSlow(t *testing.T) {
	for _, tt := range []struct {
		name      string
		state     byte
		executing bool
		looks     int // until something is done
		want      int
	}{
		{"stopped", 'T', false, 2, endStarting},
		{"traced", 't', false, 2, endStarting},
		{"waits", 'S', false, 2, endStarting},
		{"waits for the processor", 'R', false, 2 * slowFactor, endStarting},
		{"waits for a disk", 'D', false, 2 * slowFactor, endStarting},
		{"is the command", 'S', true, 2 * slowFactor, endStarting},
		{"not found", 0, false, 2 * slowFactor, endStage},
	} {
		w := watch{}
		for looks := 1; ; looks++ {
			if got := w.decide(tt.state, tt.executing); got != goOn {
				if got != tt.want || looks != tt.looks {
					t.Errorf("%s: %d after %d looks, want %d after %d", tt.name, got, looks, tt.want, tt.looks)
				}
				break
			}
		}
	}
	// What was killed has time to go, when it gets no turn to.
	w := watch{looks: 2, killed: true}
	for range slowFactor {
		if got := w.decide('R', false); got != goOn {
			t.Errorf("killed: %d", got)
		}
	}
	if got := w.decide('R', false); got != endStage {
		t.Errorf("killed, and stays: %d", got)
	}
}

// TestServeBegun: whether a command ran is known also if its stage is stopped or killed
// before that could say so.
func TestServeBegun(t *testing.T) {
	for _, tt := range []struct {
		name  string
		runs  bool // the command, before the stage is killed
		kills bool // or else the stage is only stopped, and continued by who waits for it
	}{
		{"killed before", false, true},
		{"killed after", true, true},
		{"stopped after", true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := serving(t, 4)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			j, err := c.NewJob()
			if err != nil {
				t.Fatal(err)
			}
			hold, out := j.Pass(int(r.Fd())), [2]int{}
			if err := unix.Pipe2(out[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(out[0])
			to := j.Pass(out[1])
			// It waits here, and the stage for it.
			j.Steps.Call(0, sys.Step{Op: "read"}, unix.SYS_READ, hold.Value(), sys.Ptr(j.Steps, new([8]byte)), sys.Imm(1))
			away := j.Steps.NewReg()
			j.Steps.Call(away, sys.Step{Op: "fcntl"}, unix.SYS_FCNTL, to.Value(), sys.Imm(unix.F_DUPFD_CLOEXEC), sys.Imm(3))
			j.Steps.Call(0, sys.Step{Op: "dup3"}, unix.SYS_DUP3, away.Value(), sys.Imm(1), sys.Imm(0))
			j.Paths, j.Argv, j.Env = []string{"/none", "/bin/sh"}, []string{"sh", "-c", "echo runs; exec sleep 600"}, []string{"PATH=/usr/bin:/bin"}
			j.Patience = time.Second
			if !tt.kills {
				j.Patience = 300 * time.Millisecond
			}
			done := make(chan error)
			go func() { done <- j.Exec() }()
			for {
				if fd, _ := j.process(); fd >= 0 {
					unix.Close(fd)
					break
				}
				time.Sleep(time.Millisecond)
			}
			// It is stopped as soon as the process has become the command.
			if err := unix.Kill(c.pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			unix.Close(out[1])
			if tt.runs {
				w.Write([]byte("x"))
				if n, err := unix.Read(out[0], make([]byte, 16)); n == 0 || err != nil {
					t.Errorf("the command did not run: %d, %v", n, err)
				}
			}
			if tt.kills {
				c.Kill()
			}
			if err := <-done; (err == nil) == tt.kills || err != nil && err != ErrStuck && err != syscall.ESRCH {
				t.Errorf("got %v", err)
			}
			w.Close()
			c.Close(true)
			if got := j.Begun(); got != tt.runs {
				t.Errorf("begun: %v, want %v", got, tt.runs)
			}
		})
	}
}

// TestServeShield: a process that shares the stage's memory and descriptors is closed
// to other commands until it has become one.
func TestServeShield(t *testing.T) {
	for _, tt := range []struct {
		name   string
		append func(*sys.Program)
		want   string
	}{
		{"shield", namespaces.AppendShield, "closed\n"},
		{"control", namespaces.AppendDropCapabilities, "open\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := serving(t, 4)
			file := t.TempDir() + "/pid"
			// Without capabilities, as commands are.
			spy, out := shell(t, c, "until p=$(cat "+file+" 2>/dev/null) && [ $p ]; do sleep 0.01; done; readlink /proc/$p/cwd >/dev/null 2>&1 && echo open || echo closed")
			namespaces.AppendDropCapabilities(spy.Steps)
			if err := spy.Exec(); err != nil {
				t.Fatal(err)
			}
			half, hout := shell(t, c, "true")
			defer hout()
			half.Patience = time.Minute
			tt.append(half.Steps)
			half.Steps.Call(0, sys.Step{Op: "ppoll"}, unix.SYS_PPOLL, sys.Imm(0), sys.Imm(0), sys.Imm(0), sys.Imm(0), sys.Imm(0))
			done := make(chan error)
			go func() { done <- half.Exec() }()
			pid := ""
			name, _ := os.ReadFile("/proc/self/comm")
			for begin := time.Now(); pid == "" && time.Since(begin) < 30*time.Second; time.Sleep(time.Millisecond) {
				b, err := os.ReadFile("/proc/" + strconv.Itoa(c.pid) + "/task/" + strconv.Itoa(c.pid) + "/children")
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range strings.Fields(string(b)) {
					syscall, _ := os.ReadFile("/proc/" + p + "/syscall")
					if comm, _ := os.ReadFile("/proc/" + p + "/comm"); string(comm) == string(name) && strings.HasPrefix(string(syscall), strconv.Itoa(unix.SYS_PPOLL)+" ") {
						pid = p
					}
				}
			}
			if pid == "" {
				t.Fatal("the process is not there")
			}
			if err := os.WriteFile(file, []byte(pid+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if got := out(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if n, err := strconv.Atoi(pid); err != nil || unix.Kill(n, unix.SIGKILL) != nil {
				t.Errorf("%s was not killed", pid)
			}
			<-done
		})
	}
}

// TestServeNamesake: a command that is called what the stage is called is not taken for a
// process that is to become one.
func TestServeNamesake(t *testing.T) {
	c := serving(t, 4)
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), strings.TrimSpace(string(name)))
	if err := os.Symlink("/bin/sleep", program); err != nil {
		t.Fatal(err)
	}
	before, out := shell(t, c, "")
	before.Paths, before.Argv = []string{program}, []string{"sleep", "600"}
	if err := before.Exec(); err != nil {
		t.Fatal(err)
	}
	defer out()
	j, jout := shell(t, c, "echo never")
	defer jout()
	j.Patience = 500 * time.Millisecond
	j.Steps.Call(0, sys.Step{Op: "ppoll"}, unix.SYS_PPOLL, sys.Imm(0), sys.Imm(0), sys.Imm(0), sys.Imm(0), sys.Imm(0))
	if err := j.Exec(); err != ErrStuck {
		t.Errorf("got %v, want ErrStuck", err)
	}
	if j.Begun() {
		t.Error("what never became a command counts as one that has run")
	}
	if err := before.Signal(unix.SIGTERM, false); err != nil {
		t.Errorf("the namesake: %v", err)
	}
	if exit, err := before.Wait(); err != nil || exit.Status.Signal() != unix.SIGTERM {
		t.Errorf("the namesake: %+v, %v", exit, err)
	}
}
