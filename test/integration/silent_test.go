//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSilentHolder: nobody waits for ever for a holder that somebody stopped. What was
// running is lost, the others are told who does not answer, and rm --force ends the session.
// Each of them waited until it was killed.
func TestSilentHolder(t *testing.T) {
	t.Parallel()
	s := newSession(t, whos[0])
	holder := s.info().Pid
	var all sync.WaitGroup
	defer all.Wait()
	each := func(name string, code int, text string, c call, args ...string) {
		c.args, c.env = s.who.command(append([]string{sbxrun, "session"}, args...)...), []string{s.env}
		all.Go(func() {
			if o := s.do(c); o.code != code || !strings.Contains(o.stderr, text) {
				t.Errorf("%s: want %d and %q: %v", name, code, text, o)
			}
		})
	}
	running := make(chan bool)
	begun := func(name string, then func(*exec.Cmd)) call {
		return call{started: func(c *exec.Cmd) {
			if !within(20*time.Second, func() bool { _, err := os.Stat(s.ws + "/" + name); return err == nil }) {
				t.Errorf("%s did not begin", name)
			}
			running <- true
			for pause := 0; stateOf(holder) != 'T' && pause < 1000; pause++ {
				time.Sleep(10 * time.Millisecond)
			}
			then(c)
		}}
	}
	const silent = "does not answer"
	each("a signal to what runs", 123, silent, begun("one", func(c *exec.Cmd) { c.Process.Signal(syscall.SIGTERM) }),
		"exec", s.id, "--", "sh", "-c", ": >one; sleep 500")
	each("a time limit of what runs", 123, silent, begun("two", func(*exec.Cmd) {}),
		"exec", "--timeout", "3s", "--kill-after", "1s", s.id, "--", "sh", "-c", ": >two; sleep 500")
	each("a signal behind many", 123, silent, begun("three", func(c *exec.Cmd) {
		for range 700 {
			c.Process.Signal(syscall.SIGUSR1)
			time.Sleep(500 * time.Microsecond)
		}
		c.Process.Signal(syscall.SIGTERM)
	}), "exec", s.id, "--", "sh", "-c", "trap : USR1; : >three; while :; do sleep 1; done")
	for range 3 {
		<-running
	}
	tm := s.newTerminal()
	atTerminal := tm.start(append([]string{"env", s.env}, s.who.command(sbxrun, "session", "exec", "-t", "--timeout", "5s", "--kill-after", "1s", s.id, "--", "sh", "-c", "echo shown; sleep 500")...))
	tm.wait("shown")
	if err := syscall.Kill(holder, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	each("a command", 123, silent, call{}, "exec", s.id, "--", "true")
	each("a command in the background", 123, silent, call{}, "exec", "-d", s.id, "--", "true")
	each("a copy", 123, silent, call{}, "cp", s.id+":/etc/passwd", s.ws+"/copied/here")
	each("the list", 0, silent, call{}, "ls")
	each("inspect", 0, "", call{}, "inspect", s.id)
	each("stop", 125, "kill -CONT", call{}, "stop", s.id)
	all.Wait()
	if exists(s.ws + "/copied") {
		t.Error("a copy that did not begin left a directory")
	}
	// Nobody waits for what the terminal still shows.
	timer := time.AfterFunc(10*time.Second, func() { atTerminal.Process.Kill() })
	if atTerminal.Wait(); atTerminal.ProcessState.ExitCode() != 123 {
		t.Errorf("at a terminal: %v: %s", atTerminal.ProcessState, tm.text())
	}
	timer.Stop()
	tm.tty.Close()
	tm.master.Close()
	each("rm --force", 0, "is killed", call{}, "rm", "--force", s.id)
	all.Wait()
	if o := s.cli("ls"); strings.Contains(o.stdout, s.id) {
		t.Errorf("it is still there: %v", o)
	}
}

// stateOf is a process's state in /proc, 0 if there is none.
func stateOf(pid int) byte {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if i := strings.LastIndexByte(string(b), ')'); i > 0 && i+2 < len(b) {
		return b[i+2]
	}
	return 0
}

// TestStuckTerminal: a start that does not go on, as on a file system that does not answer,
// is ended by a time limit and by signals also where the command gets a terminal.
func TestStuckTerminal(t *testing.T) {
	eachWho(t, func(f *fixture) {
		if o := f.do(call{args: f.strict(nil, "true")}); o.code != 0 { // and the self-test is done
			f.Fatal(o)
		}
		for _, tt := range []struct {
			flags []string
			code  int
			act   func(*exec.Cmd)
		}{
			{[]string{"--timeout", "1s", "--kill-after", "0s"}, 124, func(*exec.Cmd) {}},
			{[]string{"--timeout", "1s", "--kill-after", "1s"}, 124, func(*exec.Cmd) {}},
			{nil, 137, func(c *exec.Cmd) {
				for range 2 {
					c.Process.Signal(syscall.SIGTERM)
					time.Sleep(300 * time.Millisecond)
				}
			}},
		} {
			tm, cmd, first := f.stopFirst(append(tt.flags, "-t"))
			tt.act(cmd)
			// 7 is of a command that had begun before the stop; 143 of a signal that came
			// before sbxrun had anything to end.
			if code := tm.end(cmd); code != tt.code && code != 7 && !(code == 143 && tt.code == 137) {
				f.Errorf("%v: %d, want %d: %s", tt.flags, code, tt.code, tm.text())
			}
			syscall.Kill(first, syscall.SIGCONT)
			tm.tty.Close()
			tm.master.Close()
		}
	})
}

// stopFirst starts a command at a terminal, and stops process 1 while it is at work. It
// tries again if the command had ended before.
func (f *fixture) stopFirst(flags []string) (tm *terminal, cmd *exec.Cmd, first int) {
	f.Helper()
	for range 200 {
		tm = f.newTerminal()
		cmd = tm.start(f.strict(flags, "sh", "-c", "exit 7"))
		for first = 0; first == 0 && stateOf(cmd.Process.Pid) != 'Z'; {
			for _, pid := range childrenOf(cmd.Process.Pid) {
				// It leads a process group of its own once it is under way.
				if group, err := syscall.Getpgid(pid); err == nil && group == pid {
					first = pid
				}
			}
		}
		if first != 0 && syscall.Kill(first, syscall.SIGSTOP) == nil {
			time.Sleep(200 * time.Millisecond)
			if stateOf(cmd.Process.Pid) != 'Z' {
				return tm, cmd, first
			}
		}
		cmd.Wait()
		tm.tty.Close()
		tm.master.Close()
	}
	f.Fatal("process 1 was never stopped in time")
	return nil, nil, 0
}

// TestHaltedSignals: one signal that asks for the end is enough where somebody has stopped
// process 1 of a sandbox, with a terminal and without: it is continued, and passes that on.
func TestHaltedSignals(t *testing.T) {
	eachWho(t, func(f *fixture) {
		if o := f.do(call{args: f.strict(nil, "true")}); o.code != 0 {
			f.Fatal(o)
		}
		var all sync.WaitGroup
		defer all.Wait()
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
			for _, flags := range [][]string{nil, {"-t"}} {
				tm, cmd, _ := f.stopFirst(flags)
				cmd.Process.Signal(sig)
				all.Go(func() {
					// 7 is of a command that had ended by then.
					if code := tm.end(cmd); code != 128+int(sig) && code != 7 {
						f.Errorf("%v %v: %d: %s", flags, sig, code, tm.text())
					}
					tm.tty.Close()
					tm.master.Close()
				})
			}
		}
	})
}

