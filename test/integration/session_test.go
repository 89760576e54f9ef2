//go:build linux

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/test/survivors"
)

// A session is one that a test made by the command line.
type session struct {
	*fixture
	id  string
	env string
}

// newSession creates a session under strict, with a directory for sessions of
// the fixture's own.
func newSession(t *testing.T, w who, flags ...string) *session {
	t.Helper()
	f := newFixture(t, w)
	run := f.path("run")
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	f.own()
	s := &session{f, f.unique("s"), "XDG_RUNTIME_DIR=" + run}
	if len(s.id) > 60 {
		s.id = s.id[len(s.id)-60:]
	}
	args := append(f.who.command(sbxrun, "session", "create", "-C", f.ws), f.who.sessionFlags()...)
	o := f.do(call{args: append(append(args, flags...), s.id), env: []string{s.env}})
	if o.code != 0 || o.stdout != s.id+"\n" {
		t.Fatalf("create: %v", o)
	}
	t.Cleanup(func() { s.cli("rm", "--force", s.id) })
	return s
}

// cli runs a command of sbxrun session.
func (s *session) cli(args ...string) *outcome {
	s.Helper()
	return s.do(call{args: s.who.command(append([]string{sbxrun, "session"}, args...)...), env: []string{s.env}})
}

// exec runs a shell script in the session.
func (s *session) exec(script string, flags ...string) *outcome {
	s.Helper()
	return s.cli(append(append([]string{"exec"}, flags...), s.id, "--", "/bin/sh", "-c", script)...)
}

// want runs a script and wants it to succeed with that output.
func (s *session) want(script, stdout string, flags ...string) {
	s.Helper()
	if o := s.exec(script, flags...); o.code != 0 || o.stdout != stdout {
		s.Errorf("want %q: %v", stdout, o)
	}
}

func (s *session) info() (i struct {
	State    string
	Pid      int
	Commands []struct {
		ID      int
		Running bool
	}
	Usage struct {
		PidsDenied uint64 `json:"pids_denied"`
		MemoryPeak uint64 `json:"memory_peak_bytes"`
	}
	Layers []string
}) {
	s.Helper()
	o := s.cli("inspect", s.id)
	if err := json.Unmarshal([]byte(o.stdout), &i); err != nil {
		s.Fatalf("inspect: %v\n%v", err, o)
	}
	return i
}

// asEachUser runs a test as each user, one after the other: what is left behind is
// looked for.
func asEachUser(t *testing.T, test func(t *testing.T, w who)) {
	t.Helper()
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) { test(t, w) })
	}
}

// TestSession: files and processes stay from one command to the next, streams
// and codes are the command's own, and nothing of it is left at the end.
func TestSession(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		s.want("echo kept > /tmp/f; echo also > $HOME/g; echo out; echo err >&2", "out\n")
		s.want("cat /tmp/f $HOME/g", "kept\nalso\n")
		s.want("echo ws > made; pwd", s.ws+"\n")
		if b, err := os.ReadFile(filepath.Join(s.ws, "made")); err != nil || string(b) != "ws\n" {
			t.Errorf("the workspace: %q, %v", b, err)
		}
		// Arguments are bytes, whatever the messages are made of.
		if o := s.cli("exec", "--env", "BYTES=\xfe", s.id, "--", "/bin/sh", "-c", `printf %s "$1$BYTES"`, "sh", "a\xffb"); o.stdout != "a\xffb\xfe" {
			t.Errorf("bytes: %q, %v", o.stdout, o)
		}
		if o := s.exec("kill -TERM $$"); o.code != 143 {
			t.Errorf("signal: %v", o)
		}
		if o := s.exec("exit 125", "--json"); s.result(o).Reason != "exit" || s.result(o).ExitCode != 125 {
			t.Errorf("a command's own 125: %v", o)
		}
		if o := s.cli("exec", s.id, "--", "no-such-program"); o.code != 127 || !strings.Contains(o.stderr, "not found") {
			t.Errorf("no such command: %v", o)
		}
		s.want("echo $A-$B", "1-\n", "-e", "A=1")
		s.want("pwd", "/tmp\n", "-C", "/tmp")
		// A background process: found by the next command, and by kill.
		o := s.exec("sleep 600 >/dev/null 2>&1 & echo $!")
		pid := strings.TrimSpace(o.stdout)
		s.want("kill -0 "+pid+" && echo alive", "alive\n")
		s.want("kill "+pid+"; while kill -0 "+pid+" 2>/dev/null; do :; done; echo gone", "gone\n")
		// One that is started as such, and its output.
		o = s.exec("echo one; sleep 0.2; echo two >&2; exit 3", "-d")
		n := strings.TrimSpace(o.stdout)
		if o := s.cli("logs", "-f", s.id, n); o.code != 0 || o.stdout != "one\n" || o.stderr != "two\n" {
			t.Errorf("logs: %v", o)
		}
		// The time limit ends all that a command started, and nothing else.
		other := strings.TrimSpace(s.exec("sleep 600 >/dev/null 2>&1 & echo $!").stdout)
		script := "trap '' TERM; (trap '' TERM; sleep 601) & sleep 602"
		if s.who.noCgroup == "" {
			script = "trap '' TERM; setsid sleep 601 & sleep 602"
		}
		if o := s.exec(script, "--timeout", "300ms", "--kill-after", "200ms", "--json"); s.result(o).Reason != "timeout" || o.code != 124 {
			t.Errorf("timeout: %v", o)
		}
		s.want("pgrep -f 'sleep 60[12]' >/dev/null || echo none; kill -0 "+other+" && echo other", "none\nother\n")

		marker := "73" + strconv.Itoa(os.Getpid()%10000)
		s.exec("setsid sleep " + marker + " >/dev/null 2>&1 &")
		// The shell does not wait for it to be executed.
		if !within(10*time.Second, func() bool { return len(processes("sleep\x00"+marker)) > 0 }) {
			t.Error("the background process is not running")
		}
		i := s.info()
		if i.State != "running" && i.State != "ready" || i.Pid == 0 {
			t.Errorf("inspect: %+v", i)
		}
		if o := s.cli("stop", s.id); o.code != 0 {
			t.Errorf("stop: %v", o)
		}
		if left := processes("sleep\x00" + marker); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		if !within(5*time.Second, func() bool { return !exists(fmt.Sprintf("/proc/%d", i.Pid)) }) {
			t.Error("the holder is still there")
		}
		if o := s.exec("true"); o.code != 125 || !strings.Contains(o.stderr, "has ended") {
			t.Errorf("a command after the end: %v", o)
		}
		s.wantUnchanged()
	})
}

