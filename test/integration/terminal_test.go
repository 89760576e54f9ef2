//go:build linux

package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// A terminal is a pseudo-terminal of the host, as a user sits at one.
type terminal struct {
	f      *fixture
	master *os.File
	tty    *os.File

	mu  sync.Mutex
	out bytes.Buffer
}

// newTerminal opens one. What is written to it is collected.
func (f *fixture) newTerminal() *terminal {
	f.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		f.Fatal(err)
	}
	if err := tty.Chown(f.who.uid, -1); err != nil && isRoot() {
		f.Fatal(err)
	}
	// A descriptor that the runtime polls: a read from it ends when it is closed,
	// and only then does the terminal hang up.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		f.Fatal(err)
	}
	master.Close()
	master = os.NewFile(uintptr(fd), "ptmx")
	tm := &terminal{f: f, master: master, tty: tty}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			tm.mu.Lock()
			tm.out.Write(buf[:n])
			tm.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	f.Cleanup(func() { tm.hangUp(); tty.Close() })
	return tm
}

func (tm *terminal) hangUp() { tm.master.Close() }

// text is what was written to the terminal so far.
func (tm *terminal) text() string {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	return tm.out.String()
}

// report is what an attack printed to the terminal.
func (tm *terminal) report(code int) *report {
	tm.f.Helper()
	within(10*time.Second, func() bool { return strings.Contains(tm.text(), "]}") })
	return tm.f.report(&outcome{code: code, stdout: tm.text()})
}

// wait waits until the terminal shows a text.
func (tm *terminal) wait(text string) {
	tm.f.Helper()
	if !within(15*time.Second, func() bool { return strings.Contains(tm.text(), text) }) {
		tm.f.Errorf("the terminal does not show %q but %q", text, tm.text())
	}
}

// start runs a command as the leader of a session at the terminal.
func (tm *terminal) start(args []string) *exec.Cmd {
	tm.f.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = tm.f.ws, tm.f.environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tm.tty, tm.tty, tm.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		tm.f.Fatal(err)
	}
	return cmd
}

