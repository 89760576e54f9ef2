package native

import (
	"context"
	"errors"
	"io"
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

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// open opens a sandbox of the strict profile, with cgroups where this user can
// have them.
func open(t *testing.T, dir string, unprotect ...string) driver.Sandbox {
	t.Helper()
	return openAs(t, &profiles.Request{Dir: dir, Unprotect: unprotect})
}

// openAs opens what a request asks for, as open does.
func openAs(t *testing.T, req *profiles.Request) driver.Sandbox {
	t.Helper()
	req.Command, req.Degrade = []string{"none"}, policy.LayerCgroup
	r, err := profiles.Resolve(req,
		&profiles.Facts{Home: "/nonexistent", Cwd: req.Dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Driver{}.Open(context.Background(), r.Policy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// sh runs a script and returns what it printed and how it ended.
func sh(t *testing.T, b driver.Sandbox, script string) (string, *driver.Status) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", script}}, driver.Stdio{Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		t.Errorf("%s: %v", script, err)
		return "", &driver.Status{}
	}
	out, _ := io.ReadAll(r)
	st, err := p.Wait()
	if err != nil {
		t.Errorf("%s: %v", script, err)
		return string(out), &driver.Status{}
	}
	return string(out), st
}

func TestSandboxStays(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	if out, st := sh(t, b, "echo one > "+dir+"/f; echo kept > /tmp/k; pwd; exit 3"); st.ExitCode != 3 || out != dir+"\n" {
		t.Errorf("first: %q, %+v", out, st)
	}
	if out, st := sh(t, b, "cat "+dir+"/f /tmp/k"); out != "one\nkept\n" || st.ExitCode != 0 {
		t.Errorf("second: %q, %+v", out, st)
	}
	// Each is confined as the only command of a run is.
	out, _ := sh(t, b, `grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr '\n\t' '  '; touch /usr/x || echo ro; ls /proc/self/fd | wc -l; cat /proc/1/cmdline || echo hidden`)
	for _, want := range []string{"CapEff: 0000000000000000", "CapBnd: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2", "ro\n", "\n4\n", "hidden"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	// A background process lives on, and ends with the sandbox.
	out, _ = sh(t, b, "sleep 600 >/dev/null 2>&1 & echo $!")
	pid := strings.TrimSpace(out)
	if out, _ := sh(t, b, "kill -0 "+pid+" && echo alive"); out != "alive\n" {
		t.Errorf("background: %q", out)
	}
	if _, st := sh(t, b, "kill -TERM $$"); st.Signal != syscall.SIGTERM {
		t.Errorf("signal: %+v", st)
	}
	if b.Close(); true {
		_, err := b.Exec(context.Background(), &specs.Process{Args: []string{"true"}}, driver.Stdio{})
		if !errors.Is(err, driver.ErrSandboxGone) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestInitKilled: a command that began is killed with PID 1, whoever kills that, or it had
// ended before and nobody was told. It is no set-up that failed, after which a caller may
// take it that nothing ran.
func TestInitKilled(t *testing.T) {
	begun := func(r *os.File) {
		t.Helper()
		if n, err := r.Read(make([]byte, 8)); n == 0 {
			t.Fatal(err)
		}
	}
	b := open(t, t.TempDir()).(*sandbox)
	start := func(name string, exec func(driver.Stdio) (driver.Process, error), kill func(driver.Process) error) {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p, err := exec(driver.Stdio{Stdout: w})
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		begun(r)
		if err := kill(p); err != nil {
			t.Fatal(err)
		}
		st, err := p.Wait()
		var lost *driver.LostError
		if !errors.As(err, &lost) {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
	args := []string{"/bin/sh", "-c", "echo begun; exec sleep 600"}
	start("a command of a session", func(stdio driver.Stdio) (driver.Process, error) {
		return b.Exec(t.Context(), &specs.Process{Args: args}, stdio)
	}, func(driver.Process) error { return syscall.Kill(b.child.Pid(), syscall.SIGKILL) })
	p := *b.s.p
	oci, pr := *p.OCI, *p.OCI.Process
	pr.Args = args
	p.OCI, oci.Process = &oci, &pr
	start("a run", func(stdio driver.Stdio) (driver.Process, error) {
		return Driver{}.Start(t.Context(), &p, stdio)
	}, func(p driver.Process) error { return syscall.Kill(p.(*process).child.Pid(), syscall.SIGKILL) })
	// Killed on purpose, while it takes down what the command left: that had ended.
	pr.Args = []string{"/bin/sh", "-c", "for i in $(seq 200); do sleep 600 & done; exit 3"}
	last, err := Driver{}.Start(t.Context(), &p, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	for last.(*process).child.Left() == nil {
		time.Sleep(100 * time.Microsecond)
	}
	if err := last.Kill(); err != nil {
		t.Fatal(err)
	}
	if st, err := last.Wait(); err != nil || st.ExitCode != 3 {
		t.Errorf("one that had ended: %+v, %v", st, err)
	}
	// Before it began, it is one.
	d := Driver{}
	s, err := d.prepare(t.Context(), &p)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release()
	cfg, err := s.runConfig(driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Init.InsertSleep(0, time.Minute)
	proc, err := s.run(cfg, driver.Stdio{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(proc.child.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st, err := proc.Wait(); driver.CodeOf(err) != driver.CodeCreationFailed {
		t.Errorf("killed before it began: %+v, %v", st, err)
	}
}

// TestSandboxIdle: what a command has left running is seen, wherever it went.
func TestSandboxIdle(t *testing.T) {
	b := open(t, t.TempDir())
	idle := b.(interface{ Idle() bool }).Idle
	if !idle() {
		t.Error("a new one is not idle")
	}
	out, _ := sh(t, b, "(setsid sleep 600 >/dev/null 2>&1 & echo $!) & wait")
	if idle() {
		t.Error("what was left is not seen")
	}
	sh(t, b, "kill -9 "+strings.TrimSpace(out))
	for end := time.Now().Add(20 * time.Second); !idle(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is left, and it is not idle")
		}
	}
	b.Close()
	if idle() {
		t.Error("idle after its end")
	}
}

func TestSandboxStreams(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	// A regular file as standard output, which the command opens again, as
	// shells do; and not one that an earlier command had.
	run := func(path string, script string) {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", script}}, driver.Stdio{Stdout: f, Stderr: f})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := p.Wait(); err != nil || st.ExitCode != 0 {
			t.Errorf("%s: %+v, %v", script, st, err)
		}
	}
	first, second := filepath.Join(t.TempDir(), "1"), filepath.Join(t.TempDir(), "2")
	run(first, "echo a; echo b >> /dev/stdout")
	run(second, "echo c >> /dev/stderr")
	for path, want := range map[string]string{first: "a\nb\n", second: "c\n"} {
		if got, _ := os.ReadFile(path); string(got) != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	// A terminal.
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "tty; stty size; echo done > /dev/tty"}, Terminal: true, ConsoleSize: &specs.Box{Height: 33, Width: 111}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Pty() == nil {
		t.Fatal("no terminal")
	}
	out, _ := io.ReadAll(p.Pty()) // EIO at the end
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	if got := string(out); !strings.HasPrefix(got, "/dev/pts/") || !strings.Contains(got, "33 111") || !strings.Contains(got, "done") {
		t.Errorf("terminal: %q", got)
	}
}

func TestSandboxEndsACommand(t *testing.T) {
	b := open(t, t.TempDir())
	grouped := b.(*sandbox).group != nil
	other, err := b.Exec(context.Background(), &specs.Process{Args: []string{"sleep", "600"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	script := "trap '' TERM; sleep 600 & echo x; wait"
	if grouped {
		// Out of its process group as well.
		script = "trap '' TERM; setsid sleep 600 & setsid sh -c 'sleep 600 & sleep 600' & echo x; sleep 600"
	}
	r, w, _ := os.Pipe()
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", script}}, driver.Stdio{Stdout: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	r.Read(make([]byte, 2))
	if err := p.Terminate(); err != nil {
		t.Error(err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	st, err := p.Wait()
	if err != nil || st.Signal != syscall.SIGKILL {
		t.Errorf("%+v, %v", st, err)
	}
	io.ReadAll(r) // at its end: nothing that had it is left
	r.Close()
	if p.Kill() == nil {
		t.Error("a command that has ended can be killed")
	}
	// What a command leaves when it ends by itself stays, whoever kills it then.
	left, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "sleep 600 &"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	left.Wait()
	if err := left.Kill(); err != syscall.ESRCH {
		t.Errorf("after the end: %v", err)
	}
	// It may not have executed sleep yet.
	if out, _ := sh(t, b, `i=0; while [ "$(pgrep -c sleep)" -lt 2 ] && [ $i -lt 500 ]; do i=$((i+1)); done; pgrep -c sleep`); out != "2\n" {
		t.Errorf("%q processes are left, want the neighbour's and one", out)
	}
	sh(t, b, `pkill -n sleep; i=0; while [ "$(pgrep -c sleep)" -gt 1 ] && [ $i -lt 500 ]; do i=$((i+1)); done`)
	// The neighbour lives.
	if err := other.Signal(0); err != nil {
		t.Errorf("neighbour: %v", err)
	}
	if out, _ := sh(t, b, "pgrep -c sleep"); out != "1\n" {
		t.Errorf("%q processes are left, want the neighbour's", out)
	}
	other.Kill()
	other.Wait()
}

// TestSandboxMovesFiles: the scope that all commands share does not keep them from
// moving and linking files from one directory to another, with a guard that does
// it for them and without.
func TestSandboxMovesFiles(t *testing.T) {
	for _, unprotect := range [][]string{nil, {"all"}} {
		dir := t.TempDir()
		b := open(t, dir, unprotect...)
		if out, _ := sh(t, b, `for d in . /tmp "$HOME"; do
			cd "$d" && mkdir -p a b && echo x >a/f && ln a/f b/g && python3 -c 'import os; os.rename("a/f", "b/f"); os.rename("a", "b/a"); os.link("b/f", "f")' && echo moved
			done`); out != "moved\nmoved\nmoved\n" {
			t.Errorf("without protection of %q: %s", unprotect, out)
		}
	}
}

// TestSandboxEnd: nothing runs any more when End returns, whatever commands left,
// and where nothing is left it has nothing to do.
func TestSandboxEnd(t *testing.T) {
	for _, script := range []string{"true", "sleep 600 & exit 0", "(sleep 600 &); exec true"} {
		b := open(t, t.TempDir())
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		// The descriptor that it keeps open tells of its end.
		p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", script}}, driver.Stdio{Stdout: w})
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			t.Error(err)
		}
		if err := b.End(); err != nil {
			t.Error(err)
		}
		raw, err := r.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if rerr := raw.Read(func(fd uintptr) bool {
			var n int
			if n, err = syscall.Read(int(fd), make([]byte, 1)); n != 0 || err != nil {
				t.Errorf("%s: something is left: %v", script, err)
			}
			return true // it would not wait
		}); rerr != nil {
			t.Error(rerr)
		}
		r.Close()
		b.Close()
	}
	// One that was started since counts, also if it left nothing.
	b := open(t, t.TempDir())
	sh(t, b, "true")
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "600"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, b, "true")
	if err := b.End(); err != nil {
		t.Error(err)
	}
	ended := make(chan *driver.Status, 1)
	go func() {
		st, _ := p.Wait()
		ended <- st
	}()
	select {
	case st := <-ended:
		if st == nil || st.Signal != syscall.SIGKILL {
			t.Errorf("%+v", st)
		}
	case <-time.After(10 * time.Second):
		t.Error("a command outlives End")
	}
}

// TestSandboxCountsApart: commands that have one cgroup after the other are not
// blamed for what those before them did.
func TestSandboxCountsApart(t *testing.T) {
	dir := t.TempDir()
	few := int64(5)
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"none"}, Dir: dir, Degrade: policy.LayerCgroup, Pids: &few},
		&profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Driver{}.Open(context.Background(), r.Policy)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	// More than there may be, which have ended when the command does.
	const many = "sh -c 'for i in 1 2 3 4 5 6 7 8; do sleep 0.2 & done' 2>/dev/null; while ! /bin/true; do :; done 2>/dev/null; sleep 1; "
	for _, tt := range []struct {
		script string
		code   int
		denied bool
	}{{many + "exit 0", 0, false}, {"exit 3", 3, false}, {many + "exit 4", 4, true}, {"true & wait; exit 5", 5, false}} {
		_, st := sh(t, b, tt.script)
		if st.Layers&policy.LayerCgroupPids == 0 {
			t.Skip("no cgroup for processes here")
		}
		if st.ExitCode != tt.code || (st.PidsDenied > 0) != tt.denied {
			t.Errorf("%q: exit code %d, %d refused", tt.script, st.ExitCode, st.PidsDenied)
		}
	}
	box := b.(*sandbox)
	box.mu.Lock()
	defer box.mu.Unlock()
	used := 0
	for _, sub := range box.subs {
		if sub != nil {
			used++
		}
	}
	if box.spare == nil || used != 1 {
		t.Errorf("%d cgroups are left for the next command, %v", used, box.spare)
	}
}

func TestSandboxErrors(t *testing.T) {
	b := open(t, t.TempDir())
	var command *driver.CommandError
	if _, err := b.Exec(context.Background(), &specs.Process{Args: []string{"nonexistent"}}, driver.Stdio{}); !errors.As(err, &command) {
		t.Errorf("no such command: %v", err)
	}
	var invalid *policy.InvalidError
	for _, pr := range []*specs.Process{nil, {}, {Args: []string{"a\x00b"}}, {Args: []string{"true"}, Cwd: "relative"}, {Args: []string{"true"}, Env: []string{"A=\x00"}}, {Args: []string{"true"}, Env: []string{"=A"}}, {Args: []string{"true"}, User: specs.User{UID: 1}}, {Args: []string{"true"}, Capabilities: &specs.LinuxCapabilities{}}} {
		if _, err := b.Exec(context.Background(), pr, driver.Stdio{}); !errors.As(err, &invalid) {
			t.Errorf("%+v: %v", pr, err)
		}
	}
	var unsupported *driver.UnsupportedError
	if _, err := b.Exec(context.Background(), &specs.Process{Args: []string{"true"}, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NONE"}}}, driver.Stdio{}); !errors.As(err, &unsupported) {
		t.Errorf("no such limit: %v", err)
	}
	if out, st := sh(t, b, "echo on"); out != "on\n" || st.ExitCode != 0 {
		t.Errorf("after errors: %q, %+v", out, st)
	}
	// The init is killed from outside: everything is told, nothing hangs.
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"sleep", "600"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	b.(*sandbox).child.Kill()
	var lost *driver.LostError
	if st, err := p.Wait(); !errors.As(err, &lost) {
		t.Errorf("a command whose sandbox died: %+v, %v", st, err)
	}
	select {
	case <-b.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("not done")
	}
	if _, err := b.Exec(context.Background(), &specs.Process{Args: []string{"true"}}, driver.Stdio{}); err == nil {
		t.Error("a command in a dead sandbox")
	}
}

// TestSandboxExtraFiles: as many files as there may be arrive, whatever they are, and
// one more is refused.
func TestSandboxExtraFiles(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, file := range map[string]*os.File{"none": nil, "device": null, "file": f} {
		for _, terminal := range []bool{false, true} {
			extra := slices.Repeat([]*os.File{file}, driver.MaxExtra)
			script := "for i in 3 4 5 6 7 8 9 10 11; do [ -e /proc/self/fd/$i ] || exit 1; done; [ ! -e /proc/self/fd/12 ]"
			p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"bash", "-c", script}, Terminal: terminal}, driver.Stdio{Stdin: f, Stdout: f, Stderr: f, Extra: extra})
			if err != nil {
				t.Fatalf("%s, terminal %v: %v", name, terminal, err)
			}
			if p.Pty() != nil {
				go io.Copy(io.Discard, p.Pty())
			}
			if st, err := p.Wait(); err != nil || st.ExitCode != 0 {
				t.Errorf("%s, terminal %v: %+v, %v", name, terminal, st, err)
			}
			var invalid *policy.InvalidError
			if _, err := b.Exec(context.Background(), &specs.Process{Args: []string{"true"}}, driver.Stdio{Extra: append(extra, file)}); !errors.As(err, &invalid) {
				t.Errorf("one more: %v", err)
			}
		}
	}
}

// TestSandboxHindered: what runs in a sandbox stops every other process as soon as it
// is there, also one that is about to become a command. Whoever starts one learns it,
// and the sandbox can be ended.
func TestSandboxHindered(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	box := b.(*sandbox)
	box.patience = 500 * time.Millisecond
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = b.Exec(context.Background(), &specs.Process{Args: []string{"python3", "-c", `
import os
os.write(1, b"x")
while True:
    try: os.kill(-1, 19)
    except ProcessLookupError: pass
`}}, driver.Stdio{Stdout: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stuck := 0
	var never []string    // files that are not to come
	for i := range 4000 { // on a busy machine many come through
		p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"mkdir", itoa(i)}}, driver.Stdio{})
		if errors.Is(err, reexec.ErrStuck) {
			if lost := (*driver.LostError)(nil); !errors.As(err, &lost) {
				never = append(never, filepath.Join(dir, itoa(i)))
			}
			var setup *driver.SetupError
			if !errors.As(err, &setup) || setup.Fix == "" {
				t.Errorf("%v", err)
			}
			if stuck++; stuck == 3 {
				break
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
		if _, err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
	if stuck == 0 {
		t.Error("no command was stopped on its way")
	}
	begin := time.Now()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > closePatience+5*time.Second {
		t.Errorf("the end took %v", took)
	}
	for _, file := range never {
		if _, err := os.Stat(file); err == nil {
			t.Error("a command ran that was said not to")
		}
	}
}

// TestSandboxLost: who starts a command in a sandbox whose PID 1 somebody kills meanwhile
// learns whether it may have run. Who takes one that ran for one that did not runs it twice.
func TestSandboxLost(t *testing.T) {
	for _, runs := range []bool{false, true} {
		t.Run(strconv.FormatBool(runs), func(t *testing.T) {
			b := open(t, t.TempDir()).(*sandbox)
			in, hold := pipe(t)
			out, stdout := pipe(t)
			cmd, err := b.job(&specs.Process{Args: []string{"sh", "-c", "echo runs; exec sleep 600"}}, nil,
				driver.Stdio{Stdin: in, Stdout: stdout}, supervisor.Monotonic())
			if err != nil {
				t.Fatal(err)
			}
			cmd.job.Steps.Call(0, sys.Step{Op: "read"}, unix.SYS_READ, sys.Imm(0), sys.Ptr(cmd.job.Steps, new([8]byte)), sys.Imm(1))
			done := make(chan error)
			go func() { done <- cmd.start() }()
			children := "/proc/" + itoa(b.child.Pid()) + "/task/" + itoa(b.child.Pid()) + "/children"
			for {
				if list, err := os.ReadFile(children); err != nil || len(list) > 0 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			// It stops as soon as its child has become the command, and cannot say so.
			if err := unix.Kill(b.child.Pid(), unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			stdout.Close()
			if runs {
				hold.Write([]byte("x"))
				if _, err := out.Read(make([]byte, 16)); err != nil {
					t.Errorf("it did not run: %v", err)
				}
			}
			if err := b.child.Kill(); err != nil {
				t.Fatal(err)
			}
			err = <-done
			var lost *driver.LostError
			var setup *driver.SetupError
			if runs && !errors.As(err, &lost) || !runs && (errors.As(err, &lost) || !errors.As(err, &setup)) {
				t.Errorf("ran %v: %T %v", runs, err, err)
			}
		})
	}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestSandboxManyAtOnce(t *testing.T) {
	b := open(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			want := strings.Repeat("y", i+1)
			if out, st := sh(t, b, "echo "+want+"; exit "+itoa(i)); out != want+"\n" || st.ExitCode != i {
				t.Errorf("%d: %q, %+v", i, out, st)
			}
		})
	}
	wg.Wait()
	st, err := b.Status()
	if err != nil {
		t.Fatal(err)
	}
	box := b.(*sandbox)
	box.mu.Lock()
	counts := box.group != nil
	box.mu.Unlock()
	if counts && st.Usage.MemoryPeakBytes == 0 {
		t.Errorf("nothing counted: %+v", st)
	}
}

func BenchmarkExec(b *testing.B) {
	dir := b.TempDir()
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"none"}, Dir: dir, Degrade: policy.LayerCgroup},
		&profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		b.Fatal(err)
	}
	box, err := Driver{}.Open(context.Background(), r.Policy)
	if err != nil {
		b.Fatal(err)
	}
	defer box.Close()
	for b.Loop() {
		p, err := box.Exec(context.Background(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPlainExec is what BenchmarkExec is compared with: the same command
// by fork and exec, unconfined.
func BenchmarkPlainExec(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestHundredsAtOnce: more commands are asked for, and end, at once than there is room
// for messages about.
func TestHundredsAtOnce(t *testing.T) {
	b, err := Driver{}.Open(context.Background(), with(t, t.TempDir(), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	n := 800
	if testing.Short() {
		n = 300
	}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{})
			if err == nil {
				_, err = p.Wait()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		b.(*sandbox).child.Kill() // or Close would wait as well
		t.Fatal("stuck")
	}
}

// TestThousandAtOnce: a thousand commands run in one sandbox at the same time, each
// ends with its own code, and there is room again for as many.
func TestThousandAtOnce(t *testing.T) {
	dir := t.TempDir()
	pids, memory := int64(6000), uint64(4<<30)
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"none"}, Dir: dir, Degrade: policy.LayerCgroup, Pids: &pids, Memory: &memory},
		&profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Driver{}.Open(context.Background(), r.Policy)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	n := 1000
	if testing.Short() {
		n = 250 // an emulated processor takes its time
	}
	for range 2 {
		in, hold, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		procs := make([]driver.Process, n)
		var wg sync.WaitGroup
		slots := make(chan struct{}, 50)
		for i := range n {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "read x; exit " + strconv.Itoa(i%100)}}, driver.Stdio{Stdin: in})
				if err != nil {
					t.Errorf("%d: %v", i, err)
					return
				}
				procs[i] = p
			})
		}
		wg.Wait()
		in.Close()
		hold.Close() // all of them are there, and wait for this
		for i, p := range procs {
			if p == nil {
				continue
			}
			if st, err := p.Wait(); err != nil || st.ExitCode != i%100 || st.Signal != 0 {
				t.Errorf("%d: %+v, %v", i, st, err)
			}
		}
	}
}

// TestSessionEndUnwatched: a command that ends with its session has a status as any other.
func TestSessionEndUnwatched(t *testing.T) {
	b := openAs(t, &profiles.Request{Dir: t.TempDir(), Seccomp: "default"})
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "60"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	now, err := b.Status()
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	st, err := p.Wait()
	if err != nil || st.Signal != syscall.SIGKILL || !slices.Equal(st.Unwatched, now.Unwatched) || st.Layers.Has(policy.LayerCgroupMemory) != (len(st.Unwatched) == 1) {
		t.Errorf("%+v, %v; before, unwatched was %q", st, err, now.Unwatched)
	}
}

// TestMovedAway: a command that moves what leads to a path that is shown takes it from later
// commands, and nothing else.
func TestMovedAway(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"a/ws", "b/lib", "c/lib"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := openAs(t, &profiles.Request{Dir: base + "/a/ws", Workspace: "ro", ReadOnly: []string{base + "/b/lib", base + "/c/lib"}})
	moved, st := sh(t, b, "cd "+base+" && mv a gone && mv b gone2 && mkdir b && echo >b/lib && mv c gone3 && mkdir c && ln -s /usr c/lib && echo moved")
	if moved != "moved\n" {
		t.Fatalf("%q, %+v", moved, st)
	}
	// A file as standard output makes a ruleset of the command's own.
	out, err := os.Create(base + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "echo ran >/dev/stdout"}, Cwd: "/"}, driver.Stdio{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(base + "/out"); string(text) != "ran\n" {
		t.Errorf("%q, %v", text, err)
	}
}