// TestSessionUntold: who is killed while it makes a session leaves none of which
// nobody was told the id; one that was told of stays.
func TestSessionUntold(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		own := s.who.sessionFlags()
		args := append(s.who.command(sbxrun, "session", "create", "-C", s.ws), own...)
		for i := range 4 {
			id := fmt.Sprintf("%.50s-u%d", s.id[max(0, len(s.id)-50):], i)
			c := exec.Command(args[0], append(args[1:], id)...)
			c.Env, c.Dir = s.environ(s.env), s.ws
			told, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if i > 0 { // else before anything is there
				within(10*time.Second, func() bool { return exists(filepath.Join(s.path("run"), "sbxrun/sessions", id)) })
			}
			time.Sleep(time.Duration(i) * 3 * time.Millisecond)
			syscall.Kill(c.Process.Pid, syscall.SIGKILL)
			out, _ := io.ReadAll(told)
			err = c.Wait()
			if c.ProcessState.Exited() && err != nil {
				t.Fatalf("create: %v", err)
			}
			if err == nil {
				// It was faster, and the session is there.
				if o := s.cli("rm", "--force", id); o.code != 0 || string(out) != id+"\n" {
					t.Errorf("%d: %q, %v", i, out, o)
				}
				continue
			}
			if !within(15*time.Second, func() bool { return s.cli("exec", id, "--", "true").code != 0 }) {
				t.Errorf("%d: a session lives that nobody was told of", i)
			}
			s.cli("rm", "--force", id)
		}
		s.want("echo fine", "fine\n")
		// What could not be printed was not told.
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		c := exec.Command(args[0], append(args[1:], "full")...)
		c.Env, c.Dir, c.Stdout = s.environ(s.env), s.ws, full
		if err := c.Run(); err == nil {
			t.Error("no error")
		}
		if !within(15*time.Second, func() bool { return s.cli("inspect", "full").code != 0 }) {
			t.Error("a session is left that nobody was told of")
		}
	})
}