// TestHaltedSession: where somebody has stopped process 1 of a session, whoever asks for
// something that only that process can do has it continue, and loses nothing.
func TestHaltedSession(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup // they mostly wait: one of -parallel's places is enough for them
	defer all.Wait()
	each := func(name string, test func(*testing.T)) { all.Go(func() { t.Run(name, test) }) }
	for name, asks := range map[string][]string{
		"a command":                   {"exec", "SESSION", "--", "true"},
		"a command in the background": {"exec", "-d", "SESSION", "--", "true"},
		"a file":                      {"cp", "SESSION:/etc/passwd", "-"},
	} {
		each(name, func(t *testing.T) {
			s := newSession(t, whos[0])
			s.halt()
			args := slices.Clone(asks)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "SESSION", s.id)
			}
			if o := s.cli(args...); o.code != 0 {
				t.Errorf("%v", o)
			}
		})
	}
	// What runs is ended by its time limit; what has ended by itself is told so. Another
	// command of the session goes on.
	for name, script := range map[string]string{"what runs": "sleep 500", "what has ended": "while ! test -e go; do sleep 0.1; done; exit 3"} {
		each(name, func(t *testing.T) {
			s := newSession(t, whos[0])
			other := strings.TrimSpace(s.exec("sleep 500 >/dev/null 2>&1 & echo $!").stdout)
			args := s.who.command(sbxrun, "session", "exec", "--timeout", "4s", "--kill-after", "1s", s.id, "--", "sh", "-c", ": >begun; "+script)
			o := s.do(call{args: args, env: []string{s.env}, started: func(*exec.Cmd) {
				if !within(20*time.Second, func() bool { return exists(s.ws + "/begun") }) {
					t.Error("it did not begin")
				}
				s.halt()
				s.write("ws/go", "", 0o644)
			}})
			// Without a group nothing tells that it had ended before it was asked to.
			alone := whos[0].noCgroup != "" && o.code == 124
			if script == "sleep 500" && o.code != 124 || script != "sleep 500" && o.code != 3 && !alone {
				t.Errorf("%v", o)
			}
			s.want("kill -0 "+other+" && echo lives", "lives\n")
		})
	}
	each("a command that handles the signal", func(t *testing.T) {
		s := newSession(t, whos[0])
		args := s.who.command(sbxrun, "session", "exec", s.id, "--", "sh", "-c",
			"trap ': >heard' HUP; : >begun; while ! test -e go; do sleep 0.1; done; exit 3")
		o := s.do(call{args: args, env: []string{s.env}, started: func(c *exec.Cmd) {
			within(20*time.Second, func() bool { return exists(s.ws + "/begun") })
			c.Process.Signal(syscall.SIGHUP)
			if !within(20*time.Second, func() bool { return exists(s.ws + "/heard") }) {
				t.Error("the signal did not come")
			}
			s.halt()
			time.Sleep(7 * time.Second)
			s.halt()
			s.write("ws/go", "", 0o644)
			for _, pid := range childrenOf(s.info().Pid) {
				syscall.Kill(pid, syscall.SIGCONT)
			}
		}})
		if o.code != 3 {
			t.Errorf("%v", o)
		}
	})
}

