//go:build linux

package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// TestStream is RUN-1: 200 MB through a pipe in and a pipe out, byte for byte.
func TestStream(t *testing.T) {
	t.Parallel()
	const size = 200 << 20
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			f := newFixture(t, w)
			args := f.sandbox(nil, "cat")
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir, cmd.Env = f.ws, f.environ(f.cache())
			var stderr bytes.Buffer
			sent, got := sha256.New(), &counter{Hash: sha256.New()}
			cmd.Stdin = io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent)
			cmd.Stdout, cmd.Stderr = got, &stderr
			start := time.Now()
			if err := cmd.Run(); err != nil || stderr.Len() > 0 {
				t.Fatalf("%v: %s", err, &stderr)
			}
			if got.n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("sent %d bytes, sha256 %x; got %d, %x", size, sent.Sum(nil), got.n, got.Sum(nil))
			}
			t.Logf("%.0f MB/s, both ends' hashes included", size/1e6/time.Since(start).Seconds())
		})
	}
}

type counter struct {
	hash.Hash
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.Hash.Write(p)
}

// TestEarlyEnd: neither side waits for the other's streams.
func TestEarlyEnd(t *testing.T) {
	eachWho(t, func(f *fixture) {
		for name, tt := range map[string]struct{ script, want string }{
			// The reader goes away: SIGPIPE ends the writer, as without a sandbox.
			"reader gone": {`{ "$@" yes; echo "code $?" >&2; } | head -n 1`, "y\ncode 141\n"},
			// The command does not read what it is sent.
			"unread stdin": {`yes | { "$@" true; echo "code $?"; }`, "code 0\n"},
			"stdin's rest": {`seq 100000 | { "$@" head -c 0; wc -l; } | head -n 1`, "100000\n"},
		} {
			args := f.who.command("bash", "-c", tt.script, "bash")
			o := f.run(call{args: append(args, f.sandbox(nil)[len(f.who.become):]...)})
			if got := o.stdout + o.stderr; got != tt.want {
				f.Errorf("%s: want %q\n%v", name, tt.want, o)
			}
		}
		// Nobody writes, and nobody closes.
		r, w, err := os.Pipe()
		if err != nil {
			f.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		for _, flags := range [][]string{nil, {"--json"}} {
			if o := f.run(call{args: f.sandbox(flags, "sh", "-c", "echo done; exit 4"), stdin: r, timeout: 20 * time.Second}); o.code != 4 || !strings.Contains(o.stdout, "done") {
				f.Errorf("open stdin: %v", o)
			}
		}
		// A process that goes on and keeps stdout does not hold the result up.
		for _, flags := range [][]string{nil, {"--json"}} {
			if o := f.run(call{args: f.sandbox(flags, "sh", "-c", "setsid sleep 600 & echo done; exit 4"), timeout: 20 * time.Second}); o.code != 4 || o.took > 10*time.Second || !strings.Contains(o.stdout, "done") {
				f.Errorf("a grandchild that keeps stdout: %v", o)
			}
		}
		f.wantNothingLeft()
	})
}

// TestOutputBounded is RUN-4: what --json keeps is bounded, and so is the memory
// that sbxrun needs to throw the rest away.
func TestOutputBounded(t *testing.T) {
	eachWho(t, func(f *fixture) {
		const size = 1 << 28
		var peak atomic.Int64
		o := f.run(call{args: f.sandbox([]string{"--json"}, "sh", "-c", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo all >&2", size)), timeout: 3 * time.Minute, started: func(cmd *exec.Cmd) {
			// Not ru_maxrss: execve(2) leaves it at what the test had before.
			go func() {
				for ; ; time.Sleep(5 * time.Millisecond) {
					b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
					_, rest, ok := strings.Cut(string(b), "\nVmHWM:")
					if err != nil || !ok {
						return
					}
					if kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
						peak.Store(kb << 10)
					}
				}
			}()
		}})
		r := f.result(o)
		if o.code != 0 || r.Reason != "exit" || r.Stderr != "all\n" || r.StderrTruncated || !r.StdoutTruncated || r.Stdout != strings.Repeat("x", 1<<20) {
			f.Errorf("want the first MiB of it, and that marked: exit code %d, reason %s, %d bytes, truncated %v, stderr %q", o.code, r.Reason, len(r.Stdout), r.StdoutTruncated, r.Stderr)
		}
		if p := peak.Load(); p == 0 || p > 64<<20 {
			f.Errorf("sbxrun took %d MiB of memory for 256 MiB of output", p>>20)
		} else {
			f.Logf("peak resident set %d MiB", p>>20)
		}
		// The limit can be set, and what fits is not marked.
		for _, tt := range []struct {
			n         int
			truncated bool
		}{{999, false}, {1000, false}, {1001, true}} {
			r := f.result(f.run(call{args: f.sandbox([]string{"--json", "--max-output", "1000"}, "sh", "-c", fmt.Sprintf("printf %%0%dd 0", tt.n))}))
			if len(r.Stdout) != min(tt.n, 1000) || r.StdoutTruncated != tt.truncated {
				f.Errorf("%d bytes: kept %d, truncated %v", tt.n, len(r.Stdout), r.StdoutTruncated)
			}
		}
	})
}