// TestSessionPublish: a published port leads to whichever command of the session
// listens, one after the other, and is closed when the session stops.
func TestSessionPublish(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		_, port, _ := net.SplitHostPort(addr)
		l.Close()
		s := newSession(t, w, "--publish", port+":8000")
		ask := func() string {
			c, err := net.Dial("tcp4", addr)
			if errors.Is(err, syscall.ECONNRESET) {
				return "" // as it is told that nobody listens
			}
			if err != nil {
				return err.Error()
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			b, _ := io.ReadAll(c)
			return string(b)
		}
		for _, word := range []string{"first", "second"} {
			if o := s.cli("exec", "-d", s.id, "--", "/usr/bin/python3", "-c", `
import socket,sys
l=socket.socket(); l.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); l.bind(("127.0.0.1",8000)); l.listen(16)
open(sys.argv[1]+"-up","w").close()
c,a=l.accept(); c.sendall(sys.argv[1].encode()); c.close()
`, word); o.code != 0 {
				t.Fatalf("exec -d: %v", o)
			}
			if !within(20*time.Second, func() bool { return exists(s.path("ws/" + word + "-up")) }) {
				t.Fatalf("the server did not start: %v", s.cli("logs", s.id))
			}
			if got := ask(); got != word {
				t.Errorf("got %q, want %q", got, word)
			}
		}
		// The port stays with the session, with nobody behind it.
		if got := ask(); got != "" {
			t.Errorf("without a server: %q", got)
		}
		if o := s.cli("stop", s.id); o.code != 0 {
			t.Errorf("stop: %v", o)
		}
		if c, err := net.Dial("tcp4", addr); err == nil {
			c.Close()
			t.Error("the port is still open")
		}
	})
}

// TestSessionConfined: a command of a session is confined as that of a run is.
// Each line is a fact that the same script prints in a run. (One difference is
// meant: process 1 may be signalled, because it is in the commands' Landlock
// scope. It blocks every signal, and the kernel keeps SIGKILL and SIGSTOP of its
// own namespace from it.)
func TestSessionConfined(t *testing.T) {
	const script = `grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id; ls /proc/self/fd | wc -l
hostname; cat /proc/self/attr/current 2>/dev/null; ulimit -a; touch /usr/x 2>&1; cat /etc/shadow 2>&1; ls -a ~ | wc -l; ls /dev
cat /proc/1/environ 2>&1; ls /proc/1/root 2>&1; ip link 2>/dev/null | grep -c '^[0-9]'; env | sort; umask; cat /proc/mounts | wc -l; cat /proc/self/cgroup`
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		in := s.exec(script)
		out := s.do(call{args: s.strict(nil, "/bin/sh", "-c", script), env: []string{s.env}})
		if in.stdout != out.stdout || in.code != out.code {
			a, b := strings.Split(in.stdout, "\n"), strings.Split(out.stdout, "\n")
			for i := range max(len(a), len(b)) {
				if x, y := at(a, i), at(b, i); x != y {
					t.Errorf("in a session %q, in a run %q", x, y)
				}
			}
		}
		s.wantUnchanged()
	})
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

// TestSessionHolderKilled: the sandbox ends with the process that holds it, and
// nothing is left but the record, which prune removes (SES-5).
func TestSessionHolderKilled(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		marker := "74" + strconv.Itoa(os.Getpid()%10000)
		s.exec("setsid sleep "+marker+" >/dev/null 2>&1 &", "-d")
		if !within(5*time.Second, func() bool { return len(processes("sleep\x00"+marker)) > 0 }) {
			t.Fatal("the background process did not start")
		}
		pid := s.info().Pid
		// Whoever waits for a command learns that it may have run.
		o := s.do(call{
			args: s.who.command(sbxrun, "session", "exec", "--json", s.id, "--", "/bin/sh", "-c", "sleep "+marker+"; true"), env: []string{s.env},
			started: func(*exec.Cmd) {
				if !within(5*time.Second, func() bool { return len(processes("sleep\x00"+marker)) > 1 }) {
					t.Error("the second did not start")
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			},
		})
		if r := s.result(o); o.code != 123 || r.Reason != "lost" {
			t.Errorf("the command: %v", o)
		}
		if err := survivors.Gone(func() []string { return processes("sleep\x00" + marker) }); err != nil {
			t.Error(err)
		}
		if i := s.info(); i.State != "error" {
			t.Errorf("state %q", i.State)
		}
		// Process 1 removes them once nothing is left to run.
		if !within(10*time.Second, func() bool { return len(deadGroups()) == 0 }) {
			t.Errorf("cgroups are left: %v", deadGroups())
		}
		o = s.do(call{args: s.who.command(sbxrun, "prune", "--older-than", "0s"), env: []string{s.env}})
		if o.code != 0 || !strings.Contains(o.stdout, "session "+s.id) {
			t.Errorf("prune: %v", o)
		}
		if o := s.cli("ls", "--json"); o.stdout != "[]\n" {
			t.Errorf("ls: %v", o)
		}
		s.wantUnchanged()
	})
}

// TestSessionClientKilled: what a client started ends with it (A10), and what it
// started in the background does not.
func TestSessionClientKilled(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		marker := "75" + strconv.Itoa(os.Getpid()%10000)
		s.do(call{
			args: s.who.command(sbxrun, "session", "exec", s.id, "--", "/bin/sh", "-c", "sleep "+marker+"; true"), env: []string{s.env},
			started: func(c *exec.Cmd) {
				if !within(5*time.Second, func() bool { return len(processes("sleep\x00"+marker)) > 0 }) {
					t.Error("it did not start")
				}
				c.Process.Kill()
			},
		})
		if err := survivors.Gone(func() []string { return processes("sleep\x00" + marker) }); err != nil {
			t.Error(err)
		}
		s.want("echo alive", "alive\n")
	})
}