// TestOrphanedStopped: where process 1 of a sandbox was stopped, its supervisor's death
// ends everything all the same.
func TestOrphanedStopped(t *testing.T) {
	eachWho(t, func(f *fixture) {
		for _, flags := range [][]string{nil, {"-t"}, {"--workspace", "overlay"}, {"--driver", "landlock", "--allow-degraded", "namespaces,protect"}} {
			tm := f.newTerminal()
			cmd := tm.start(f.strict(flags, "sh", "-c", "echo shown; sleep 1000"))
			tm.wait("shown")
			f.orphan(cmd.Process.Pid)
			cmd.Wait()
			tm.tty.Close()
			tm.master.Close()
		}
	})
	t.Run("session", func(t *testing.T) {
		s := newSession(t, whos[0])
		s.exec("sleep 1000 >/dev/null 2>&1 &")
		s.orphan(s.info().Pid)
		if o := s.cli("rm", "--force", s.id); o.code != 0 {
			t.Error(o)
		}
	})
}

// orphan stops process 1 of a sandbox, and kills who supervises it.
func (f *fixture) orphan(supervisor int) {
	f.Helper()
	below := descendants(supervisor)
	if len(below) == 0 {
		f.Fatal("nothing runs")
	}
	if err := syscall.Kill(below[0], syscall.SIGSTOP); err != nil || !within(time.Second, func() bool { return stateOf(below[0]) == 'T' }) {
		f.Fatalf("process 1 is not stopped: %v", err)
	}
	syscall.Kill(supervisor, syscall.SIGKILL)
	if !within(5*time.Second, func() bool { return !slices.ContainsFunc(below, living) }) {
		f.Errorf("a process lives")
		syscall.Kill(below[0], syscall.SIGKILL)
	}
}

// halt stops process 1 of a session.
func (s *session) halt() {
	s.Helper()
	stopped := false
	for _, pid := range childrenOf(s.info().Pid) {
		stopped = syscall.Kill(pid, syscall.SIGSTOP) == nil || stopped
	}
	if !stopped {
		s.Fatal("no process 1 was found")
	}
}