// TestStandardStreams: each may be closed, full, a file, a pipe, and be opened
// again by its name in /dev.
func TestStandardStreams(t *testing.T) {
	tests := []struct {
		name string
		// Run by the same user outside; "$@" is sbxrun up to the command.
		script string
		want   string
		stderr string // part of it, if not empty
	}{
		{"stdin closed", `"$@" sh -c 'cat; echo "code $?"' <&-`, "code 0\n", ""},
		{"stdout closed", `"$@" sh -c 'echo lost; echo kept >&2; exit 5' 2>&1 >&- | cat; echo ${PIPESTATUS[0]}`, "kept\n5\n", ""},
		{"stderr closed", `"$@" sh -c 'echo lost >&2; echo kept' 2>&-`, "kept\n", ""},
		{"all closed", `"$@" sh -c 'echo x; exit 7' <&- >&- 2>&-; echo $?`, "7\n", ""},
		{"stdout full", `"$@" sh -c 'echo x 2>/dev/null || exit 9' >/dev/full; echo $?`, "9\n", ""},
		{"result full", `"$@" --json true >/dev/full; echo $?`, "", ""},
		// No 125 here: the Go runtime puts /dev/null in the place of a closed
		// standard stream, and a result may be sent there.
		{"result closed", `"$@" --json sh -c 'exit 6' >&-; echo $?`, "6\n", ""},
		{"result file full", `"$@" --result-file /dev/full true; echo $?`, "", ""},
		{"null", `"$@" sh -c 'cat; echo x; echo y >/dev/stdout' </dev/null >/dev/null; echo $?`, "0\n", ""},
		{"files", `echo in >i; "$@" sh -c 'cat; echo err >&2' <i >o 2>e; cat o e; rm i o e`, "in\nerr\n", ""},
		{"append", `echo a >o; "$@" echo b >>o; cat o; rm o`, "a\nb\n", ""},
		{"one file for both", `"$@" sh -c 'echo a; echo b >&2; echo c' >o 2>&1; cat o; rm o`, "a\nb\nc\n", ""},
		{"read and write", `echo line >o; "$@" sh -c 'read x; echo "more $x"' <>o >&0; cat o; rm o`, "line\nmore line\n", ""},

		// Opened again, as scripts that log do.
		{"a pipe again", `"$@" sh -c 'echo a >/dev/stdout; echo b >/dev/stderr; cat /dev/stdin; echo c >>/proc/self/fd/1; echo d | tee /dev/stderr' <<<in 2>&1 | cat`, "a\nb\nin\nc\nd\nd\n", ""},
		{"a pipe to stdin again", `echo in | "$@" cat /dev/stdin`, "in\n", ""},
		{"a file again", `echo in >i; "$@" sh -c 'echo a >>/dev/stdout; echo b >>/dev/stderr; cat /dev/stdin' <i >>o 2>>e; cat o e; rm i o e`, "a\nin\nb\n", ""},
		{"a file outside again", `"$@" sh -c 'echo a >/dev/stdout; echo b >>/dev/stderr' >"$OUT/o" 2>"$OUT/e"; cat "$OUT/o" "$OUT/e"; rm "$OUT/o" "$OUT/e"`, "a\nb\n", ""},
		{"a fifo again", `mkfifo p; "$@" sh -c 'echo a >/dev/stdout; echo b >/dev/stdout' >p & cat p; rm p`, "a\nb\n", ""},
		{"tee", `"$@" sh -c 'echo x | tee /dev/stderr' 2>&1 | cat`, "x\nx\n", ""},
		// The neighbour that must fail: read what was given to be written.
		{"written only", `echo secret >"$OUT/o"; "$@" sh -c 'cat /dev/stdout 2>/dev/null || echo denied >&2' 2>&1 >>"$OUT/o"; rm "$OUT/o"`, "denied\n", ""},
		{"read only", `echo x >"$OUT/i"; "$@" sh -c '{ echo y >/dev/stdin; } 2>/dev/null || echo denied' <"$OUT/i"; cat "$OUT/i"; rm "$OUT/i"`, "denied\nx\n", ""},
		{"a directory", `"$@" true <"$OUT"; echo $?`, "125\n", "directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachWho(t, func(f *fixture) {
				args := f.who.command("bash", "-c", tt.script, "bash")
				// Not --: some of these add flags of their own.
				inner := f.sandbox(nil)[len(f.who.become):]
				o := f.run(call{args: append(args, inner[:len(inner)-1]...), env: []string{"OUT=" + f.outside}})
				if strings.HasSuffix(tt.name, " full") && tt.want == "" {
					// A result that was asked for and cannot be given is a failure
					// of sbxrun's, and none of a run that never was.
					if o.stdout != "123\n" || !strings.Contains(o.stderr, "sbxrun: error: ") {
						f.Errorf("want 123 and an error\n%v", o)
					}
					return
				}
				if o.stdout != tt.want || !strings.Contains(o.stderr, tt.stderr) || tt.stderr == "" && o.stderr != "" {
					f.Errorf("want %q\n%v", tt.want, o)
				}
			})
		})
	}
}