// TestSessionLimits: the limits are those of all commands together.
func TestSessionLimits(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		if w.noCgroup != "" {
			t.Skip(w.noCgroup)
		}
		s := newSession(t, w, "--memory", "64m", "--pids", "24")
		for range 2 {
			if o := s.exec("for i in 1 2 3 4 5 6 7 8; do sleep 600 >/dev/null 2>&1 & done"); o.code != 0 {
				t.Fatalf("%v", o)
			}
		}
		if o := s.exec("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 600 >/dev/null & done; wait", "--json"); s.result(o).Reason != "pids" {
			t.Errorf("%v", o)
		}
		s.exec("exec pkill sleep")
		o := s.exec("head -c 200m /dev/zero | tail", "--json")
		if r := s.result(o); r.Usage.OOMKills == 0 {
			t.Errorf("%v", o)
		}
		s.want("echo alive", "alive\n")
		if i := s.info(); i.Usage.MemoryPeak < 60<<20 || i.Usage.PidsDenied == 0 {
			t.Errorf("%+v", i.Usage)
		}
	})
}

// TestSessionCommandLimits: a command can have limits of its own, within the
// session's. They hold for it, its result tells of them, and a command beside it
// is not touched.
func TestSessionCommandLimits(t *testing.T) {
	t.Parallel()
	const (
		eat   = "head -c 100m /dev/zero | tail | wc -c"
		hog   = "exec tail /dev/zero" // on v1 one process is killed: this is the command
		forks = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 600 >/dev/null & done; kill $(jobs -p)"
		burn  = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"
	)
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w, "--memory", "1g", "--pids", "200", "--cpus", "2")
		if w.noCgroup != "" {
			if o := s.exec("ulimit -d", "--memory", "64m", "--json"); s.result(o).Stdout != "65536\n" || !strings.Contains(o.stdout, `"rlimits"`) {
				t.Errorf("in place of a cgroup: %v", o)
			}
			t.Skip(w.noCgroup)
		}
		other := strings.TrimSpace(s.exec("sleep 600 >/dev/null 2>&1 & echo $!").stdout)
		o := s.exec(hog, "--memory", "32m", "--json")
		if r := s.result(o); r.Reason != "oom" || r.Usage.OOMKills == 0 || r.Usage.MemoryPeak < 24<<20 || r.Usage.MemoryPeak > 36<<20 {
			t.Errorf("memory: %v", o)
		}
		s.want(eat, strconv.Itoa(100<<20)+"\n")
		o = s.exec(forks+"; exit 9", "--pids", "10", "--json")
		if r := s.result(o); r.Reason != "pids" || r.Usage.PidsDenied == 0 || r.Usage.PidsPeak > 10 {
			t.Errorf("pids: %v", o)
		}
		if o := s.exec(forks+"; exit 9", "--json"); s.result(o).Reason != "exit" || s.result(o).ExitCode != 9 {
			t.Errorf("pids, without a limit: %v", o)
		}
		// An emulated processor may not come to its end.
		if o := s.exec(burn, "--cpus", "0.04", "--timeout", "20s", "--json"); s.result(o).Usage.ThrottledMS == 0 {
			t.Errorf("cpus: %v", o)
		}
		if o := s.exec(burn, "--cpus", "2", "--json"); s.result(o).Usage.ThrottledMS != 0 {
			t.Errorf("cpus, more than it can use: %v", o)
		}
		// In the background, and as a flag of a run.
		n := strings.TrimSpace(s.exec(hog, "-d", "--memory", "32m").stdout)
		s.cli("logs", "-f", s.id, n)
		if o := s.cli("logs", "--json", s.id, n); !strings.Contains(o.stdout, `"oom"`) {
			t.Errorf("in the background: %v", o)
		}
		o = s.do(call{args: s.who.command(sbxrun, "--session", s.id, "--memory", "32m", "--json", "--", "/bin/sh", "-c", hog), env: []string{s.env}})
		if s.result(o).Reason != "oom" {
			t.Errorf("as a flag of a run: %v", o)
		}
		s.want("kill -0 "+other+" && echo other", "other\n")
		if i := s.info(); i.Usage.PidsDenied == 0 || i.Usage.MemoryPeak < 60<<20 {
			t.Errorf("of the session: %+v", i.Usage)
		}
		for _, tt := range [][]string{
			{"--memory", "2g"}, {"--memory", "none"}, {"--pids", "201"}, {"--cpus", "2.5"},
		} {
			if o := s.exec("echo ran", tt...); o.code != 125 || o.stdout != "" || !strings.Contains(o.stderr, "no more than the sandbox's own limit") {
				t.Errorf("%v: %v", tt, o)
			}
		}
		s.cli("rm", "--force", s.id)
		if !within(10*time.Second, func() bool { return len(deadGroups()) == 0 }) {
			t.Errorf("cgroups are left: %v", deadGroups())
		}
		s.wantUnchanged()
	})
}

