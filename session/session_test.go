//go:build unix

package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// keeper is a driver whose sandboxes isolate nothing: these tests are about what
// lies between a client and a sandbox.
type keeper struct {
	driver.Basic
	openErr error
	opened  **box
}

func (keeper) Name() string                    { return "bare" }
func (keeper) Sandboxed() bool                 { return false }
func (keeper) Available(context.Context) error { return nil }
func (keeper) Check(*policy.Policy) error      { return nil }
func (keeper) Start(context.Context, *policy.Policy, driver.Stdio) (driver.Process, error) {
	return nil, errors.ErrUnsupported
}
func (k keeper) Open(context.Context, *policy.Policy) (driver.Sandbox, error) {
	if k.openErr != nil {
		return nil, k.openErr
	}
	b := &box{done: make(chan struct{})}
	if k.opened != nil {
		*k.opened = b
	}
	return b, nil
}

type box struct {
	driver.Fixed
	busy atomic.Bool
	once sync.Once
	done chan struct{}
	mu   sync.Mutex
	all  []*proc

	limits []*specs.LinuxResources // that commands were started with
}

func (b *box) ExecWithin(ctx context.Context, pr *specs.Process, limits *specs.LinuxResources, stdio driver.Stdio) (driver.Process, error) {
	b.mu.Lock()
	b.limits = append(b.limits, limits)
	b.mu.Unlock()
	return b.Exec(ctx, pr, stdio)
}

func (b *box) Exec(_ context.Context, pr *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	if pr == nil || len(pr.Args) == 0 {
		return nil, &policy.InvalidError{Field: "process.args", Want: "a command"}
	}
	cmd := exec.Command(pr.Args[0], pr.Args[1:]...)
	cmd.Env = pr.Env
	// Not as interfaces that hold a nil file.
	if stdio.Stdin != nil {
		cmd.Stdin = stdio.Stdin
	}
	if stdio.Stdout != nil {
		cmd.Stdout = stdio.Stdout
	}
	if stdio.Stderr != nil {
		cmd.Stderr = stdio.Stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, &driver.CommandError{Command: pr.Args[0], Err: syscall.ENOENT}
	}
	p := &proc{cmd: cmd}
	b.mu.Lock()
	b.all = append(b.all, p)
	b.mu.Unlock()
	return p, nil
}
func (b *box) Status() (*driver.Status, error) {
	return &driver.Status{PidsDenied: 7, PidsBy: "a group above", OOMKilled: true, OOMBy: "the host"}, nil
}
func (b *box) Done() <-chan struct{} { return b.done }
func (b *box) Idle() bool            { return !b.busy.Load() }

func (b *box) Close() error {
	b.once.Do(func() {
		b.mu.Lock()
		for _, p := range b.all {
			p.Kill()
		}
		b.mu.Unlock()
		close(b.done)
	})
	return nil
}

// End is Close.
func (b *box) End() error { return b.Close() }

type proc struct {
	driver.Fixed
	cmd *exec.Cmd
}

func (p *proc) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }
func (p *proc) Terminate() error              { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM) }
func (p *proc) Kill() error                   { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
func (p *proc) Pty() *os.File                 { return nil }
func (p *proc) Wait() (*driver.Status, error) {
	p.cmd.Wait()
	ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return &driver.Status{Signal: ws.Signal()}, nil
	}
	return &driver.Status{ExitCode: ws.ExitStatus()}, nil
}

func store(t *testing.T) *Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30), "sessions") // longer than a socket address
	st, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// hold starts a session in this process.
func hold(t *testing.T, st *Store, id string) (*Client, <-chan error) {
	t.Helper()
	return holdIn(t, st, id, keeper{})
}

func holdIn(t *testing.T, st *Store, id string, d driver.Driver) (*Client, <-chan error) {
	t.Helper()
	return holdKept(t, st, id, d, 1000)
}

