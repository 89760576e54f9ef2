//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sbxrun/sbxrun/test/survivors"
)

// sit starts a command of sbxrun session at a terminal.
func (s *session) sit(tm *terminal, args ...string) *exec.Cmd {
	s.Helper()
	return tm.start(s.who.command(append([]string{"/usr/bin/env", s.env, sbxrun, "session"}, args...)...))
}

// raw waits until what sits at the terminal has taken it over.
func (tm *terminal) raw() {
	tm.f.Helper()
	if !within(15*time.Second, tm.isRaw) {
		tm.f.Fatalf("the terminal is not raw, and shows %q", tm.text())
	}
}

// TestSessionAttach: a command with a terminal is left, goes on, and is come back
// to with what it showed meanwhile; its size is that of who is attached.
func TestSessionAttach(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		script := `trap 'stty size' WINCH; echo hello; while :; do read l || continue; echo "got $l"; [ "$l" = end ] && exit 7; [ "$l" = later ] && { sleep 0.3; echo "said later"; }; done`

		first := s.newTerminal()
		modes := *first.modes()
		cmd := s.sit(first, "exec", "-t", s.id, "--", "/bin/sh", "-c", script)
		first.wait("hello")
		first.raw()
		first.master.WriteString("one\r")
		first.wait("got one")
		// What only begins as the keys do is typed.
		first.master.WriteString("a\x10b\r")
		first.wait("got a")
		first.master.WriteString("later\r")
		first.wait("got later")
		first.master.WriteString("\x10\x11")
		if code := first.end(cmd); code != 0 {
			t.Errorf("exit code %d: %q", code, first.text())
		}
		first.wait("detached")
		if *first.modes() != modes {
			t.Error("the terminal's modes are not restored")
		}

		second := s.newTerminal()
		if err := pty.Setsize(second.master, &pty.Winsize{Rows: 33, Cols: 77}); err != nil {
			t.Fatal(err)
		}
		cmd = s.sit(second, "attach", s.id)
		second.wait("said later")
		second.wait("33 77")
		second.raw()
		second.master.WriteString("two\r")
		second.wait("got two")
		if err := pty.Setsize(second.master, &pty.Winsize{Rows: 44, Cols: 88}); err != nil {
			t.Fatal(err)
		}
		cmd.Process.Signal(syscall.SIGWINCH)
		second.wait("44 88")

		// Who attaches takes it from who was there.
		third := s.newTerminal()
		other := s.sit(third, "attach", "--detach-keys", "ctrl-a,d", s.id, "1")
		third.wait("got two")
		if code := second.end(cmd); code != 0 {
			t.Errorf("exit code %d: %q", code, second.text())
		}
		second.wait("somebody else")
		third.raw()
		third.master.WriteString("\x01d")
		if code := third.end(other); code != 0 {
			t.Errorf("exit code %d: %q", code, third.text())
		}
		if o := s.cli("logs", s.id, "1"); !strings.Contains(o.stdout, "got two") || strings.Contains(o.stdout, "got one") {
			t.Errorf("%v", o)
		}

		// Its end is told to who is attached. The end of a terminal is not its end.
		lost := s.newTerminal()
		cmd = s.sit(lost, "attach", s.id)
		lost.wait("got two")
		cmd.Process.Kill()
		cmd.Wait()
		last := s.newTerminal()
		cmd = s.sit(last, "attach", s.id)
		last.wait("got two")
		last.raw()
		last.master.WriteString("end\r")
		if code := last.end(cmd); code != 7 {
			t.Errorf("exit code %d: %q", code, last.text())
		}

		// From the beginning without a client.
		o := s.cli("exec", "-d", "-t", s.id, "--", "/bin/sh", "-c", "echo started; read l; echo \"got $l\"")
		if o.code != 0 {
			t.Fatalf("%v", o)
		}
		n := strings.TrimSpace(o.stdout)
		tm := s.newTerminal()
		cmd = s.sit(tm, "attach", s.id, n)
		tm.wait("started")
		tm.raw()
		tm.master.WriteString("it\r")
		tm.wait("got it")
		if code := tm.end(cmd); code != 0 {
			t.Errorf("exit code %d: %q", code, tm.text())
		}

		for _, tt := range [][]string{{"attach", s.id}, {"attach", s.id, n}, {"attach", s.id, "77"}, {"attach", s.id, "x"}, {"attach"}, {"attach", "nobody"}, {"attach", "--detach-keys", "ctrl-", s.id}} {
			if o := s.cli(tt...); o.code != 125 {
				t.Errorf("%v", o)
			}
		}
		// The time limit goes on when nobody is there.
		timed := s.newTerminal()
		cmd = s.sit(timed, "exec", "-t", "--timeout", "3s", s.id, "--", "/bin/sh", "-c", "echo here; sleep 1000")
		timed.wait("here")
		timed.raw()
		timed.master.WriteString("\x10\x11")
		timed.end(cmd)
		if !within(30*time.Second, func() bool {
			o := s.cli("ls", "--json")
			return o.code == 0 && strings.Contains(o.stdout, `"state": "ready"`)
		}) {
			t.Errorf("the command outlives its time limit: %v", s.cli("ls", "--json"))
		}
	})
}