// end waits for a command to end.
func (tm *terminal) end(cmd *exec.Cmd) int {
	tm.f.Helper()
	timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	cmd.Wait()
	if !timer.Stop() {
		tm.f.Errorf("%v did not end; the terminal shows %q", cmd.Args, tm.text())
	}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// stdin runs a command with the terminal as its stdin and controlling terminal;
// what it writes is read through pipes.
func (tm *terminal) stdin(args []string) *outcome {
	tm.f.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env = tm.f.ws, tm.f.environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tm.tty, &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		tm.f.Fatal(err)
	}
	code := tm.end(cmd)
	return &outcome{args: args, code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// modes are the terminal's settings.
func (tm *terminal) modes() *unix.Termios {
	tm.f.Helper()
	t, err := unix.IoctlGetTermios(int(tm.tty.Fd()), unix.TCGETS)
	if err != nil {
		tm.f.Fatal(err)
	}
	return t
}

func (tm *terminal) isRaw() bool { return tm.modes().Lflag&unix.ICANON == 0 }

func terminalTests() []entry {
	return []entry{
		{id: "T01", title: "TIOCSTI on its own terminal", test: func(f *fixture) { ownTerminal(f, "TIOCSTI") }},
		{id: "T02", title: "TIOCLINUX on its own terminal", test: func(f *fixture) { ownTerminal(f, "TIOCLINUX") }},
		{id: "T04", title: "terminals of the host", test: t04},
		{id: "T05", title: "the terminal's modes after a crash", test: t05, named: map[string]string{
			"SIGKILL of sbxrun": "nobody is left to restore what it had set; reset(1) does",
		}},
		{id: "T07", title: "Ctrl-C, resize and hang-up reach the command", test: t07},
	}
}

// ownTerminal runs K03's attack on a terminal of the sandbox's own.
func ownTerminal(f *fixture, request string) {
	judge := func(r *report, want string) {
		n := 0
		for _, a := range r.Acts {
			if strings.HasPrefix(a.Act, request) {
				n++
				if !match(want, a.Got) {
					f.Errorf("%s: got %s, want %s", a.Act, a.Got, want)
				}
			}
			if strings.HasPrefix(a.Act, neighbour) && a.Got != "ok" {
				f.Errorf("%s: got %s", a.Act, a.Got)
			}
		}
		if n == 0 {
			f.Errorf("%s was not tried", request)
		}
	}
	tm := f.newTerminal()
	code := tm.end(tm.start(f.strict([]string{"-t"}, f.attack, "K03")))
	judge(tm.report(code), "EPERM")
	f.step("control without the sandbox", func() {
		tm := f.newTerminal()
		code := tm.end(tm.start(f.who.command(f.attack, "K03")))
		want := "ok"
		if request == "TIOCLINUX" {
			want = "ENOTTY|EINVAL" // not a console: it reached the driver
		} else if legacy, _ := os.ReadFile("/proc/sys/dev/tty/legacy_tiocsti"); strings.TrimSpace(string(legacy)) == "0" && f.who.uid != 0 {
			want = "EIO" // to all but the host's root
		}
		judge(tm.report(code), want)
	})
}

// t04 is T04: a terminal of the host's is neither to be seen nor to be written,
// with a terminal of one's own or without.
func t04(f *fixture) {
	canary := f.newTerminal()
	mark := "written by " + f.unique("t04")
	e := entry{id: "T04", deny: "ENOENT|EACCES|ENXIO|EPERM", want: map[string]string{"terminals in sight": "at most its own"}}
	e.judge(f, f.report(f.attackIn(nil, "T04", "mark="+mark)), e.inside)
	tm := f.newTerminal()
	code := tm.end(tm.start(f.strict([]string{"-t"}, f.attack, "T04", "mark="+mark)))
	e.judge(f, tm.report(code), e.inside)
	if strings.Contains(canary.text(), mark) {
		f.Error("the host's terminal was written to")
	}
	f.step("control without the sandbox", func() {
		// To this one terminal only: the others may be somebody's.
		f.report(f.do(call{args: f.who.command(f.attack, "T04", "mark="+mark, "only="+filepath.Base(canary.tty.Name()))}))
		canary.wait(mark)
	})
}

// t05 is T05: sbxrun -t sets the caller's terminal to raw, and gives it back as
// it was, however the run ends.
func t05(f *fixture) {
	for _, c := range []struct {
		name    string
		command []string
		signal  syscall.Signal
		code    int
	}{
		{"the command ends", []string{"exit", "code=3"}, 0, 3},
		{"the command dies", []string{"exit", "signal=9"}, 0, 137},
		{"the command leaves its own terminal raw", []string{"raw"}, 0, 137},
		{"SIGTERM to sbxrun", []string{"watch", "ready={ws}/up"}, syscall.SIGTERM, -1},
		{"SIGHUP to sbxrun", []string{"watch", "ready={ws}/up"}, syscall.SIGHUP, -1},
		{"SIGINT to sbxrun, then SIGTERM", []string{"watch", "ready={ws}/up"}, syscall.SIGINT, -1},
	} {
		os.Remove(filepath.Join(f.ws, "up"))
		tm := f.newTerminal()
		before := tm.modes()
		command := []string{f.attack}
		for _, a := range c.command {
			command = append(command, f.expand(a))
		}
		cmd := tm.start(f.strict([]string{"-t"}, command...))
		if c.signal != 0 {
			if !within(10*time.Second, func() bool { return exists(filepath.Join(f.ws, "up")) }) {
				f.Errorf("%s: the command did not start: %q", c.name, tm.text())
			}
			if !within(5*time.Second, tm.isRaw) {
				f.Errorf("%s: the terminal was never raw, so there was nothing to restore", c.name)
			}
			cmd.Process.Signal(c.signal)
			if c.signal == syscall.SIGINT {
				cmd.Process.Signal(syscall.SIGTERM)
			}
		}
		code := tm.end(cmd)
		if c.code >= 0 && code != c.code {
			f.Errorf("%s: exit code %d, want %d: %q", c.name, code, c.code, tm.text())
		}
		if after := tm.modes(); !reflect.DeepEqual(before, after) {
			f.Errorf("%s: the terminal's modes were %+v, are %+v", c.name, before, after)
		}
		f.gone(f.ws)
	}
	f.step("control without the sandbox", func() {
		tm := f.newTerminal()
		tm.end(tm.start(f.who.command(f.attack, "raw")))
		if !tm.isRaw() {
			f.Error("a command that dies in raw mode did not leave it behind")
		}
	})
}

// t07 is T07.
func t07(f *fixture) {
	up, log := filepath.Join(f.ws, "up"), filepath.Join(f.ws, "log")
	watch := func(name string, args []string) {
		for _, end := range []string{"TERM", "hang-up"} {
			os.Remove(up)
			os.Remove(log)
			tm := f.newTerminal()
			cmd := tm.start(args)
			if !within(10*time.Second, func() bool { return exists(up) }) {
				f.Errorf("%s: the command did not start: %q", name, tm.text())
			}
			tm.wait("ready")
			tm.master.WriteString("\x03")
			tm.wait("got INT")
			tm.master.WriteString("\x1c")
			tm.wait("got QUIT")
			if err := pty.Setsize(tm.master, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
				f.Error(err)
			}
			tm.wait("got WINCH 40x100")
			if end == "TERM" {
				cmd.Process.Signal(syscall.SIGTERM)
				if code := tm.end(cmd); code != 4 {
					f.Errorf("%s: exit code %d, want 4: %q", name, code, tm.text())
				}
			} else {
				tm.hangUp()
				tm.end(cmd)
			}
			f.gone(f.ws)
			if b, _ := os.ReadFile(log); !strings.Contains(string(b), "got INT") || (end == "TERM" && !strings.Contains(string(b), "got TERM")) {
				f.Errorf("%s: the log holds %q", name, b)
			}
		}
	}
	command := []string{f.attack, "watch", "ready=" + up, "log=" + log, "code=4"}
	watch("sandboxed", f.strict([]string{"-t"}, command...))
	f.step("control without the sandbox", func() { watch("bare", f.who.command(command...)) })

	f.step("signals to sbxrun, without a terminal", func() {
		os.Remove(up)
		os.Remove(log)
		o := f.do(call{args: f.strict(nil, command...), started: func(cmd *exec.Cmd) {
			within(10*time.Second, func() bool { return exists(up) })
			for i, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT} {
				cmd.Process.Signal(s)
				within(5*time.Second, func() bool {
					b, _ := os.ReadFile(log)
					return strings.Count(string(b), "got") > i
				})
			}
			cmd.Process.Signal(syscall.SIGTERM)
		}})
		want := "ready\ngot INT\ngot USR1\ngot USR2\ngot QUIT\ngot TERM\n"
		if o.code != 4 || o.stdout != want {
			f.Errorf("want %q and 4: %v", want, o)
		}
		f.gone(f.ws)
	})
}
