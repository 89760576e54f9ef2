//go:build linux

package integration

import (
	"os"
	"os/exec"
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
	<-running
	<-running
	if err := syscall.Kill(holder, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	each("a command", 123, silent, call{}, "exec", s.id, "--", "true")
	each("a command in the background", 123, silent, call{}, "exec", "-d", s.id, "--", "true")
	each("the list", 0, silent, call{}, "ls")
	each("inspect", 0, "", call{}, "inspect", s.id)
	each("stop", 125, "kill -CONT", call{}, "stop", s.id)
	all.Wait()
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