// TestSessionFlags: flags of a run hold for a session's command, or keep it from
// running.
func TestSessionFlags(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		run := func(env []string, flags ...string) *outcome {
			args := append([]string{sbxrun, "--session", s.id}, flags...)
			return s.do(call{args: s.who.command(append(args, "--", "/bin/sh", "-c", "touch ran; echo ran")...), env: append(env, s.env)})
		}
		for _, flags := range [][]string{
			{"--workspace", "ro"}, {"--dry-run"}, {"--hide", s.ws}, {"--ro", "/usr"}, {"--net", "none"}, {"--user", "5"}, {"--verify"}, {"--verify=false"},
			{"-P", "strict"}, {"--install-deps"}, {"--git", "https://example.com/x"}, {"--no-pool"}, {"--require", "landlock"}, {"--disk", "1m"}, {"-q", "--driver", "native"},
		} {
			name, _, _ := strings.Cut(flags[len(flags)-1], "=")
			if len(flags) > 1 {
				name = flags[len(flags)-2]
			}
			if name == "-P" {
				name = "--profile"
			}
			o := run(nil, flags...)
			if o.code != 125 || o.stdout != "" || !strings.Contains(o.stderr, "sbxrun: error: "+name+" is not a flag of a session's command\nsbxrun: hint: ") {
				t.Errorf("%v: %v", flags, o)
			}
			if _, err := os.Stat(s.ws + "/ran"); err == nil {
				t.Fatalf("%v: it ran", flags)
			}
		}
		for _, flags := range [][]string{
			{"-q"}, {"-v"}, {"--timeout", "1m"}, {"--kill-after", "1s"}, {"--memory", "64m"}, {"-e", "A=b"}, {"-C", "."}, {"-i"},
		} {
			if flags[0] == "--memory" && w.noCgroup != "" {
				continue
			}
			if o := run([]string{"SBXRUN_WORKSPACE=ro"}, flags...); o.code != 0 || o.stdout != "ran\n" {
				t.Errorf("%v: %v", flags, o)
			}
		}
		s.want("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=", "SBXRUN_SANDBOX=strict\n", "--clear-env")
		s.want("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort", "A=b\nSBXRUN_SANDBOX=strict\n", "--clear-env", "-e", "A=b")
	})
}

// TestSessionManyAtOnce: a thousand commands at once, none of which gets
// another's output, while there are no more than the limit on processes allows.
func TestSessionManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newSession(t, whos[0], "--pids", "4000", "--memory", "4g")
	const n, clients = 1000, 50
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range n / clients {
				want := fmt.Sprintf("%d-%d\n", c, i)
				o := s.cli("exec", s.id, "--", "echo", strings.TrimSpace(want))
				if o.code != 0 || o.stdout != want {
					t.Errorf("want %q: %v", want, o)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestSessionStopRaces: commands that come while a session stops run or are told
// that it has ended; none hangs, none is left.
func TestSessionStopRaces(t *testing.T) {
	for range 5 {
		s := newSession(t, whos[0])
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 4 {
					if o := s.exec("exit 9"); o.code != 9 && o.code != 123 && o.code != 125 && o.code != 137 && o.code != 143 {
						t.Errorf("%v", o)
					}
				}
			})
		}
		if o := s.cli("stop", "-t", "100ms", s.id); o.code != 0 {
			t.Errorf("%v", o)
		}
		wg.Wait()
	}
	if !within(10*time.Second, func() bool { return len(deadGroups()) == 0 }) {
		t.Errorf("cgroups are left: %v", deadGroups())
	}
}