// TestRemoveHalfMade: rm --force removes a session whose maker was killed or stopped before
// it took commands, and who makes one does not wait for a holder that is stopped.
func TestRemoveHalfMade(t *testing.T) {
	t.Parallel()
	s := newSession(t, whos[0])
	for i, act := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		half := 0
		for n := 0; n < 200 && half < 1; n++ {
			id := fmt.Sprintf("half-%d-%d", i, n)
			cmd := exec.Command(sbxrun, append(append([]string{"session", "create", "-C", s.ws}, s.who.sessionFlags()...), id)...)
			cmd.Env = s.environ(s.env, s.cache())
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			holder := 0
			for end := time.Now().Add(5 * time.Second); holder == 0 && time.Now().Before(end) && stateOf(cmd.Process.Pid) != 'Z'; {
				for _, pid := range childrenOf(cmd.Process.Pid) {
					if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(line), "session-holder") {
						holder = pid
					}
				}
			}
			time.Sleep(time.Duration(n%6) * 2 * time.Millisecond)
			if act == syscall.SIGKILL {
				syscall.Kill(cmd.Process.Pid, act)
			}
			if holder != 0 {
				syscall.Kill(holder, act)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				if act == syscall.SIGSTOP && err != nil {
					half++
				}
			case <-time.After(60 * time.Second):
				t.Errorf("%v: create still waits", act)
				cmd.Process.Kill()
			}
			if _, err := os.Stat(strings.TrimPrefix(s.env, "XDG_RUNTIME_DIR=") + "/sbxrun/sessions/" + id); err != nil {
				continue
			}
			if act == syscall.SIGKILL {
				half++
			}
			if o := s.cli("rm", "--force", id); o.code != 0 {
				t.Errorf("%v: %v", act, o)
			}
			if o := s.cli("ls"); strings.Contains(o.stdout, id) {
				t.Errorf("%v: it is still there: %v", act, o)
			}
		}
		if half == 0 {
			t.Errorf("%v: none was half made", act)
		}
	}
}

// TestHaltedGrace: a process 1 that somebody stops after the time limit is continued, too: what
// the command does in its grace is heard of. It ended when the grace did, 12 s later.
func TestHaltedGrace(t *testing.T) {
	const script = `trap ': >asked' TERM; trap 'exit 9' USR1; while :; do sleep 0.1; done`
	eachWho(t, func(f *fixture) {
		for _, driver := range [][]string{nil, {"--driver", "landlock", "--net", "host", "--allow-degraded", "namespaces,protect"}} {
			os.Remove(f.ws + "/asked")
			begin := time.Now()
			flags := append([]string{"--timeout", "1s", "--kill-after", "40s"}, driver...)
			o := f.do(call{args: f.strict(flags, "sh", "-c", script), started: func(cmd *exec.Cmd) {
				if !within(20*time.Second, func() bool { return exists(f.ws + "/asked") }) {
					f.Error("it was not asked to end")
				}
				for _, pid := range childrenOf(cmd.Process.Pid) {
					syscall.Kill(pid, syscall.SIGSTOP)
				}
				time.Sleep(4 * time.Second)
				cmd.Process.Signal(syscall.SIGUSR1)
			}})
			if took := time.Since(begin); o.code != 124 || took > 30*time.Second {
				f.Errorf("%v: after %v: %v", driver, took, o)
			}
		}
	})
}

// TestHeldLately: who holds process 1, as a debugger does, has five seconds from when an end was
// asked for, however long somebody else has looked. It was killed at once.
func TestHeldLately(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	o := f.do(call{args: f.strict([]string{"--timeout", "60s"}, "sh", "-c", "trap 'exit 9' TERM; : >begun; while :; do sleep 0.1; done"), started: func(cmd *exec.Cmd) {
		if !within(20*time.Second, func() bool { return exists(f.ws + "/begun") }) {
			t.Error("it did not begin")
		}
		one := childrenOf(cmd.Process.Pid)[0]
		let := hold(t, one)
		cmd.Process.Signal(syscall.SIGWINCH) // which has process 1 looked at
		time.Sleep(7 * time.Second)
		cmd.Process.Signal(syscall.SIGTERM)
		time.Sleep(2 * time.Second)
		let()
	}})
	if o.code != 9 {
		t.Errorf("%v", o)
	}
}