// holdKept is holdIn with the limit on what is kept of a stream.
func holdKept(t *testing.T, st *Store, id string, d driver.Driver, output int64) (*Client, <-chan error) {
	t.Helper()
	p := &policy.Policy{Profile: "bare", Limits: policy.Limits{Output: output}, OCI: &specs.Spec{Process: &specs.Process{}}}
	if err := st.Create(&Info{ID: id, State: Created, Created: time.Now()}, p); err != nil {
		t.Fatal(err)
	}
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- Hold(context.Background(), st, d, &Spec{ID: id, Driver: "bare", Policy: p}, func() { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	c, err := st.Connect(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop(0) })
	return c, ended
}

func run(t *testing.T, c *Client, args ...string) (string, *driver.Status, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := c.Exec(context.Background(), &specs.Process{Args: args}, driver.Stdio{Stdout: w})
	w.Close()
	if err != nil {
		return "", nil, err
	}
	out, _ := io.ReadAll(r)
	st, err := p.Wait()
	return string(out), st, err
}

// TestWithin: limits of a command's own reach the sandbox, in the foreground and in
// the background, and a holder that knows of none refuses the command.
func TestWithin(t *testing.T) {
	boxes := make(chan *box, 1)
	c, _ := holdIn(t, store(t), "one", opened{boxes: boxes})
	b := <-boxes
	pids := int64(5)
	limits := policy.Within(nil, new(0.5), &pids)
	p, err := c.ExecWithin(context.Background(), &specs.Process{Args: []string{"true"}}, limits, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	p.Wait()
	n, err := c.StartWithin(&specs.Process{Args: []string{"true"}}, limits)
	if err != nil {
		t.Fatal(err)
	}
	c.Output(n, [2]int{}, 10*time.Second)
	run(t, c, "true")
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.limits) != 3 || !reflect.DeepEqual(b.limits[0], limits) || !reflect.DeepEqual(b.limits[1], limits) || b.limits[2] != nil {
		t.Errorf("the sandbox was given %+v", b.limits)
	}
	req := &request{Op: "exec"}
	if req.limit(limits); req.Op == "exec" {
		t.Error("an earlier version would run the command without its limits")
	}
	req = &request{Op: "exec"}
	if req.limit(nil); req.Op != "exec" {
		t.Errorf("without limits: %q", req.Op)
	}
}

// opened tells of the sandbox that it opens.
type opened struct {
	keeper
	boxes chan *box
}

func (o opened) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	b, err := o.keeper.Open(ctx, p)
	if err == nil {
		o.boxes <- b.(*box)
	}
	return b, err
}

func TestExec(t *testing.T) {
	c, _ := hold(t, store(t), "one")
	out, st, err := run(t, c, "/bin/sh", "-c", "echo hello; exit 3")
	if err != nil || out != "hello\n" || st.ExitCode != 3 {
		t.Errorf("%q, %+v, %v", out, st, err)
	}
	// Errors keep their kind on the way.
	var command *driver.CommandError
	if _, _, err := run(t, c, "/nonexistent"); !errors.As(err, &command) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no such command: %v", err)
	}
	var invalid *policy.InvalidError
	if _, _, err := run(t, c); !errors.As(err, &invalid) {
		t.Errorf("no command: %v", err)
	}
	// A long command line.
	long := strings.Repeat("x", 100<<10)
	if out, _, err := run(t, c, "/bin/echo", long); err != nil || out != long+"\n" {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	if s, err := c.Status(); err != nil || s.PidsDenied != 7 || s.PidsBy != "a group above" || s.OOMBy != "the host" {
		t.Errorf("status %+v, %v", s, err)
	}
}

// TestSignals: what a client sends reaches its command only, and the end of the
// client is the end of the command.
func TestSignals(t *testing.T) {
	c, _ := hold(t, store(t), "one")
	for _, tt := range []struct {
		name string
		act  func(p driver.Process)
		want syscall.Signal
	}{
		{"signal", func(p driver.Process) { p.Signal(syscall.SIGUSR1) }, syscall.SIGUSR1},
		{"terminate", func(p driver.Process) { p.Terminate() }, syscall.SIGTERM},
		{"kill", func(p driver.Process) { p.Kill() }, syscall.SIGKILL},
	} {
		p, err := c.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "600"}}, driver.Stdio{})
		if err != nil {
			t.Fatal(err)
		}
		tt.act(p)
		if st, err := p.Wait(); err != nil || st.Signal != tt.want {
			t.Errorf("%s: %+v, %v", tt.name, st, err)
		}
		if err := p.Kill(); err != syscall.ESRCH {
			t.Errorf("%s: after the end: %v", tt.name, err)
		}
	}
	r, w, _ := os.Pipe()
	p, err := c.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "600"}}, driver.Stdio{Stdout: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	p.(*remote).conn.Close()
	io.ReadAll(r) // its end is that of the command
	r.Close()
}