// TestSessionBadInput: names are not paths, and what is said is the cause.
func TestSessionBadInput(t *testing.T) {
	s := newSession(t, whos[0])
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"exec", "../" + s.id, "true"}, "invalid value"},
		{[]string{"exec", "", "true"}, "invalid value"},
		{[]string{"create", ""}, "invalid value"},
		{[]string{"exec", strings.Repeat("x", 10<<10), "true"}, "invalid value"},
		{[]string{"exec", "nobody", "true"}, "no such session"},
		{[]string{"exec", s.id}, "no command"},
		{[]string{"exec"}, "needs a session"},
		{slices.Concat([]string{"create"}, s.who.flags(), []string{s.id}), "exists already"},
		{[]string{"create", "a/b"}, "invalid value"},
		{[]string{"create", "--memory", "lots", "x"}, "memory"},
		{[]string{"rm", s.id}, "stop it first"},
		{[]string{"logs", s.id, "99"}, "command 99"},
		{[]string{"logs", s.id, "x"}, "not the number"},
		{[]string{"stop", "nobody"}, "no such session"},
		{[]string{"frobnicate"}, "unknown command"},
	} {
		o := s.cli(tt.args...)
		if o.code != 125 || !strings.Contains(o.stderr, tt.want) || o.stdout != "" {
			t.Errorf("want %q: %v", tt.want, o)
		}
	}
	if o := s.cli("ls", "--json"); !strings.Contains(o.stdout, s.id) {
		t.Errorf("%v", o)
	}
}

// TestSessionForeign: another user has no way to a session (F21).
func TestSessionForeign(t *testing.T) {
	i := slices.IndexFunc(whos, func(w who) bool { return w.name == "user" })
	if !isRoot() || i < 0 {
		t.Skip("needs root, to act as two users")
	}
	s := newSession(t, whos[0]) // root's
	dir := filepath.Join(s.path("run"), "sbxrun", "sessions", s.id)
	if err := os.Chmod(s.path("run"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"ls", dir}, {"cat", filepath.Join(dir, "policy.json")}, {sbxrun, "session", "exec", s.id, "--", "id"}} {
		if o := s.do(call{args: whos[i].command(args...), env: []string{s.env}}); o.code == 0 {
			t.Errorf("%v", o)
		}
	}
	// And from inside: neither the directory nor the socket is there.
	if o := s.exec("ls " + dir + " " + s.path("run")); o.code == 0 {
		t.Errorf("%v", o)
	}
}

// TestSessionFiles: files go in and out as they are, and neither side's are
// reached by a trick of the other's (SES-2, A01).
func TestSessionFiles(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		cp := func(from, to string) *outcome { t.Helper(); return s.cli("cp", from, to) }
		s.write("outside/tree/sub/file", "content\n", 0o640)
		s.write("outside/tree/program", "#!/bin/sh\necho ran\n", 0o755)
		s.own()
		s.before = s.snapshot()
		if o := cp(s.path("outside/tree"), s.id+":/tmp/in"); o.code != 0 {
			t.Fatalf("%v", o)
		}
		s.want("cat /tmp/in/tree/sub/file && /tmp/in/tree/program", "content\nran\n")
		out := s.path("out")
		s.want("ln -s "+s.outside+"/canary /tmp/in/tree/link; mkfifo /tmp/in/tree/fifo; echo new > /tmp/in/tree/new", "")
		if o := cp(s.id+":/tmp/in/tree", out); o.code != 0 {
			t.Fatalf("%v", o)
		}
		if b, err := os.ReadFile(filepath.Join(out, "tree/new")); err != nil || string(b) != "new\n" {
			t.Errorf("%q, %v", b, err)
		}
		if l, err := os.Readlink(filepath.Join(out, "tree/link")); err != nil || l != s.outside+"/canary" {
			t.Errorf("a link: %q, %v", l, err)
		}
		if exists(filepath.Join(out, "tree/fifo")) {
			t.Error("a FIFO came out")
		}
		// A destination that was made a link in the meantime is not followed.
		if err := os.RemoveAll(filepath.Join(out, "tree/sub")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(s.outside, filepath.Join(out, "tree/sub")); err != nil {
			t.Fatal(err)
		}
		cp(s.id+":/tmp/in/tree", out)
		// What a session may not read or write, cp may not either, whatever the
		// way it is called.
		s.want("ln -s / /tmp/rootlink; ln -s "+s.home+" /tmp/homelink", "")
		for _, from := range []string{"/etc/shadow", s.home + "/.ssh", "/tmp/homelink/.ssh", "/tmp/rootlink/" + s.home + "/.ssh", "/tmp/../" + s.home + "/.ssh", "/proc/1/root/etc", "/tmp/in/tree/fifo/x", ""} {
			if o := cp(s.id+":"+from, s.path("stolen")); o.code == 0 {
				t.Errorf("%s came out: %v", from, o)
			}
		}
		for _, to := range []string{"/usr/share", "/tmp/rootlink/usr", "/proc/sys/kernel", "/tmp/in/tree/program"} {
			if o := cp(s.path("outside/tree"), s.id+":"+to); o.code == 0 {
				t.Errorf("%s was written to: %v", to, o)
			}
		}
		if o := cp("/etc/hostname", "/tmp"); o.code != 125 || !strings.Contains(o.stderr, "one side must be a session") {
			t.Errorf("%v", o)
		}
		s.wantUnchanged()
	})
}