// A term is a terminal with sbxrun at its other end.
type term struct {
	*fixture
	master *os.File
	cmd    *exec.Cmd
	out    chan []byte
	text   string // not yet expected
	done   chan error
}

// terminal starts sbxrun in a terminal of 80 by 24.
func (f *fixture) terminal(args ...string) *term {
	f.Helper()
	x := &term{fixture: f, cmd: exec.Command(args[0], args[1:]...), out: make(chan []byte, 1024), done: make(chan error, 1)}
	x.cmd.Dir, x.cmd.Env = f.ws, f.environ(f.cache())
	master, tty, err := pty.Open()
	if err != nil {
		f.Fatal(err)
	}
	defer tty.Close()
	x.master = master
	if isRoot() { // as login(1) does
		err = tty.Chown(f.who.uid, f.who.uid)
	}
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = tty, tty, tty
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := errors.Join(err, pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 80}), x.cmd.Start()); err != nil {
		master.Close()
		f.Fatal(err)
	}
	go func() {
		defer close(x.out)
		for {
			b := make([]byte, 4096)
			n, err := x.master.Read(b)
			if n > 0 {
				x.out <- b[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	go func() { x.done <- x.cmd.Wait() }()
	f.Cleanup(func() {
		x.cmd.Process.Kill()
		x.master.Close()
	})
	return x
}

// expect waits until the terminal shows text, and returns what came before.
func (x *term) expect(text string) string {
	x.Helper()
	timeout := time.After(20 * time.Second)
	for {
		if before, after, ok := strings.Cut(x.text, text); ok {
			x.text = after
			return before
		}
		select {
		case b, ok := <-x.out:
			if !ok {
				x.Fatalf("the terminal closed; want %q, have %q", text, x.text)
			}
			x.text += string(b)
		case <-timeout:
			x.Fatalf("waited for %q, have %q", text, x.text)
		}
	}
}

// foreground waits until a command runs and is what the keys of its terminal signal.
func (x *term) foreground(command string) {
	x.Helper()
	if !within(20*time.Second, func() bool {
		return slices.ContainsFunc(processes(strings.ReplaceAll(command, " ", "\x00")), func(p string) bool {
			pid, args, _ := strings.Cut(p, " ")
			b, _ := os.ReadFile("/proc/" + pid + "/stat")
			_, stat, _ := strings.Cut(string(b), ") ")
			// state ppid pgrp session tty_nr tpgid; see proc_pid_stat(5).
			f := strings.Fields(stat)
			return strings.TrimSpace(args) == command && len(f) > 5 && f[0] != "T" && f[2] == f[5]
		})
	}) {
		x.Fatalf("%s is not in the foreground; have %q", command, x.text)
	}
}

func (x *term) send(text string) {
	x.Helper()
	if _, err := x.master.WriteString(text); err != nil {
		x.Fatal(err)
	}
}

// line types a command and returns what it printed.
func (x *term) line(command string) string {
	x.Helper()
	x.send(command + "\r")
	x.expect(command)
	out := x.expect(prompt)
	// Readline's switches around each command.
	return strings.NewReplacer("\r", "", "\x1b[?2004h", "", "\x1b[?2004l", "").Replace(strings.TrimPrefix(out, "\r\n"))
}

// exit waits for sbxrun's end and returns its exit code.
func (x *term) exit() int {
	x.Helper()
	select {
	case <-x.done:
	case <-time.After(20 * time.Second):
		x.Fatal("sbxrun did not end")
	}
	state := x.cmd.ProcessState
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}

// modes are the terminal's settings.
func (x *term) modes() unix.Termios {
	x.Helper()
	raw, err := x.master.SyscallConn()
	if err != nil {
		x.Fatal(err)
	}
	var tio *unix.Termios
	if cerr := raw.Control(func(fd uintptr) { tio, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) }); cerr != nil || err != nil {
		x.Fatal(cerr, err)
	}
	return *tio
}

const prompt = "sbx> "

// TestTerminal is an interactive bash under -t.
func TestTerminal(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("bash")
		f.need("ps")
		// The shell around it keeps the terminal open, to look at its settings
		// before and after, as the shell of a login does.
		args := f.who.command("bash", "-c", `echo ready; read; "$@"; echo "code $?"; read; exit 9`, "bash")
		x := f.terminal(append(args, f.sandbox([]string{"-t", "-e", "PS1=" + prompt}, "bash", "--norc", "-i")[len(f.who.become):]...)...)
		x.expect("ready\r\n")
		before := x.modes()
		x.send("\n")
		if warning := x.expect(prompt); strings.Contains(warning, "job control") || strings.Contains(warning, "bash: ") || strings.Contains(warning, "sbxrun: ") {
			f.Errorf("the shell complains: %q", warning)
		}
		if x.modes() == before {
			f.Error("the caller's terminal is not raw")
		}
		for _, tt := range []struct{ command, want string }{
			{"tty", "/dev/pts/0\n"},
			{"stty size", "24 80\n"},
			{"echo $((6*7))", "42\n"},
			{"test -t 0 && test -t 1 && test -t 2 && echo yes", "yes\n"},
			{"echo x >/dev/tty; echo y >/dev/stderr; echo z >/dev/stdout", "x\ny\nz\n"},
			{"ls /dev/pts", "0  ptmx\n"},
			{"ps -o tty= -p $$", "pts/0\n"},
			{"echo $TERM", "xterm\n"},
		} {
			if got := x.line(tt.command); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(tt.want, " ", "") {
				f.Errorf("%s: got %q, want %q", tt.command, got, tt.want)
			}
		}

		// Resize.
		if err := pty.Setsize(x.master, &pty.Winsize{Rows: 40, Cols: 132}); err != nil {
			f.Fatal(err)
		}
		var size string
		if !within(10*time.Second, func() bool { size = x.line("stty size"); return size == "40 132\n" }) {
			f.Errorf("after a resize to 40 132: %q", size)
		}

		// Ctrl-C ends the command and not the shell.
		sleep := fmt.Sprintf("sleep %d", 600_000+f.who.uid)
		x.send(sleep + "\r")
		x.foreground(sleep)
		x.send("\x03")
		x.expect("^C")
		x.expect(prompt)
		if got := x.line("echo code $?"); got != "code 130\n" {
			f.Errorf("after Ctrl-C: %q", got)
		}

		// Ctrl-Z stops it; it goes on in the background, and ends in front.
		x.send(sleep + "\r")
		x.foreground(sleep)
		x.send("\x1a")
		x.expect("Stopped")
		x.expect(prompt)
		if got := x.line("bg; jobs"); !strings.Contains(got, "Running") {
			f.Errorf("after bg: %q", got)
		}
		x.send("fg\r")
		x.foreground(sleep)
		x.send("\x03")
		x.expect(prompt)
		// Ctrl-\ is a signal as well, Ctrl-D the end of a file.
		x.send("cat\r")
		x.expect("cat\r\n")
		time.Sleep(200 * time.Millisecond)
		x.send("typed\r\x04")
		x.expect("typed\r\ntyped\r\n")
		x.expect(prompt)

		x.send("exit 7\r")
		x.expect("code 7\r\n")
		if x.modes() != before {
			f.Error("the terminal was not restored")
		}
		x.send("\n")
		if code := x.exit(); code != 9 {
			f.Errorf("the outer shell ended with %d", code)
		}
		f.wantNothingLeft()
	})
}

