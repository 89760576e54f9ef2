package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/docker"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/test/engine"
)

// These tests run against a real engine, started for them; see test/engine.

const image = engine.Image

// running says that the engine is there, for as long as the tests run.
var running bool

func TestMain(m *testing.M) {
	if os.Getenv("SBXRUN_TEST_OWNER") != "" {
		owner()
	}
	os.Exit(func() int {
		if os.Geteuid() == 0 {
			stop, err := engine.Docker()
			if err != nil {
				fmt.Fprintln(os.Stderr, "the engine does not start:", err)
				return 1
			}
			defer stop()
			running = true
		}
		return m.Run()
	}())
}

// needEngine asks for what only root can start.
func needEngine(t *testing.T) {
	t.Helper()
	if !running {
		t.Skip("needs root: dockerd is started for the tests")
	}
}

func resolve(t *testing.T, change func(*profiles.Request), command ...string) *policy.Policy {
	t.Helper()
	req := &profiles.Request{Command: command, Profile: "docker", Image: image, Dir: t.TempDir()}
	if change != nil {
		change(req)
	}
	r, err := profiles.Resolve(req, &profiles.Facts{
		Home: "/nonexistent", Cwd: "/", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"TERM=xterm"}, CPUs: 2, FS: os.DirFS("/"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.Policy
}

func run(t *testing.T, p *policy.Policy, o driver.RunOptions) (*driver.Result, error) {
	t.Helper()
	o.Capture = true
	return driver.Run(context.Background(), docker.Driver{Image: image}, p, o)
}

// containers lists what the engine has.
func containers(t *testing.T, client string) []string {
	t.Helper()
	out, err := exec.Command(client, "ps", "-a", "--format", "{{.Names}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func nothingLeft(t *testing.T, client string) {
	t.Helper()
	// An engine lists a container as long as it is at removing it.
	var left []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = containers(t, client); len(left) == 0 {
			return
		}
	}
	t.Errorf("left: %q", left)
}

// TestRun: what the policy says is what the command finds.
func TestRun(t *testing.T) {
	needEngine(t)
	for _, tt := range []struct {
		name, script string
		change       func(*profiles.Request)
		stdout       string
		code         int
		check        func(t *testing.T, ws string, r *driver.Result)
	}{
		{name: "streams and code", script: "echo out; echo err >&2; exit 7", stdout: "out\n", code: 7, check: func(t *testing.T, _ string, r *driver.Result) {
			if r.Stderr != "err\n" {
				t.Errorf("stderr %q", r.Stderr)
			}
		}},
		{name: "the workspace is written", script: "echo hi > f; pwd > where", check: func(t *testing.T, ws string, _ *driver.Result) {
			if b, _ := os.ReadFile(filepath.Join(ws, "f")); string(b) != "hi\n" {
				t.Errorf("%q", b)
			}
			if b, _ := os.ReadFile(filepath.Join(ws, "where")); string(b) != ws+"\n" {
				t.Errorf("%q", b)
			}
		}},
		{name: "the workspace is read-only", script: "touch f 2>&1 || echo no > /tmp/x; cat /tmp/x", change: func(r *profiles.Request) { r.Workspace = "ro" }, stdout: "touch: f: Read-only file system\nno\n"},
		{name: "the image is read-only", script: "touch /etc/new || echo denied; echo y > /etc/plain || echo denied; cat /etc/plain", stdout: "denied\ndenied\nx\n"},
		{name: "the host is not there", script: "ls /usr /root /var 2>/dev/null; echo $?", stdout: "1\n"},
		{name: "private storage", script: "echo x > $HOME/f && cat $HOME/f && echo y > /tmp/f && cat /tmp/f", stdout: "x\ny\n"},
		{name: "private storage has a bound", script: "dd if=/dev/zero of=/tmp/f bs=1M count=20 2>/dev/null; echo $?", change: func(r *profiles.Request) { n := uint64(8 << 20); r.Disk = &n }, stdout: "1\n"},
		{name: "no capability", script: "grep -c '^Cap.*0000000000000000' /proc/self/status; grep -e NoNewPrivs -e '^Seccomp:' /proc/self/status | tr '\\t' ' '", stdout: "5\nNoNewPrivs: 1\nSeccomp: 2\n"},
		{name: "no network", script: "ls /sys/class/net; nc -w 1 127.0.0.1 1 || echo refused", stdout: "lo\nrefused\n"},
		{name: "the filter holds", script: "unshare -U true 2>/dev/null || echo denied; mount -t tmpfs x /tmp 2>/dev/null || echo denied", stdout: "denied\ndenied\n"},
		{name: "its own processes", script: "[ $(ls -d /proc/[0-9]* | wc -l) -lt 10 ] && echo few; hostname", stdout: "few\nsandbox\n"},
		{name: "the environment", script: `echo "$A|$B|$C"; env | grep -c -e SECRET -e DOCKER_HOST`, change: func(r *profiles.Request) { r.Env = []string{"A=a b", "B= # x\"'$HOME", "C=two\nlines"} }, stdout: "a b| # x\"'$HOME|two\nlines\n0\n", code: 1},
		{name: "limits of a process", script: "ulimit -n; ulimit -c", change: func(r *profiles.Request) { n := uint64(77); r.OpenFiles = &n }, stdout: "77\n0\n"},
		{name: "not found", script: "exec /nope", code: 127},
		{name: "arguments", script: `printf '<%s>' "$@"`, stdout: `<a b><><*><'"\>`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := resolve(t, tt.change, "sh", "-c", tt.script, "sh", "a b", "", "*", `'"\`)
			if tt.name != "arguments" {
				p.OCI.Process.Args = p.OCI.Process.Args[:3]
			}
			res, err := run(t, p, driver.RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if res.Stdout != tt.stdout || res.ExitCode != tt.code || res.Reason != driver.ReasonExit {
				t.Errorf("%q, want %q; exit %d, %s; stderr %q", res.Stdout, tt.stdout, res.ExitCode, res.Reason, res.Stderr)
			}
			if tt.check != nil {
				tt.check(t, p.OCI.Process.Cwd, res)
			}
			if want := p.Require; !res.Layers.Has(want) || !res.Sandboxed || res.Driver != "docker" {
				t.Errorf("layers %v, want %v of %+v", res.Layers, want, res)
			}
		})
	}
	nothingLeft(t, "docker")
}

// TestSecretsNotInArguments: a value of the environment is in no command line.
func TestSecretsNotInArguments(t *testing.T) {
	needEngine(t)
	secret := "s3cret" + strconv.Itoa(os.Getpid())
	p := resolve(t, func(r *profiles.Request) { r.Env = []string{"TOKEN=" + secret} }, "sh", "-c", "echo $TOKEN; sleep 1")
	seen := make(chan string, 1)
	stop := make(chan struct{})
	go func() {
		found := ""
		for {
			select {
			case <-stop:
				seen <- found
				return
			default:
			}
			names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, n := range names {
				if b, _ := os.ReadFile(n); bytes.Contains(b, []byte(secret)) {
					found = string(b)
				}
			}
		}
	}()
	res, err := run(t, p, driver.RunOptions{})
	close(stop)
	if found := <-seen; found != "" {
		t.Errorf("in a command line: %q", found)
	}
	if err != nil || res.Stdout != secret+"\n" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestStdin(t *testing.T) {
	needEngine(t)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	data := bytes.Repeat([]byte{0, 1, 2, 3, 4, 255, '\r', '\n'}, 20000)
	go func() { out.Write(data); out.Close() }()
	res, err := run(t, resolve(t, nil, "cat"), driver.RunOptions{Stdio: driver.Stdio{Stdin: in}})
	if err != nil || res.Stdout != string(data) {
		t.Errorf("%d bytes of %d, %v", len(res.Stdout), len(data), err)
	}
}

// TestUnread: a command whose reader goes away ends as by SIGPIPE.
func TestUnread(t *testing.T) {
	needEngine(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	go func() { r.Read(make([]byte, 1)); r.Close() }()
	res, err := driver.Run(t.Context(), docker.Driver{Image: image}, resolve(t, nil, "yes"), driver.RunOptions{Stdio: driver.Stdio{Stdout: w}})
	if err != nil || res.Signal != "SIGPIPE" || res.ExitCode != 141 {
		t.Errorf("%+v, %v", res, err)
	}
	nothingLeft(t, "docker")
}

// TestTimeout: the time limit ends the container, not its client alone, with
// everything in it.
func TestTimeout(t *testing.T) {
	needEngine(t)
	p := resolve(t, func(r *profiles.Request) { d, k := 2*time.Second, time.Second; r.Timeout, r.KillAfter = &d, &k },
		"sh", "-c", `trap "" TERM; (trap "" TERM; sleep 987) & sleep 987`)
	res, err := run(t, p, driver.RunOptions{})
	if err != nil || res.Reason != driver.ReasonTimeout || res.ExitCode != driver.ExitTimeout {
		t.Errorf("%+v, %v", res, err)
	}
	nothingLeft(t, "docker")
	if out, _ := exec.Command("ps", "-eo", "args").Output(); strings.Contains(string(out), "sleep 987") {
		t.Errorf("the command runs on:\n%s", out)
	}
}

// TestSignals: a signal reaches the command; a second one ends everything.
func TestSignals(t *testing.T) {
	needEngine(t)
	signals := make(chan os.Signal, 4)
	p := resolve(t, nil, "sh", "-c", `trap "echo got; exit 3" INT; echo ready > ready; while :; do sleep 0.1; done`)
	res, err := run(t, p, driver.RunOptions{Signals: signals, Started: func(driver.Process) func() {
		go func() { await(filepath.Join(p.OCI.Process.Cwd, "ready")); signals <- syscall.SIGINT }()
		return nil
	}})
	if err != nil || res.Stdout != "got\n" || res.ExitCode != 3 {
		t.Errorf("%+v, %v", res, err)
	}
	p = resolve(t, nil, "sh", "-c", `trap "" INT; echo ready > ready; while :; do sleep 0.1; done`)
	res, err = run(t, p, driver.RunOptions{Signals: signals, Started: func(driver.Process) func() {
		go func() {
			await(filepath.Join(p.OCI.Process.Cwd, "ready"))
			signals <- syscall.SIGINT
			signals <- syscall.SIGINT
		}()
		return nil
	}})
	if err != nil || res.Reason != driver.ReasonCanceled || res.ExitCode != 128+9 {
		t.Errorf("%+v, %v", res, err)
	}
	nothingLeft(t, "docker")
}

// await waits for a file, a minute at most.
func await(name string) {
	for range 600 {
		if _, err := os.Stat(name); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestTerminal: the command has a terminal of the caller's size, follows it, and
// gets what is typed: the keys by which a client is left as well, and Ctrl-C.
func TestTerminal(t *testing.T) {
	needEngine(t)
	p := resolve(t, nil, "sh", "-c", `test -t 0 && test -t 1 && test -t 2 || exit 9
until [ "$(stty size)" = "17 91" ]; do sleep 0.05; done; echo size one
until [ "$(stty size)" = "20 70" ]; do sleep 0.05; done; echo size two
stty -echo -ixon; echo ready; read x; echo "$x" | od -An -c; trap 'echo interrupted; exit 5' INT; echo more; while :; do sleep 0.1; done`)
	p.OCI.Process.Terminal = true
	p.OCI.Process.ConsoleSize = &specs.Box{Width: 91, Height: 17}
	var out bytes.Buffer
	done := make(chan struct{})
	res, err := driver.Run(context.Background(), docker.Driver{Image: image}, p, driver.RunOptions{Started: func(pr driver.Process) func() {
		fd, err := unix.FcntlInt(pr.Pty().Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		master := os.NewFile(uintptr(fd), "pty")
		type answer struct{ after, typed string }
		answers := []answer{{"size one", ""}, {"ready", "a\x10\x11b\n"}, {"more", "\x03"}}
		go func() {
			defer close(done)
			defer master.Close()
			buf := make([]byte, 1000)
			for {
				n, err := master.Read(buf)
				if err != nil {
					return
				}
				out.Write(buf[:n])
				for len(answers) > 0 && strings.Contains(out.String(), answers[0].after) {
					if answers[0].typed == "" {
						unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 70})
					}
					master.WriteString(answers[0].typed)
					answers = answers[1:]
				}
			}
		}()
		return func() { <-done }
	}})
	if err != nil || res.ExitCode != 5 || !strings.Contains(out.String(), "a 020 021   b") || !strings.Contains(out.String(), "interrupted") {
		t.Errorf("%+v, %v\n%s", res, err, out.String())
	}
	nothingLeft(t, "docker")
}

// TestNotExecuted: a command that is not there, or cannot be executed, is told from
// one that ends with the same exit codes.
func TestNotExecuted(t *testing.T) {
	needEngine(t)
	for _, tt := range []struct {
		command []string
		code    int
		reason  driver.Reason
	}{
		{[]string{"nonesuch"}, 127, driver.ReasonSetup},
		{[]string{"./plain"}, 126, driver.ReasonSetup},
		{[]string{"/etc"}, 126, driver.ReasonSetup},
		{[]string{"sh", "-c", "exit 127"}, 127, driver.ReasonExit},
		{[]string{"sh", "-c", "echo '[FATAL tini (7)] exec sh failed: No such file or directory' >&2; exit 127"}, 127, driver.ReasonExit},
		{[]string{"sh", "-c", "exit 126"}, 126, driver.ReasonExit},
	} {
		p := resolve(t, nil, tt.command...)
		if err := os.WriteFile(filepath.Join(p.OCI.Process.Cwd, "plain"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		res, err := run(t, p, driver.RunOptions{})
		var c *driver.CommandError
		if res.ExitCode != tt.code || res.Reason != tt.reason || (tt.reason == driver.ReasonSetup) != errors.As(err, &c) {
			t.Errorf("%q: %+v, %v", tt.command, res, err)
		}
	}
	nothingLeft(t, "docker")
}

// TestOtherProgram: where the image has not the first program, the other one runs, and no
// container was started before it: it has the input that the first would have had.
func TestOtherProgram(t *testing.T) {
	needEngine(t)
	for _, tt := range []struct {
		name   string
		args   []string
		stdout string
		code   int
	}{
		{"not there", []string{"nonesuch", "-c", `cat; echo "$0 $1"; exit 3`, "zero", "o n e"}, "hello\nzero o n e\n", 3},
		{"there", []string{"cat"}, "hello\n", 0},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.WriteString("hello\n")
		w.Close()
		res, err := run(t, resolve(t, nil, tt.args...), driver.RunOptions{Stdio: driver.Stdio{Stdin: r, Else: "sh"}})
		r.Close()
		if err != nil || res.Stdout != tt.stdout || res.ExitCode != tt.code {
			t.Errorf("%s: %+v, %v", tt.name, res, err)
		}
	}
	nothingLeft(t, "docker")
}

// TestNoLog: the engine keeps nothing of what a command prints.
func TestNoLog(t *testing.T) {
	needEngine(t)
	p := resolve(t, nil, "sh", "-c", "echo said; echo ready > ready; sleep 600")
	var logged []byte
	res, err := run(t, p, driver.RunOptions{Started: func(pr driver.Process) func() {
		await(filepath.Join(p.OCI.Process.Cwd, "ready"))
		logged, _ = exec.Command("docker", "logs", containers(t, "docker")[0]).CombinedOutput()
		pr.Kill()
		return nil
	}})
	if err != nil || res.Stdout != "said\n" || strings.Contains(string(logged), "said") {
		t.Errorf("%+v, %v; logged %q", res, err, logged)
	}
}

func TestMemory(t *testing.T) {
	needEngine(t)
	hog := []string{"sh", "-c", `x=a; while :; do x=$x$x; done`}
	// An engine on a busy machine may not hear of the memory at all: the group is gone before
	// it looks. (It did in 86 of 86 runs beside some load, in 10 of 11 beside more, and once in make test not.)
	var res *driver.Result
	var err error
	for range 3 {
		res, err = run(t, resolve(t, func(r *profiles.Request) { m := uint64(32 << 20); r.Memory = &m }, hog...), driver.RunOptions{})
		if err != nil || res.Reason == driver.ReasonOOM || res.ExitCode != 128+9 {
			break
		}
		t.Log("the engine did not tell of the memory")
	}
	if err != nil || res.Reason != driver.ReasonOOM {
		t.Errorf("%+v, %v", res, err)
	}
	// A kill from inside is no verdict on memory.
	res, err = run(t, resolve(t, nil, "sh", "-c", "kill -9 $$"), driver.RunOptions{})
	if err != nil || res.Reason == driver.ReasonOOM || res.ExitCode != 128+9 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestPids(t *testing.T) {
	needEngine(t)
	p := resolve(t, func(r *profiles.Request) { n := int64(20); r.Pids = &n }, "sh", "-c", `i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; echo all`)
	res, err := run(t, p, driver.RunOptions{})
	if err != nil || strings.Contains(res.Stdout, "all") || !strings.Contains(res.Stderr, "fork") {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestOutputLimit(t *testing.T) {
	needEngine(t)
	p := resolve(t, func(r *profiles.Request) { n := int64(1000); r.MaxOutput = &n }, "sh", "-c", "yes | head -c 3000000; echo end >&2")
	res, err := run(t, p, driver.RunOptions{})
	if err != nil || len(res.Stdout) != 1000 || !res.StdoutTruncated || res.Stderr != "end\n" || res.ExitCode != 0 {
		t.Errorf("%d bytes, %+v, %v", len(res.Stdout), res.Reason, err)
	}
}

// TestPull: an image that is not here and cannot be fetched. No registry is
// asked that could answer: the name is one of this machine's closed ports.
func TestPull(t *testing.T) {
	needEngine(t)
	d := docker.Driver{Image: "127.0.0.1:1/nope:1"}
	res, err := driver.Run(context.Background(), d, resolve(t, nil, "true"), driver.RunOptions{Capture: true})
	var pull *docker.ImagePullError
	if !errors.As(err, &pull) || pull.Image != d.Image || res.Code != driver.CodeImagePull || res.Hint == "" || res.ExitCode != driver.ExitSetup {
		t.Errorf("%+v, %v", res, err)
	}
	nothingLeft(t, "docker")
}

// TestEngineDown: no engine answers.
func TestEngineDown(t *testing.T) {
	needEngine(t)
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/s")
	res, err := run(t, resolve(t, nil, "true"), driver.RunOptions{})
	var u *driver.UnavailableError
	if !errors.As(err, &u) || u.Fix == "" || res.Code != driver.CodeUnavailable || !strings.Contains(err.Error(), "Cannot connect") {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestEngineRefuses: the engine's reason for not talking to the client is told.
func TestEngineRefuses(t *testing.T) {
	needEngine(t)
	t.Setenv("DOCKER_API_VERSION", "1.10")
	var u *driver.UnavailableError
	if err := (docker.Driver{Image: image}).Available(t.Context()); !errors.As(err, &u) || !strings.Contains(err.Error(), "client version 1.10 is too old") {
		t.Error(err)
	}
}

func TestRemoteEngine(t *testing.T) {
	needEngine(t)
	// The same engine by another address would see the same files; whether it
	// does cannot be told from here.
	var u *driver.UnavailableError
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
	if _, err := run(t, resolve(t, nil, "true"), driver.RunOptions{}); !errors.As(err, &u) {
		t.Errorf("%v", err)
	}
}

func TestNoClient(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var u *driver.UnavailableError
	for _, d := range []docker.Driver{{}, {Podman: true}} {
		if err := d.Available(context.Background()); !errors.As(err, &u) || !strings.Contains(u.Fix, "install") {
			t.Errorf("%v", err)
		}
	}
}

// TestKilledBehindOurBack: somebody else kills or removes the container.
func TestKilledBehindOurBack(t *testing.T) {
	needEngine(t)
	for _, verb := range []string{"kill", "rm"} {
		p := resolve(t, nil, "sh", "-c", "echo ready > ready; sleep 60")
		res, err := run(t, p, driver.RunOptions{Started: func(driver.Process) func() {
			go func() {
				await(filepath.Join(p.OCI.Process.Cwd, "ready"))
				for _, c := range containers(t, "docker") {
					args := []string{verb, c}
					if verb == "rm" {
						args = []string{"rm", "-f", c}
					}
					exec.Command("docker", args...).Run()
				}
			}()
			return nil
		}})
		switch verb {
		case "kill":
			if err != nil || res.ExitCode != 128+9 || res.Reason == driver.ReasonOOM {
				t.Errorf("%+v, %v", res, err)
			}
		case "rm":
			// The engine may have told the exit code before it forgot the container.
			if err == nil && res.ExitCode != 128+9 || err != nil && !strings.Contains(err.Error(), "removed the container") {
				t.Errorf("%+v, %v", res, err)
			}
		}
	}
	nothingLeft(t, "docker")
}

// owner is a process that runs a command in a container, and says when it runs.
func owner() {
	dir := os.Getenv("SBXRUN_TEST_OWNER")
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"sh", "-c", "echo ready > ready; sleep 600"}, Profile: "docker", Image: image, Dir: dir},
		&profiles.Facts{Home: "/nonexistent", Cwd: "/", FS: os.DirFS("/"), CPUs: 1})
	if err == nil {
		_, err = driver.Run(context.Background(), docker.Driver{Image: image}, r.Policy, driver.RunOptions{Capture: true})
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func startOwner(t *testing.T) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SBXRUN_TEST_OWNER="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	await(filepath.Join(dir, "ready"))
	return cmd
}

// TestSupervisorKilled: the container ends although nobody is left to end it.
func TestSupervisorKilled(t *testing.T) {
	needEngine(t)
	cmd := startOwner(t)
	if n := len(containers(t, "docker")); n != 1 {
		t.Fatalf("%d containers", n)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for range 300 {
		if len(containers(t, "docker")) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("left: %q", containers(t, "docker"))
}

// TestPrune: what a dead process of this machine left is removed, what a live
// one or another machine has is not.
func TestPrune(t *testing.T) {
	needEngine(t)
	alive := startOwner(t)
	live := containers(t, "docker")
	if len(live) != 1 {
		t.Fatalf("%q", live)
	}
	part := strings.Split(live[0], "-")
	if part[2] != strconv.Itoa(alive.Process.Pid) {
		t.Errorf("%s is not of process %d", live[0], alive.Process.Pid)
	}
	dead := strings.Join([]string{"sbxrun", part[1], part[2], "1", "aa"}, "-") // the id is another process's now
	others := "sbxrun-elsewhere-1-1-aa"
	for _, name := range []string{dead, others, "unrelated"} {
		args := []string{"create", "--name", name, "--label", "io.sbxrun.run=" + name, "--network", "none", image, "true"}
		if name == "unrelated" {
			args = slices.Delete(args, 3, 5)
		}
		if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		defer exec.Command("docker", "rm", "-f", name).Run()
	}
	removed, err := (docker.Driver{}).Prune(context.Background())
	if err != nil || !slices.Equal(removed, []string{dead}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	left := containers(t, "docker")
	for _, name := range []string{live[0], others, "unrelated"} {
		if !slices.Contains(left, name) {
			t.Errorf("%s is gone", name)
		}
	}
}

// TestCanceled: the caller gives up, before the container runs and after.
func TestCanceled(t *testing.T) {
	needEngine(t)
	for _, after := range []time.Duration{0, 30 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		begin := time.Now()
		_, err := driver.Run(ctx, docker.Driver{Image: image}, resolve(t, nil, "sleep", "100"), driver.RunOptions{Capture: true})
		cancel()
		if d := time.Since(begin); d > 90*time.Second {
			t.Errorf("after %v: ended in %v, %v", after, d, err)
		}
	}
	nothingLeft(t, "docker")
}

// hostile makes an image that declares volumes, and a health check where the engine
// has them.
func hostile(t *testing.T, client string) string {
	t.Helper()
	const name = "sbxrun-test:hostile"
	do := func(stdin io.Reader, args ...string) string {
		t.Helper()
		cmd := exec.Command(client, args...)
		cmd.Stdin = stdin
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		return string(out)
	}
	id := strings.TrimSpace(do(nil, "create", "--network", "none", image, "true"))
	files := do(nil, "export", id)
	do(nil, "rm", id)
	args := []string{"import", "--change", "VOLUME /v", "--change", "VOLUME /v/deep"}
	if client == "docker" {
		args = append(args, "--change", "HEALTHCHECK --interval=1s CMD touch /tmp/health")
	}
	do(strings.NewReader(files), append(args, "-", name)...)
	return name
}

// testHostile is R15: what an image declares gets it no room on the host's disk, and
// is not run beside the command.
func testHostile(t *testing.T, client string, run func(change func(*profiles.Request), script string) (*policy.Policy, *driver.Result, error)) {
	script := "for d in /v /v/deep; do dd if=/dev/zero of=$d/f bs=1M count=30 2>/dev/null || echo full; rm -f $d/f; echo x >$d/x && cat $d/x; done"
	if client == "docker" {
		script += "; sleep 2; ls /tmp | grep health"
	}
	volumes := func() string {
		out, err := exec.Command(client, "volume", "ls", "-q").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	disk := func(r *profiles.Request) { n := uint64(20 << 20); r.Disk = &n }
	if _, res, err := run(disk, script); err != nil || res.Stdout != "full\nx\nfull\nx\n" {
		t.Errorf("%+v, %v", res, err)
	}
	if left := volumes(); left != "" {
		t.Errorf("volumes: %q", left)
	}
	// The control, by the engine itself.
	args := []string{"run", "--pull", "never", "--name", "sbxrun-test-control", "--network", "none"}
	if client == "podman" {
		args = append(args, "--ulimit", "nofile=256:256", "--ulimit", "nproc=4096:4096")
	}
	control := exec.Command(client, append(args, "sbxrun-test:hostile", "sh", "-c", script+"; true")...)
	if client == "podman" { // it looks for credentials in what is docker's
		control.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "DOCKER_CONFIG=") })
	}
	out, err := control.CombinedOutput()
	want := "x\nx\n"
	if client == "docker" {
		want += "health\n"
	}
	if err != nil || string(out) != want || volumes() == "" {
		t.Errorf("control: %q, %v", out, err)
	}
	if out, err := exec.Command(client, "rm", "-v", "sbxrun-test-control").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestHostile is R15 with docker.
func TestHostile(t *testing.T) {
	needEngine(t)
	d := docker.Driver{Image: hostile(t, "docker")}
	testHostile(t, "docker", func(change func(*profiles.Request), script string) (*policy.Policy, *driver.Result, error) {
		p := resolve(t, change, "sh", "-c", script)
		res, err := driver.Run(t.Context(), d, p, driver.RunOptions{Capture: true})
		return p, res, err
	})
	nothingLeft(t, "docker")
}

// TestAccounts: an engine reads what an image has as /etc/passwd and /etc/group, so
// they are files. A device that never ends would take the host's memory, a FIFO holds
// the engine up.
func TestAccounts(t *testing.T) {
	needEngine(t)
	const name = "sbxrun-test:accounts"
	for rule, files := range map[string][]*tar.Header{
		"image./etc/passwd": {{Name: "etc/passwd", Typeflag: tar.TypeFifo, Mode: 0o644}},
		"image./etc/group":  {{Name: "etc/group", Typeflag: tar.TypeSymlink, Linkname: "/x/dir"}, {Name: "x/dir", Typeflag: tar.TypeDir, Mode: 0o755}},
		"":                  {{Name: "etc/group", Typeflag: tar.TypeSymlink, Linkname: "../x"}, {Name: "x", Typeflag: tar.TypeReg}},
	} {
		if err := engine.Import("docker", name, files...); err != nil {
			t.Fatal(err)
		}
		p := resolve(t, func(r *profiles.Request) { d, k := time.Second, 100*time.Millisecond; r.Timeout, r.KillAfter = &d, &k }, "true")
		var e *driver.UnsupportedError
		_, err := driver.Run(context.Background(), docker.Driver{Image: name}, p, driver.RunOptions{Capture: true})
		if rule == "" && err != nil || rule != "" && (!errors.As(err, &e) || !strings.Contains(err.Error(), rule+" ")) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	nothingLeft(t, "docker")
}

// fill takes all the room that a command has beside its workspace and root's /dev,
// and prints how much that is.
const fill = `for d in $(cut -d' ' -f2 /proc/mounts) /run /var/tmp; do
case $d in "$PWD"|/dev|/dev/pts|/dev/mqueue|/proc*|/sys*) continue;; esac
dd if=/dev/zero of=$d/fill bs=1M count=30 2>/dev/null; [ -f $d/fill ] && n=$((n+$(wc -c <$d/fill)))
done; echo $n`

// testOwn: what an engine gives a container by itself has nothing of the host and is
// within the policy's bound. The caller's variables have a proxy with a password.
func testOwn(t *testing.T, run func(change func(*profiles.Request), script string) (*policy.Policy, *driver.Result, error)) {
	t.Helper()
	_, res, err := run(func(r *profiles.Request) { n := uint64(20 << 20); r.Disk = &n }, fill)
	if n, e := strconv.Atoi(strings.TrimSpace(res.Stdout)); err != nil || e != nil || n < 10<<20 || n > 20<<20 {
		t.Errorf("room for %d bytes: %+v, %v", n, res, err)
	}
	_, res, err = run(func(r *profiles.Request) { r.Env = []string{"HTTP_PROXY=mine"} }, "env | grep -i -e proxy -e s3cret; cat /etc/hosts /etc/resolv.conf 2>/dev/null")
	want := map[string]bool{"HTTP_PROXY=mine": true, "nameserver 127.0.0.1": true}
	for line := range strings.Lines(res.Stdout) {
		f := strings.Fields(line)
		if !want[strings.TrimSpace(line)] && (len(f) < 2 || f[1] != "localhost" && !strings.HasPrefix(f[1], "ip6-")) {
			t.Errorf("in the container: %q", line)
		}
	}
	if err != nil || !strings.HasPrefix(res.Stdout, "HTTP_PROXY=mine\n") || !strings.Contains(res.Stdout, "127.0.0.1\tlocalhost\n") {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestOwn is what Docker and its client's configuration add.
func TestOwn(t *testing.T) {
	needEngine(t)
	config := t.TempDir()
	if err := os.WriteFile(config+"/config.json", []byte(`{"proxies":{"default":{"httpProxy":"http://u:s3cret@h:1","noProxy":"s3cret"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", config)
	testOwn(t, func(change func(*profiles.Request), script string) (*policy.Policy, *driver.Result, error) {
		p := resolve(t, change, "sh", "-c", script)
		res, err := run(t, p, driver.RunOptions{})
		return p, res, err
	})
	// The control.
	out, err := exec.Command("docker", "run", "--rm", "--network", "none", image, "env").Output()
	if err != nil || !strings.Contains(string(out), "s3cret") {
		t.Errorf("control: %s, %v", out, err)
	}
}

// TestAppArmorMissing: an engine without AppArmor passes over a profile, and says
// nothing.
func TestAppArmorMissing(t *testing.T) {
	needEngine(t)
	if _, err := os.Stat("/sys/kernel/security/apparmor"); err == nil {
		t.Skip("this host has AppArmor")
	}
	p := resolve(t, nil, "true")
	p.OCI.Process.ApparmorProfile = "x"
	var u *driver.UnavailableError
	if res, err := run(t, p, driver.RunOptions{}); !errors.As(err, &u) || res.Layers.Has(policy.LayerAppArmor) {
		t.Errorf("%+v, %v", res, err)
	}
	p.Degrade |= policy.LayerAppArmor
	if res, err := run(t, p, driver.RunOptions{}); err != nil || res.Layers.Has(policy.LayerAppArmor) || !res.Degraded.Has(policy.LayerAppArmor) {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestStuck: an image that holds up its engine does not hold up the end of a run.
// Docker's opens the image's /etc/passwd, and waits for a writer if that is a FIFO.
// It cannot be asked for that file if the policy has another in its place.
func TestStuck(t *testing.T) {
	needEngine(t)
	const name = "sbxrun-test:stuck"
	if err := engine.Import("docker", name, &tar.Header{Name: "etc/passwd", Typeflag: tar.TypeFifo, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	defer docker.EndPatience(2 * time.Second)()
	p := resolve(t, func(r *profiles.Request) {
		d, k := time.Second, 100*time.Millisecond
		r.Timeout, r.KillAfter, r.ReadOnly = &d, &k, []string{"/etc/passwd"}
	}, "true")
	done := make(chan error, 1)
	go func() {
		_, err := driver.Run(context.Background(), docker.Driver{Image: name}, p, driver.RunOptions{Capture: true})
		done <- err
	}()
	var u *driver.UnavailableError
	select {
	case err := <-done:
		if !errors.As(err, &u) || !strings.Contains(err.Error(), "may still be running: container sbxrun-") {
			t.Errorf("%v", err)
		}
	case <-time.After(60 * time.Second):
		t.Error("the run goes on after its time limit")
	}
	// Once the engine can, the container goes, without another run.
	for range 300 {
		if len(containers(t, "docker")) == 0 {
			return
		}
		fifos, err := filepath.Glob(filepath.Dir(strings.TrimPrefix(os.Getenv("DOCKER_HOST"), "unix://")) + "/data/vfs/dir/*/etc/passwd")
		if err != nil || len(fifos) == 0 {
			t.Fatalf("no FIFO: %v", err)
		}
		for _, f := range fifos {
			if w, err := os.OpenFile(f, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
				w.Close()
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("left: %q", containers(t, "docker"))
}

// testDeclared: a container has none of its image's labels, and an annotation that a
// runtime could obey ends the run before it begins.
func testDeclared(t *testing.T, client string, run func(image, script string) (*driver.Result, error)) {
	build := func(name string, args ...string) string {
		t.Helper()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte("FROM "+image+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(client, append(append([]string{"build", "-q", "--pull=never", "-t", name}, args...), dir)...)
		cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "DOCKER_CONFIG=") })
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return name
	}
	harmless := build("sbxrun-test:harmless", "--annotation", "org.opencontainers.image.title=x", "--label", "PODMAN_SYSTEMD_UNIT=x.service", "--label", "io.containers.autoupdate=registry")
	if res, err := run(harmless, "echo ran"); err != nil || res.Stdout != "ran\n" {
		t.Errorf("%+v, %v", res, err)
	}
	obeyed := build("sbxrun-test:obeyed", "--annotation", "org.systemd.property.TasksMax=uint64 1000")
	if res, err := run(obeyed, "echo ran"); err == nil || !strings.Contains(err.Error(), "image.annotations.org.systemd.property.TasksMax") || res.Stdout != "" {
		t.Errorf("%+v, %v", res, err)
	}
	// The control: the engine's own containers have it.
	id, err := exec.Command(client, "create", "--network", "none", obeyed, "true").Output()
	if err != nil {
		t.Fatal(err)
	}
	defer exec.Command(client, "rm", strings.TrimSpace(string(id))).Run()
	out, err := exec.Command(client, "inspect", "--format", "{{json .Config.Annotations}}", strings.TrimSpace(string(id))).Output()
	if err != nil || !strings.Contains(string(out), "TasksMax") {
		t.Errorf("control: %s, %v", out, err)
	}
}

// testConfigured: podman's configuration gives containers the host's names, no filter
// and an environment; the policy's are enforced, and the result has what is.
func testConfigured(t *testing.T, run func(change func(*profiles.Request), script string) (*policy.Policy, *driver.Result, error)) {
	t.Helper()
	b, err := os.ReadFile(os.Getenv("CONTAINERS_CONF"))
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/containers.conf"
	if err := os.WriteFile(file, append([]byte("[containers]\npidns = \"host\"\nutsns = \"host\"\ncgroups = \"disabled\"\nseccomp_profile = \"unconfined\"\n"), b...), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINERS_CONF", file)
	script := "readlink /proc/self/ns/uts; grep ^Seccomp: /proc/self/status; grep -c pids:/$ /proc/self/cgroup"
	host, err := os.Readlink("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	if _, res, err := run(nil, script); err != nil || strings.Contains(res.Stdout, host) || !strings.Contains(res.Stdout, "Seccomp:\t2\n") {
		t.Errorf("%+v, %v", res, err)
	}
	if _, res, err := run(func(r *profiles.Request) { r.Seccomp = "none" }, script); err != nil || strings.Contains(res.Stdout, "Seccomp:\t2\n") || res.Layers.Has(policy.LayerSeccomp) {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestPodman: podman takes the same arguments. Its storage and configuration are
// the test's own.
func TestPodman(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: podman is given storage of the test's own")
	}
	if _, err := exec.LookPath("podman"); err != nil {
		t.Fatal("podman is not installed: tools/deps test installs it")
	}
	stop, err := engine.Podman()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	d := docker.Driver{Podman: true, Image: image}
	if err := d.Available(context.Background()); err != nil {
		t.Fatal(err)
	}
	do := func(change func(*profiles.Request), script string) (*policy.Policy, *driver.Result, error) {
		p := resolve(t, change, "sh", "-c", script)
		// podman raises these to more than a root without CAP_SYS_RESOURCE may.
		for _, l := range []struct {
			name string
			n    uint64
		}{{"RLIMIT_NOFILE", 256}, {"RLIMIT_NPROC", 4096}} {
			p.OCI.Process.Rlimits = append(p.OCI.Process.Rlimits, specs.POSIXRlimit{Type: l.name, Soft: l.n, Hard: l.n})
		}
		res, err := driver.Run(context.Background(), d, p, driver.RunOptions{Capture: true})
		return p, res, err
	}
	p, res, err := do(func(r *profiles.Request) { r.Env = []string{"A=x y"} },
		"echo hi > f; touch /etc/x || echo denied; echo \"$A\"; ls /sys/class/net; grep -c '^Cap.*0000000000000000' /proc/self/status; grep -e NoNewPrivs -e '^Seccomp:' /proc/self/status | tr '\\t' ' '; echo t > /tmp/t && cat /tmp/t; exit 7")
	want := "denied\nx y\nlo\n5\nNoNewPrivs: 1\nSeccomp: 2\nt\n"
	if err != nil || res.Stdout != want || res.ExitCode != 7 || res.Driver != "podman" || !res.Layers.Has(p.Require) {
		t.Errorf("%+v, %v", res, err)
	} else if b, _ := os.ReadFile(filepath.Join(p.OCI.Process.Cwd, "f")); string(b) != "hi\n" {
		t.Errorf("the workspace holds %q", b)
	}
	if _, res, err = do(func(r *profiles.Request) { d, k := 3*time.Second, time.Second; r.Timeout, r.KillAfter = &d, &k }, `trap "" TERM; sleep 986`); err != nil || res.Reason != driver.ReasonTimeout {
		t.Errorf("%+v, %v", res, err)
	}
	if _, res, err = do(func(r *profiles.Request) { m := uint64(32 << 20); r.Memory = &m }, `x=a; while :; do x=$x$x; done`); err != nil || res.Reason != driver.ReasonOOM {
		t.Errorf("%+v, %v", res, err)
	}
	testDeclared(t, "podman", func(image, script string) (*driver.Result, error) {
		d.Image = image
		_, res, err := do(nil, script)
		return res, err
	})
	d.Image = image
	t.Setenv("HTTP_PROXY", "http://u:s3cret@h:1")
	t.Setenv("https_proxy", "http://u:s3cret@h:1")
	testOwn(t, do)
	t.Run("configured", func(t *testing.T) { testConfigured(t, do) })
	// The runtime would make device nodes in the workspace, and take away a file "ptmx".
	d.Image = "sbxrun-test:dev"
	workspace := t.TempDir()
	if err := os.WriteFile(workspace+"/ptmx", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dev, want := range map[string]string{workspace: "image./dev", "nothing/../x": "image./dev"} {
		if err := engine.Import("podman", d.Image, &tar.Header{Name: "dev", Typeflag: tar.TypeSymlink, Linkname: dev}); err != nil {
			t.Fatal(err)
		}
		_, _, err := do(func(r *profiles.Request) { r.Dir = workspace }, "true")
		if left, _ := os.ReadDir(workspace); err == nil || !strings.Contains(err.Error(), want+" ") || len(left) != 1 || left[0].Type() != 0 {
			t.Errorf("%v, %v", left, err)
		}
	}
	d.Image = hostile(t, "podman")
	testHostile(t, "podman", do)
	nothingLeft(t, "podman")
	if removed, err := d.Prune(context.Background()); err != nil || len(removed) != 0 {
		t.Errorf("%q, %v", removed, err)
	}
}