func TestBackground(t *testing.T) {
	c, _ := hold(t, store(t), "one")
	n, err := c.Start(&specs.Process{Args: []string{"/bin/sh", "-c", "echo a; sleep 0.1; echo b >&2; echo c; exit 5"}})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr string
	var offset [2]int
	var res *driver.Result
	for range 100 {
		out, err := c.Output(n, offset, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		stdout, stderr, offset = stdout+string(out.Stdout), stderr+string(out.Stderr), out.Offset
		if res = out.Result; res != nil {
			break
		}
	}
	if stdout != "a\nc\n" || stderr != "b\n" || res == nil || res.ExitCode != 5 {
		t.Errorf("%q, %q, %+v", stdout, stderr, res)
	}
	// More than is kept: the command goes on, the tail is cut.
	n, err = c.Start(&specs.Process{Args: []string{"/bin/sh", "-c", "yes | head -c 500000"}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.Output(n, [2]int{}, 10*time.Second)
	for err == nil && out.Result == nil {
		out, err = c.Output(n, out.Offset, 10*time.Second)
	}
	if err != nil || out.Offset[0] != 1000 || !out.StdoutTruncated || out.Result.ExitCode != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	// One that does not end, until it is killed.
	n, err = c.Start(&specs.Process{Args: []string{"/bin/sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	info, _, err := c.Info()
	if err != nil || info.State != Running || len(info.Commands) != 3 || !info.Commands[2].Running || !info.Commands[2].Background {
		t.Errorf("%+v, %v", info, err)
	}
	// What runs has no exit code yet: 0 would be a verdict.
	if b, err := json.Marshal(info.Commands); err != nil || strings.Count(string(b), `"exit_code"`) != 2 || info.Commands[2].ExitCode != nil || *info.Commands[0].ExitCode != 5 {
		t.Errorf("%s, %v", b, err)
	}
	if err := c.KillCommand(n); err != nil {
		t.Error(err)
	}
	if info, _, err := c.Info(); err != nil || info.State != Ready || info.Commands[2].Running {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := c.Output(99, [2]int{}, 0); err == nil {
		t.Error("output of no command")
	}
}

// TestLongOutput: output that no message could take is had in several, whole, and the
// result with the last.
func TestLongOutput(t *testing.T) {
	c, _ := holdKept(t, store(t), "one", keeper{}, 16<<20)
	n, err := c.Start(&specs.Process{Args: []string{"/bin/sh", "-c", "seq 2000000 | head -c 13631488; seq 1000000 | head -c 3145728 >&2; exit 5"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if info, _, err := c.Info(); err != nil || !info.Commands[0].Running {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	var want [2]strings.Builder
	for i := 1; want[0].Len() < 13631488; i++ {
		fmt.Fprintln(&want[0], i)
	}
	want[1].WriteString(want[0].String()[:3145728])
	check := func(what, stdout, stderr string, out *Output, err error) {
		t.Helper()
		if err != nil || out.Result == nil || out.Result.ExitCode != 5 || out.More {
			t.Fatalf("%s: %v", what, err)
		}
		if stdout != want[0].String()[:13631488] || stderr != want[1].String() {
			t.Errorf("%s: another output, of %d and %d bytes", what, len(stdout), len(stderr))
		}
	}
	out, err := c.Output(n, [2]int{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	check("at once", string(out.Stdout), string(out.Stderr), out, err)
	var got [2]strings.Builder
	parts := 0
	for out = (&Output{More: true}); err == nil && out.More; parts++ {
		if out, err = c.OutputPart(n, out.Offset, 0); err == nil {
			got[0].Write(out.Stdout)
			got[1].Write(out.Stderr)
		}
	}
	check("in parts", got[0].String(), got[1].String(), out, err)
	if parts != 13 {
		t.Errorf("%d parts", parts)
	}
}

func TestStop(t *testing.T) {
	st := store(t)
	c, ended := hold(t, st, "one")
	p, err := c.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "600"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Remove("one"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("removing a running session: %v", err)
	}
	if err := c.Stop(10 * time.Second); err != nil {
		t.Error(err)
	}
	if s, err := p.Wait(); err == nil && s.Signal != syscall.SIGTERM {
		t.Errorf("%+v, %v", s, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-c.Done()
	if info, err := st.Lookup("one"); err != nil || info.State != Stopped || info.Pid != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	if _, _, err := run(t, c, "true"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
	if err := st.Remove("one"); err != nil {
		t.Error(err)
	}
	if _, err := st.Connect("one"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after removal: %v", err)
	}
}

// TestRetire: a session in which something runs, a command or what one has left, is
// not ended by who wants it only if it is idle.
func TestRetire(t *testing.T) {
	st := store(t)
	var b *box
	c, ended := holdIn(t, st, "one", keeper{opened: &b})
	p, err := c.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "600"}}, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := c.Retire(); gone || err != nil {
		t.Errorf("a command runs: %v, %v", gone, err)
	}
	p.Kill()
	p.Wait()
	b.busy.Store(true)
	if gone, err := c.Retire(); gone || err != nil {
		t.Errorf("something was left: %v, %v", gone, err)
	}
	if out, _, err := run(t, c, "/bin/echo", "goes on"); out != "goes on\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	b.busy.Store(false)
	if gone, err := c.Retire(); !gone || err != nil {
		t.Errorf("idle: %v, %v", gone, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if info, err := st.Lookup("one"); err != nil || info.State != Stopped {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := c.Retire(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

// TestDies: a sandbox that ends by itself, and a holder that is gone, are told
// from a session that was stopped.
func TestDies(t *testing.T) {
	st := store(t)
	p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}}}
	if err := st.Create(&Info{ID: "crashed", State: Ready, Pid: 1 << 30, Created: time.Now().Add(-time.Hour)}, p); err != nil {
		t.Fatal(err)
	}
	if info, err := st.Lookup("crashed"); err != nil || info.State != Failed {
		t.Errorf("no socket: %+v, %v", info, err)
	}
	l, err := st.listen("crashed")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // the socket stays, as after a SIGKILL
	if info, err := st.Lookup("crashed"); err != nil || info.State != Failed {
		t.Errorf("a socket that nobody listens on: %+v, %v", info, err)
	}
	if err := st.Create(&Info{ID: "crashed"}, p); !errors.Is(err, ErrExists) {
		t.Errorf("the same name again: %v", err)
	}
	if gone, err := st.Prune(time.Hour); err != nil || len(gone) != 0 {
		t.Errorf("pruned too early: %v, %v", gone, err)
	}
	if gone, err := st.Prune(0); err != nil || len(gone) != 1 {
		t.Errorf("pruned %v, %v", gone, err)
	}
	// The sandbox could not be opened: the error is the driver's.
	if err := st.Create(&Info{ID: "never"}, p); err != nil {
		t.Fatal(err)
	}
	want := &driver.UnavailableError{What: "driver"}
	if err := Hold(context.Background(), st, keeper{openErr: want}, &Spec{ID: "never", Policy: p}, nil); !errors.Is(err, want) {
		t.Errorf("%v", err)
	}
}

// TestPaths: no name of a session leads out of the store, and a store that is
// not the owner's alone is refused.
func TestPaths(t *testing.T) {
	st := store(t)
	p := &policy.Policy{}
	for _, id := range []string{"", ".", "..", "../x", "/etc", "a/b", "a\x00b", ".hidden", "-rf", "a b", "é", strings.Repeat("x", 65), strings.Repeat("x", 10<<10), "a\n"} {
		var invalid *policy.InvalidError
		for name, err := range map[string]error{
			"Create": st.Create(&Info{ID: id}, p), "Remove": st.Remove(id),
			"Lookup": second(st.Lookup(id)), "Connect": second(st.Connect(id)), "Policy": second(st.Policy(id)),
		} {
			if !errors.As(err, &invalid) {
				t.Errorf("%s(%.20q): %v", name, id, err)
			}
		}
	}
	// A link in the place of a session leads nowhere.
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, recordFile), []byte(`{"id":"link","state":"stopped"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(st.dir, "link")); err != nil {
		t.Fatal(err)
	}
	if info, err := st.Lookup("link"); err == nil {
		t.Errorf("followed a link out: %+v", info)
	}
	if list, err := st.List(); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if err := st.Remove("link"); err != nil {
		t.Log(err)
	}
	if _, err := os.Stat(filepath.Join(outside, recordFile)); err != nil {
		t.Error("removing a link removed what it led to")
	}
	for name, make := range map[string]func(string) error{
		"open to others": func(d string) error { return errors.Join(os.Mkdir(d, 0o700), os.Chmod(d, 0o777)) },
		"a link":         func(d string) error { return os.Symlink(t.TempDir(), d) },
		"a file":         func(d string) error { return os.WriteFile(d, nil, 0o600) },
	} {
		d := filepath.Join(t.TempDir(), "sessions")
		if err := make(d); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStore(d); err == nil {
			t.Errorf("%s is taken for a store", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestGarbage: a client that does not keep to the protocol harms nobody.
func TestGarbage(t *testing.T) {
	st := store(t)
	c, _ := hold(t, st, "one")
	for name, b := range map[string][]byte{
		"nothing": {}, "half a length": {0, 0}, "too long": binary.BigEndian.AppendUint32(nil, maxMessage+1),
		"no JSON": append(binary.BigEndian.AppendUint32(nil, 3), "abc"...), "unknown": append(binary.BigEndian.AppendUint32(nil, 12), `{"op":"what"}`...),
		"no descriptors": append(binary.BigEndian.AppendUint32(nil, 63), `{"op":"exec","process":{"args":["true"]},"streams":[true,1==1]}`...),
	} {
		conn, err := st.dial("one")
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(b)
		conn.CloseWrite()
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		var r reply
		if _, err := conn.receive(&r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: no end", name)
		} else if err == nil && r.Error == nil {
			t.Errorf("%s: accepted", name)
		}
		conn.Close()
	}
	if out, _, err := run(t, c, "/bin/echo", "alive"); err != nil || out != "alive\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestManyAtOnce is for cross-talk, and for descriptors that are not closed.
func TestManyAtOnce(t *testing.T) {
	c, _ := hold(t, store(t), "one")
	before := descriptors(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			want := strings.Repeat("z", i+1)
			if out, _, err := run(t, c, "/bin/echo", want); err != nil || out != want+"\n" {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
	wg.Wait()
	for range 100 {
		if descriptors(t) <= before+2 {
			return
		}
		time.Sleep(10 * time.Millisecond) // connections that are being closed
	}
	t.Errorf("%d descriptors, %d before", descriptors(t), before)
}

func descriptors(t *testing.T) int {
	t.Helper()
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		if list, err := os.ReadDir(dir); err == nil {
			return len(list)
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return 0
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add(append([]byte{0, 0, 0, 13}, `{"op":"exec"}`...))
	f.Fuzz(func(t *testing.T, b []byte) {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Skip(err)
		}
		file := os.NewFile(uintptr(fds[0]), "")
		nc, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		other := os.NewFile(uintptr(fds[1]), "")
		go func() { other.Write(b); other.Close() }()
		var req request
		files, _ := (&conn{UnixConn: nc.(*net.UnixConn)}).receive(&req)
		if len(files) != 0 {
			t.Error("descriptors out of nothing")
		}
	})
}

// listen makes a session's socket.
func (s *Store) listen(id string) (*net.UnixListener, error) {
	path, done, err := s.socket(id)
	if err != nil {
		return nil, err
	}
	defer done()
	return listen(path)
}

// TestEnterOne: a record and the connection that was made with it are of one session.
func TestEnterOne(t *testing.T) {
	st := store(t)
	c, _ := hold(t, st, "one")
	name := filepath.Join("one", recordFile)
	mine, err := st.root.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Replace(mine, []byte(strconv.Itoa(os.Getpid())), []byte("1"), 1)
	if err := st.root.WriteFile(name, other, 0o600); err != nil {
		t.Fatal(err)
	}
	if info, _, err := st.Enter("one"); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("the record of another session: %+v %v", info, err)
	}
	if err := st.root.WriteFile(name, mine, 0o600); err != nil {
		t.Fatal(err)
	}
	c.holder = 1 // what had the name before
	if _, err := c.Status(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("another holder answers: %v", err)
	}
}

// TestHungUp: what a holder says before it hangs up is told, also to who had not asked yet.
func TestHungUp(t *testing.T) {
	st := store(t)
	why := reply{Error: newWireError(errors.New("it has no room"))}
	if err := st.Create(&Info{ID: "one", State: Ready, Created: time.Now(), Pid: os.Getpid()}, &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}}}); err != nil {
		t.Fatal(err)
	}
	l, err := st.listen("one")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hungUp := make(chan struct{})
	go func() {
		c, err := l.AcceptUnix()
		if err == nil {
			(&conn{UnixConn: c}).send(why)
			c.Close()
		}
		close(hungUp)
	}()
	_, c, err := st.Enter("one")
	if err != nil {
		t.Fatal(err)
	}
	<-hungUp
	if _, err := c.Status(); err == nil || !strings.Contains(err.Error(), "it has no room") {
		t.Errorf("got %v", err)
	}
}

// TestNoRoom: descriptors that find no room are an error of their own, which is answered.
func TestNoRoom(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ends[i] = &conn{UnixConn: c.(*net.UnixConn)}
	}
	if err := ends[0].send(request{Op: "exec"}, 0, 1, 2); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	less := old
	less.Cur = 3 // which are taken
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &less); err != nil {
		t.Fatal(err)
	}
	files, err := ends[1].receive(new(request))
	closeFiles(files)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("%d descriptors, %v", len(files), err)
	}
}

// TestUnreached: a session that is being made is not said to have ended.
func TestUnreached(t *testing.T) {
	st := store(t)
	if err := st.Create(&Info{ID: "one", State: Created, Created: time.Now()}, &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}}}); err != nil {
		t.Fatal(err)
	}
	c, err := st.Connect("one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(); err == nil || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "yet") {
		t.Errorf("got %v", err)
	}
}

// TestEnter: a session that was entered is asked by the connection that was looked at, once.
// If it has ended meanwhile, nothing runs, also not in another of that name.
func TestEnter(t *testing.T) {
	st := store(t)
	run := func(c *Client) (string, error) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p, err := c.Exec(t.Context(), &specs.Process{Args: []string{"echo", "ran"}}, driver.Stdio{Stdout: w})
		w.Close()
		if err != nil {
			return "", err
		}
		if _, err := p.Wait(); err != nil {
			return "", err
		}
		b, err := io.ReadAll(r)
		return string(b), err
	}
	_, ended := hold(t, st, "one")
	info, c, err := st.Enter("one")
	if err != nil || info.State != Ready || c.unused.Load() == nil {
		t.Fatalf("%+v %v", info, err)
	}
	for range 2 {
		if out, err := run(c); err != nil || out != "ran\n" {
			t.Errorf("%q %v", out, err)
		}
		if c.unused.Load() != nil {
			t.Error("the connection is used again")
		}
	}
	for _, again := range []bool{false, true} {
		_, c, err := st.Enter("one")
		if err != nil {
			t.Fatal(err)
		}
		other, err := st.Connect("one")
		if err == nil {
			err = other.Stop(0)
		}
		if err == nil {
			err = <-ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if again {
			if err := st.Remove("one"); err != nil {
				t.Fatal(err)
			}
			hold(t, st, "one")
		}
		var lost *driver.LostError
		if out, err := run(c); err == nil || errors.As(err, &lost) || !errors.Is(err, ErrNotRunning) && !errors.Is(err, driver.ErrSandboxGone) {
			t.Errorf("another of that name %v: %q %v", again, out, err)
		}
		if !again {
			if info, c, err := st.Enter("one"); err != nil || !info.Over() || c.unused.Load() != nil {
				t.Errorf("%+v %v", info, err)
			}
			if err := st.Remove("one"); err != nil {
				t.Fatal(err)
			}
			_, ended = hold(t, st, "one")
		}
	}
	if _, _, err := st.Enter("none"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