// TestTerminalEnds: -t ends as a run does, and gives the terminal back.
func TestTerminalEnds(t *testing.T) {
	tests := []struct {
		name    string
		flags   []string
		command []string
		act     func(x *term)
		code    string
	}{
		{"exit code", nil, []string{"sh", "-c", "echo started; exit 42"}, nil, "42"},
		{"signal", nil, []string{"sh", "-c", "echo started; kill -KILL $$"}, nil, "137"},
		{"time limit", []string{"--timeout", "3s"}, []string{"sh", "-c", "echo started; sleep 600"}, nil, "124"},
		{"Ctrl-C", nil, []string{"sh", "-c", "echo started; sleep 600"}, func(x *term) { x.send("\x03") }, "130"},
		{"not found", nil, []string{"no-such-command"}, nil, "127"},
		{"the last output", nil, []string{"sh", "-c", "echo started; seq 20000; echo the last line"}, func(x *term) { x.expect("20000\r\nthe last line\r\n") }, "0"},
		{"TERM", nil, []string{"sh", "-c", "echo started; sleep 600"}, func(x *term) {
			for _, p := range processes(x.ws) {
				pid, rest, _ := strings.Cut(p, " ")
				if n, _ := strconv.Atoi(pid); strings.HasPrefix(rest, sbxrun+" ") && n != 0 {
					syscall.Kill(n, syscall.SIGTERM)
				}
			}
		}, "143"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachWho(t, func(f *fixture) {
				args := f.who.command("bash", "-c", `echo ready; read; "$@"; echo "code $?"; read`, "bash")
				x := f.terminal(append(args, f.sandbox(append([]string{"-t"}, tt.flags...), tt.command...)[len(f.who.become):]...)...)
				x.expect("ready\r\n")
				before := x.modes()
				x.send("\n")
				if tt.code != "127" {
					x.expect("started\r\n")
				}
				if tt.act != nil {
					time.Sleep(200 * time.Millisecond)
					tt.act(x)
				}
				x.expect("code " + tt.code + "\r\n")
				if x.modes() != before {
					f.Error("the terminal was not restored")
				}
				x.send("\n")
				x.exit()
				f.wantNothingLeft()
			})
		})
	}
}