// TestSessionLeftVerdict: how a command ended that was detached from is told as of one
// that began in the background.
func TestSessionLeftVerdict(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		if w.noCgroup != "" {
			t.Skip(w.noCgroup)
		}
		s := newSession(t, w)
		tm := s.newTerminal()
		cmd := s.sit(tm, "exec", "-t", "--memory", "32m", s.id, "--", "/bin/sh", "-c", "echo here; until [ -e go ]; do sleep 0.1; done; exec tail /dev/zero")
		tm.wait("here")
		tm.raw()
		tm.master.WriteString("\x10\x11")
		tm.end(cmd)
		if err := os.WriteFile(s.ws+"/go", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var o *outcome
		if !within(30*time.Second, func() bool {
			o = s.cli("logs", "--json", s.id, "1")
			return strings.Contains(o.stdout, `"reason"`)
		}) || !strings.Contains(o.stdout, `"reason": "oom"`) {
			t.Errorf("%v", o)
		}
	})
}

// TestSessionInitKilled: a session whose process 1 was killed is told to be one by its
// state and by every command; a name can be had again, and nothing is left.
func TestSessionInitKilled(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		marker := "73" + strconv.Itoa(os.Getpid()%10000)
		s.exec("setsid sleep "+marker+" >/dev/null 2>&1 &", "-d")
		if !within(15*time.Second, func() bool { return len(processes("sleep\x00"+marker)) > 0 }) {
			t.Fatal("the background process did not start")
		}
		running := make(chan *outcome, 1)
		go func() { running <- s.exec("echo begun > begun; sleep 1000") }()
		if !within(15*time.Second, func() bool { return exists(s.ws + "/begun") }) {
			t.Fatal("the command did not start")
		}
		holder := s.info().Pid
		killed := false
		tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(holder) + "/task/*/children")
		for _, file := range tasks {
			b, _ := os.ReadFile(file)
			for pid := range strings.FieldsSeq(string(b)) {
				comm, _ := os.ReadFile("/proc/" + pid + "/comm")
				if n, err := strconv.Atoi(pid); err == nil && strings.TrimSpace(string(comm)) == "sbxrun-init" {
					killed = syscall.Kill(n, syscall.SIGKILL) == nil
				}
			}
		}
		if !killed {
			t.Fatal("no process 1 was found")
		}
		if err := survivors.Gone(func() []string { return processes("sleep\x00" + marker) }); err != nil {
			t.Error(err)
		}
		select {
		case o := <-running:
			if o.code != 123 {
				t.Errorf("%v", o)
			}
		case <-time.After(30 * time.Second):
			t.Error("the command's client does not end")
		}
		if !within(15*time.Second, func() bool { return !exists("/proc/" + strconv.Itoa(holder) + "/task") }) {
			t.Error("the holder is left")
		}
		o := s.cli("inspect", s.id)
		if !strings.Contains(o.stdout, `"state": "error"`) || !strings.Contains(o.stdout, "its init died") {
			t.Errorf("%v", o)
		}
		for _, args := range [][]string{{"exec", s.id, "true"}, {"attach", s.id}, {"logs", s.id, "1"}, {"stop", s.id}, {"cp", s.id + ":/tmp", "."}} {
			if o := s.cli(args...); o.code != 125 || !strings.Contains(o.stderr, "has ended") || !strings.Contains(o.stderr, "session rm") {
				t.Errorf("%v: %v", args, o)
			}
		}
		// The holder's: tests beside this one kill supervisors, too.
		for _, group := range deadGroups() {
			if strings.Contains(filepath.Base(group), fmt.Sprintf("-%d-", holder)) {
				t.Errorf("the holder left %s", group)
			}
		}
		create := append(append([]string{"create", "-C", s.ws}, s.who.flags()...), s.id)
		if o := s.cli(create...); o.code != 125 || !strings.Contains(o.stderr, "exists already") {
			t.Errorf("%v", o)
		}
		if o := s.cli("rm", s.id); o.code != 0 {
			t.Errorf("%v", o)
		}
		if o := s.cli(create...); o.code != 0 {
			t.Errorf("%v", o)
		}
		s.want("echo fine", "fine\n")
	})
}