// TestSessionCopyProtected: a name that a session chose makes no protected path of the
// host, wherever a copy is told to go (F36). Its control is the same copy, allowed.
func TestSessionCopyProtected(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		out := s.path("out")
		s.want("mkdir -p /tmp/tree/sub/.git/hooks /tmp/editor/.vscode /tmp/link /tmp/hooks /tmp/bare/objects /tmp/bare/refs /tmp/plain/.config; echo evil | tee /tmp/tree/sub/.git/hooks/pre-commit /tmp/editor/.vscode/tasks.json /tmp/hooks/pre-commit /tmp/bare/config /tmp/plain/file > /tmp/bare/HEAD; ln -s plain /tmp/link/.config", "")
		s.write("out/mine.git/HEAD", "ref: refs/heads/main\n", 0o644)
		s.write("out/mine.git/objects/x", "", 0o644)
		s.write("out/mine.git/refs/x", "", 0o644)
		s.own()
		for _, c := range []struct{ from, to, made, pattern string }{
			{"tree", "", "tree/sub/.git/hooks/pre-commit", ".git"},
			{"editor", "", "editor/.vscode/tasks.json", ".vscode"},
			{"link", "", "link/.config", ".config"},
			{"hooks", "mine.git", "mine.git/hooks/pre-commit", ".git/hooks"},
			{"bare", "", "bare/config", ".git"},
		} {
			to := filepath.Join(out, c.to)
			if o := s.cli("cp", s.id+":/tmp/"+c.from, to); o.code != 125 || !strings.Contains(o.stderr, "is protected (") || !strings.Contains(o.stderr, "--allow-protected") {
				t.Errorf("%s: %v", c.from, o)
			}
			if exists(filepath.Join(out, c.made)) {
				t.Errorf("%s was made", c.made)
			}
			if o := s.cli("cp", "--allow-protected", c.pattern, s.id+":/tmp/"+c.from, to); o.code != 0 || !exists(filepath.Join(out, c.made)) {
				t.Errorf("the control, %s: %v", c.from, o)
			}
		}
		if o := s.cli("cp", s.id+":/tmp/plain", out); o.code != 0 || !exists(filepath.Join(out, "plain/file")) || !exists(filepath.Join(out, "plain/.config")) {
			t.Errorf("what nothing protects: %v", o)
		}
		// What later runs obey is protected, too.
		s.want("mkdir -p /tmp/own/sbxrun; echo evil > /tmp/own/sbxrun/config.yaml", "")
		config := filepath.Join(s.home, ".config")
		if o := s.cli("cp", s.id+":/tmp/own/sbxrun", config); o.code != 125 || !strings.Contains(o.stderr, "is protected (") || exists(filepath.Join(config, "sbxrun/config.yaml")) {
			t.Errorf("sbxrun's configuration: %v", o)
		}
	})
}

// TestSessionCopyPlanted: a link that a command put in the workspace leads neither what is
// copied out of a session to another place nor what is copied in from there (F36). The
// control is a link that stays in its directory and leads to nothing protected.
func TestSessionCopyPlanted(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		s.write("ws/.git/hooks/x", "", 0o755)
		s.own()
		outside := s.path("outside")
		s.want("mkdir plain; ln -s "+outside+" out; ln -s .git/hooks hooks; ln -s plain link; echo mine > /tmp/planted", "")
		for to, made := range map[string]string{"out": "outside/planted", "out/more": "outside/more", "hooks": "ws/.git/hooks/planted"} {
			if o := s.cli("cp", s.id+":/tmp/planted", filepath.Join(s.ws, to)); o.code == 0 || exists(s.path(made)) {
				t.Errorf("to %s: %v", to, o)
			}
		}
		if o := s.cli("cp", s.id+":/tmp/planted", filepath.Join(s.ws, "link/new")); o.code != 0 || !exists(filepath.Join(s.ws, "plain/new/planted")) {
			t.Errorf("the control: %v", o)
		}
		s.write("outside/secret", "secret", 0o644)
		s.own()
		if o := s.cli("cp", filepath.Join(s.ws, "out/secret"), s.id+":/tmp/in"); o.code == 0 || s.exec("cat /tmp/in/secret").stdout != "" {
			t.Errorf("from out: %v", o)
		}
		if o := s.cli("cp", filepath.Join(outside, "secret"), s.id+":/tmp/in"); o.code != 0 || s.exec("cat /tmp/in/secret").stdout != "secret" {
			t.Errorf("the control: %v", o)
		}
	})
}