// TestAskedLongAgo: an end that was asked for, and that the command did not want, is no reason
// to kill the sandbox when somebody holds process 1 later, whatever other signals came between.
func TestAskedLongAgo(t *testing.T) {
	const script = "trap : HUP USR1; trap 'exit 9' TERM; : >begun; while :; do sleep 0.1; done"
	drive := func(f *fixture, cmd *exec.Cmd, one func() int) {
		if !within(20*time.Second, func() bool { return exists(f.ws + "/begun") }) {
			f.Error("it did not begin")
		}
		cmd.Process.Signal(syscall.SIGHUP)
		for range 4 {
			time.Sleep(2 * time.Second)
			cmd.Process.Signal(syscall.SIGUSR1)
		}
		let := hold(f.T, one())
		cmd.Process.Signal(syscall.SIGUSR1)
		time.Sleep(8 * time.Second)
		let()
		time.Sleep(time.Second)
		cmd.Process.Signal(syscall.SIGTERM)
	}
	t.Run("run", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, whos[0])
		o := f.do(call{args: f.strict([]string{"--timeout", "60s"}, "sh", "-c", script), started: func(cmd *exec.Cmd) {
			drive(f, cmd, func() int { return childrenOf(cmd.Process.Pid)[0] })
		}})
		if o.code != 9 {
			t.Errorf("%v", o)
		}
	})
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		s := newSession(t, whos[0])
		args := s.who.command(sbxrun, "session", "exec", "--timeout", "60s", s.id, "--", "sh", "-c", script)
		o := s.do(call{args: args, env: []string{s.env}, started: func(cmd *exec.Cmd) {
			drive(s.fixture, cmd, func() int { return childrenOf(s.info().Pid)[0] })
		}})
		if o.code != 9 {
			t.Errorf("%v", o)
		}
	})
}

// hold holds a process, as a debugger does, until the function that it returns is called.
func hold(t *testing.T, pid int) (let func()) {
	held, over, done := make(chan error), make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread() // a tracer is a thread
		err := syscall.PtraceAttach(pid)
		if err == nil {
			_, err = syscall.Wait4(pid, nil, syscall.WALL, nil)
		}
		held <- err
		<-over
		syscall.PtraceDetach(pid)
	}()
	if err := <-held; err != nil {
		t.Error(err)
	}
	return func() { close(over); <-done }
}

// TestHaltedFlood: however many signals come while somebody has stopped process 1 of a
// sandbox, another number is not lost among them, and neither time limit nor SIGTERM wait
// for them; one that asks for nothing has it continue, too.
func TestHaltedFlood(t *testing.T) {
	const script = `trap 'echo ended >ended; exit 9' TERM; trap 'echo told >told' USR1; : >begun; while :; do sleep 0.1; done`
	flood := func(cmd *exec.Cmd, n int) {
		for range n {
			cmd.Process.Signal(syscall.SIGUSR1)
			time.Sleep(500 * time.Microsecond)
		}
	}
	begun := func(f *fixture) {
		f.Helper()
		if !within(20*time.Second, func() bool { return exists(f.ws + "/begun") }) {
			f.Error("it did not begin")
		}
	}
	eachWho(t, func(f *fixture) {
		for _, tt := range []struct {
			name  string
			n     int
			after syscall.Signal
			want  int
		}{{"SIGTERM behind many", 700, syscall.SIGTERM, 9}, {"one that asks for nothing", 1, 0, 124}} {
			f.step(tt.name, func() {
				for _, name := range []string{"begun", "told", "ended"} {
					os.Remove(f.ws + "/" + name)
				}
				o := f.do(call{args: f.strict([]string{"--timeout", "20s", "--kill-after", "2s"}, "sh", "-c", script), started: func(cmd *exec.Cmd) {
					begun(f)
					stopped := false
					for _, pid := range childrenOf(cmd.Process.Pid) {
						stopped = syscall.Kill(pid, syscall.SIGSTOP) == nil || stopped
					}
					if !stopped {
						f.Error("no process 1 was found")
					}
					flood(cmd, tt.n)
					if tt.after != 0 {
						cmd.Process.Signal(tt.after)
					} else if !within(10*time.Second, func() bool { return exists(f.ws + "/told") }) {
						f.Error("the command did not hear of it")
					} else {
						cmd.Process.Signal(syscall.SIGKILL)
					}
				}})
				if tt.after != 0 && (o.code != tt.want || !exists(f.ws+"/told") || !exists(f.ws+"/ended")) {
					f.Errorf("told %v, ended %v: %v", exists(f.ws+"/told"), exists(f.ws+"/ended"), o)
				}
			})
		}
	})
	t.Run("session", func(t *testing.T) {
		s := newSession(t, whos[0])
		args := s.who.command(sbxrun, "session", "exec", "--timeout", "5s", "--kill-after", "1s", s.id, "--", "sh", "-c", script)
		o := s.do(call{args: args, env: []string{s.env}, timeout: 25 * time.Second, started: func(cmd *exec.Cmd) {
			begun(s.fixture)
			s.halt()
			flood(cmd, 900)
		}})
		// Its trap runs, and it may be done before the grace is.
		if o.code != 124 && o.code != 9 || !exists(s.ws+"/told") || !exists(s.ws+"/ended") {
			t.Errorf("told %v, ended %v: %v", exists(s.ws+"/told"), exists(s.ws+"/ended"), o)
		}
	})
}