// TestTerminalPipes: -t also serves callers that have no terminal.
func TestTerminalPipes(t *testing.T) {
	eachWho(t, func(f *fixture) {
		for _, tt := range []struct{ name, script, want string }{
			{"no terminal", `"$@" sh -c 'tty; exit 4' </dev/null | cat; echo ${PIPESTATUS[0]}`, "/dev/pts/0\r\n4\n"},
			// 12,000 lines are more than the buffers between hold: the last of
			// them are in the terminal when the command ends.
			{"a slow reader", `"$@" seq 12000 </dev/null | (sleep 1; tail -n 1)`, "12000\r\n"},
			{"stdin's end", `"$@" sh -c 'stty -echo; cat; cat; echo end' </dev/null`, "end\r\n"},
			// The shell switches the terminal's modes when it starts.
			{"a script for a shell", `echo 'echo $((6*7))' | "$@" bash --norc | tr -d '\r' | grep -o '42$'`, "42\n"},
		} {
			args := f.who.command("bash", "-c", tt.script, "bash")
			o := f.run(call{args: append(args, f.sandbox([]string{"-t"})[len(f.who.become):]...)})
			if o.stdout != tt.want || o.stderr != "" {
				f.Errorf("%s: want %q\n%v", tt.name, tt.want, o)
			}
		}
		f.wantNothingLeft()
	})
}

// TestInheritedTerminal: without -t the command has the caller's terminal as its
// standard streams, can open them again, and has it not for its controlling
// terminal.
func TestInheritedTerminal(t *testing.T) {
	eachWho(t, func(f *fixture) {
		file := filepath.Join(f.ws, "result.json")
		x := f.terminal(f.sandbox([]string{"--result-file", file}, "sh", "-c",
			`test -t 1 && echo terminal; echo a >/dev/stdout; echo b >/dev/stderr; { echo c >/dev/tty; } 2>/dev/null || echo none; stty size; exit 3`)...)
		x.expect("terminal\r\na\r\nb\r\nnone\r\n24 80\r\n")
		if code := x.exit(); code != 3 {
			f.Errorf("exit code %d", code)
		}
		b, err := os.ReadFile(file)
		var r result
		if err != nil || json.Unmarshal(b, &r) != nil || r.ExitCode != 3 || r.Reason != "exit" {
			f.Errorf("%v: %s", err, b)
		}
	})
}