// TestSessionHuge: what takes no room in a session's small storage, holes and hard
// links, fills no disk on its way out (A01). Its control is a file with a hole that
// the storage could hold: it comes out as it is, as a file with a hole.
func TestSessionHuge(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w, "--disk", "16m")
		out := s.path("out")
		used := func() (n int64) {
			filepath.WalkDir(out, func(_ string, d fs.DirEntry, err error) error {
				if err == nil {
					fi, _ := d.Info()
					n += fi.Sys().(*syscall.Stat_t).Blocks * 512
				}
				return nil
			})
			return n
		}
		s.want("mkdir /tmp/ok /tmp/holes /tmp/links; truncate -s 12m /tmp/ok/f; printf end >> /tmp/ok/f; truncate -s 64g /tmp/holes/f; head -c 8m /dev/urandom > /tmp/links/f; for i in $(seq 99); do ln /tmp/links/f /tmp/links/$i; done", "")
		if o := s.cli("cp", s.id+":/tmp/ok", out); o.code != 0 {
			t.Fatalf("%v", o)
		}
		if b, err := os.ReadFile(filepath.Join(out, "ok/f")); err != nil || string(b) != strings.Repeat("\x00", 12<<20)+"end" || used() > 1<<20 {
			t.Errorf("%d bytes, %v, in %d", len(b), err, used())
		}
		for _, tree := range []string{"holes", "links"} {
			if o := s.cli("cp", s.id+":/tmp/"+tree, out); o.code == 0 || !strings.Contains(o.stderr, "twice what their file system could") || used() > 48<<20 {
				t.Errorf("%s: %d bytes taken: %v", tree, used(), o)
			}
		}
	})
}

// TestSessionLongLogs: what a background command printed is shown whole, however long
// the kept output is.
func TestSessionLongLogs(t *testing.T) {
	t.Parallel()
	s := newSession(t, whos[0], "--max-output", "16m")
	n := strings.TrimSpace(s.exec("seq 2000000 | head -c 13631488", "-d").stdout)
	followed := s.cli("logs", "-f", s.id, n)
	if followed.code != 0 || len(followed.stdout) != 13631488 || !strings.HasPrefix(followed.stdout, "1\n2\n3\n") {
		t.Fatalf("code %d, %d bytes, %q", followed.code, len(followed.stdout), followed.stderr)
	}
	if o := s.cli("logs", s.id, n); o.code != 0 || o.stdout != followed.stdout {
		t.Errorf("again: code %d, %d bytes, %q", o.code, len(o.stdout), o.stderr)
	}
	var out struct {
		Stdout []byte
		Result *struct{ Reason string }
	}
	o := s.cli("logs", "--json", s.id, n)
	if err := json.Unmarshal([]byte(o.stdout), &out); err != nil || string(out.Stdout) != followed.stdout || out.Result == nil || out.Result.Reason != "exit" {
		t.Errorf("--json: %v, code %d, %d bytes, %+v", err, o.code, len(out.Stdout), out.Result)
	}
}

// TestSessionHoarded: a session that memory of the kernel ended says so, and one whose
// command ran out of memory goes on.
func TestSessionHoarded(t *testing.T) {
	eachWho(t, func(f *fixture) {
		if !slices.ContainsFunc(f.who.flags(), func(flag string) bool { return strings.Contains(flag, "cgroup") }) {
			s := newSession(f.T, f.who, "--memory", "64m")
			if o := s.exec("head -c 200m /dev/zero | tail"); o.code != 137 || s.info().State != "ready" {
				f.Errorf("a command that took memory: %v, %s", o, s.info().State)
			}
			s.cli("exec", s.id, "--", s.attack, "R14", "kind=netlink", "mb=192", "procs=4", "hold=60000")
			if !within(20*time.Second, func() bool { return s.info().State != "ready" }) {
				f.Error("the session goes on")
			}
			if o := s.cli("inspect", s.id); !strings.Contains(o.stdout, "memory of the kernel beyond the limit ended the sandbox") {
				f.Error(o)
			}
		}
	})
}

// TestSessionNetworkTried: a command of a session that failed for want of a network says
// so, and one that fails after it does not.
func TestSessionNetworkTried(t *testing.T) {
	eachWho(t, func(f *fixture) {
		s := newSession(f.T, f.who)
		for _, tt := range []struct {
			script string
			code   int
			tried  bool
		}{
			{"getent hosts example.org", 2, true},
			{"exit 3", 3, false},
			{"getent hosts example.org; exit 0", 0, false},
			{"getent hosts localhost; exit 3", 3, false},
			{"curl -s http://192.0.2.1/", 7, true},
		} {
			o := s.exec(tt.script)
			if o.code != tt.code || strings.Contains(o.stderr, "tried to reach the network, and it has none") != tt.tried {
				f.Errorf("%s: want %v: %v", tt.script, tt.tried, o)
			}
		}
	})
}
