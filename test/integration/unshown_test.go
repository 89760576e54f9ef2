//go:build linux

package integration

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestUnshown: where what a command's terminal shows cannot be written, the command ends as
// it would, and sbxrun says that output is lost and does not succeed. It ended with 0 without
// a word, and a command that printed much waited for its time limit.
func TestUnshown(t *testing.T) {
	t.Parallel()
	s := newSession(t, whos[0])
	run := strings.Join(s.strict([]string{"--timeout", "60s", "-t"}), " ")
	in := strings.Join(s.who.command(sbxrun, "session"), " ")
	// Logs that are not followed are those of now: the command has printed by then.
	printed := "; until [ -n \"$(" + in + " logs " + s.id + " $n)\" ]; do sleep 0.05; done; "
	const lost = "is lost: write /dev/stdout: no space left on device"
	for _, tt := range []struct {
		name, script string
		code         int
		says         string
	}{
		{"run", run + " echo hi >/dev/full", 123, lost},
		{"the command's own code", run + " sh -c 'echo hi; exit 5' >/dev/full", 5, lost},
		{"more than a terminal holds", run + " seq 100000 >/dev/full", 123, lost},
		{"exec", in + " exec -t " + s.id + " -- seq 100000 >/dev/full", 123, lost},
		{"attach", "n=$(" + in + " exec -d -t " + s.id + " -- sh -c 'sleep 1; seq 100000; sleep 1'); " + in + " attach " + s.id + " $n >/dev/full", 123, lost},
		{"attach, and the command's own code", "n=$(" + in + " exec -d -t " + s.id + " -- sh -c 'sleep 1; seq 100000; exit 4'); " + in + " attach " + s.id + " $n >/dev/full", 4, lost},
		{"logs", "n=$(" + in + " exec -d " + s.id + " -- echo hi)" + printed + in + " logs " + s.id + " $n >/dev/full", 123, lost},
		{"logs -f", "n=$(" + in + " exec -d " + s.id + " -- echo hi); " + in + " logs -f " + s.id + " $n >/dev/full", 123, lost},
		{"logs of stderr", "n=$(" + in + " exec -d " + s.id + " -- sh -c 'echo hi >&2'); " + in + " logs -f " + s.id + " $n 2>/dev/full", 123, ""},
		{"logs --json", "n=$(" + in + " exec -d " + s.id + " -- echo hi)" + printed + in + " logs --json " + s.id + " $n >/dev/full", 123, lost},
		{"a reader that goes", "{ " + run + " yes; echo code $? >&2; } | head -n 1", 0, "code 141"},
		{"nothing is shown", run + " true >/dev/full", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := s.do(call{args: []string{"bash", "-c", tt.script}, env: []string{s.env}, timeout: 30 * time.Second})
			if o.code != tt.code || !strings.Contains(o.stderr, tt.says) || tt.says == "" && strings.Contains(o.stderr, "lost") {
				t.Errorf("want %d and %q: %v", tt.code, tt.says, o)
			}
		})
	}
}

// TestUnread: a signal ends a run with a terminal whose output nobody reads, whether it comes
// before the command's end or after it.
func TestUnread(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	for _, tt := range []struct {
		name, limit string
		code        int
	}{
		{"TERM", "60s", 143},
		{"TERM after the time limit", "1s", 124},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			args := f.strict([]string{"-t", "--timeout", tt.limit, "--kill-after", "500ms"}, "sh", "-c", ": >begun; exec yes")
			cmd := exec.Command(args[0], args[1:]...)
			var said strings.Builder
			cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = f.ws, f.environ(), w, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			begun := f.ws + "/begun"
			if !within(20*time.Second, func() bool { return exists(begun) }) {
				t.Error("the command did not begin")
			}
			os.Remove(begun)
			time.Sleep(2500 * time.Millisecond)
			cmd.Process.Signal(syscall.SIGTERM)
			timer := time.AfterFunc(10*time.Second, func() {
				t.Error("it still waits")
				cmd.Process.Kill()
			})
			cmd.Wait()
			timer.Stop()
			if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(said.String(), "nobody reads it") {
				t.Errorf("%d, want %d: %s", code, tt.code, said.String())
			}
			io.Copy(io.Discard, r)
		})
	}
}

// TestUnshownModes: a reader that goes away does not leave the caller's terminal raw.
func TestUnshownModes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	tm := f.newTerminal()
	before := *tm.modes()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	args := f.strict([]string{"-t"}, "sh", "-c", "until [ -e go ]; do sleep 0.1; done; exec yes")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout = f.ws, f.environ(), tm.tty, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	tm.raw()
	r.Close()
	f.write("ws/go", "", 0o644)
	cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGPIPE {
		t.Errorf("%v", cmd.ProcessState)
	}
	if *tm.modes() != before {
		t.Error("the terminal's modes are not restored")
	}
}

// TestTerminalWithoutBash: where there is no bash, -c runs sh, with a terminal too: what is
// typed is for that one, and the code and modes are right.
func TestTerminalWithoutBash(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	if err := os.MkdirAll(f.ws+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", f.ws+"/bin/sh"); err != nil {
		t.Fatal(err)
	}
	f.own()
	// What is typed before any shell runs is for the one that does.
	for _, script := range []string{"printf 'abc\\n' | ", "printf 'abc\\n' >typed; "} {
		if strings.HasSuffix(script, "; ") {
			script += "<typed "
		}
		args := f.strict([]string{"-t", "--timeout", "20s", "--env", "PATH=" + f.ws + "/bin"})
		script += strings.Join(args[:len(args)-1], " ") + ` -c 'read x; echo "got [$x] by $0"; exit 5'`
		if o := f.do(call{args: []string{"bash", "-c", script}}); o.code != 5 || !strings.Contains(o.stdout, "got [abc] by sh") {
			t.Errorf("%s: %v", script, o)
		}
	}
	// So are signals, and the end.
	for ms := range 40 {
		args := f.strict([]string{"--env", "PATH=" + f.ws + "/bin"})
		o := f.do(call{args: append(args[:len(args)-1], "-c", "/bin/sleep 2; exit 7"), started: func(cmd *exec.Cmd) {
			time.Sleep(time.Duration(ms) * time.Millisecond)
			cmd.Process.Signal(syscall.SIGTERM)
		}})
		if o.code == 7 {
			t.Fatalf("SIGTERM after %d ms: %v", ms, o)
		}
	}
	for range 3 {
		tm := f.newTerminal()
		before := *tm.modes()
		args := f.strict([]string{"-t", "--timeout", "20s", "--env", "PATH=" + f.ws + "/bin"})
		args = append(args[:len(args)-1], "-c", `echo up; read line; echo "got $line"; exit 5`)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = f.ws, f.environ(), tm.tty, tm.tty, tm.tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tm.wait("up")
		tm.master.WriteString("abc\n")
		tm.wait("got abc")
		if code := tm.end(cmd); code != 5 {
			t.Errorf("code %d: %s", code, tm.text())
		}
		if after := *tm.modes(); after != before {
			t.Errorf("modes %+v, before %+v", after, before)
		}
		tm.tty.Close()
		tm.master.Close()
	}
}
