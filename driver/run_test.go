package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// fake is a driver whose command is a function.
type fake struct {
	Basic
	name      string
	bare      bool
	available error
	check     error
	start     error
	command   func(*fakeProcess)
	status    Status
	gone      bool
	deaf      bool
	slow      bool

	last *fakeProcess
}

func (*fake) Describe() Description             { return Description{Auto: true} }
func (f *fake) Name() string                    { return f.name }
func (f *fake) Sandboxed() bool                 { return !f.bare }
func (f *fake) Available(context.Context) error { return f.available }
func (f *fake) Check(*policy.Policy) error      { return f.check }

func (f *fake) Start(_ context.Context, _ *policy.Policy, stdio Stdio) (Process, error) {
	if f.start != nil {
		return nil, f.start
	}
	p := &fakeProcess{status: f.status, gone: f.gone, deaf: f.deaf, slow: f.slow, killed: make(chan struct{}), terminated: make(chan struct{}), done: make(chan struct{}), signals: make(chan syscall.Signal, 10)}
	for _, to := range []struct {
		from *os.File
		to   **os.File
	}{{stdio.Stdout, &p.stdout}, {stdio.Stderr, &p.stderr}} {
		if to.from != nil {
			fd, err := syscall.Dup(int(to.from.Fd()))
			if err != nil {
				return nil, err
			}
			*to.to = os.NewFile(uintptr(fd), "dup")
		}
	}
	f.last = p
	go func() {
		defer close(p.done)
		f.command(p)
		for _, s := range []*os.File{p.stdout, p.stderr} {
			if s != nil && !p.holds {
				s.Close()
			}
		}
	}()
	return p, nil
}

type fakeProcess struct {
	Fixed
	stdout, stderr   *os.File
	status           Status
	holds            bool // keep the streams open after the end
	gone             bool // Terminate finds nothing
	deaf             bool // Terminate cannot be delivered
	slow             bool // Kill does not wait for all that it has killed
	killed           chan struct{}
	terminated, done chan struct{}
	signals          chan syscall.Signal
	once, termOnce   sync.Once

	mu    sync.Mutex
	waits int
	late  bool // signalled after Wait returned
	over  bool
}

func (p *fakeProcess) touch() {
	p.mu.Lock()
	p.late = p.late || p.over
	p.mu.Unlock()
}

func (p *fakeProcess) Signal(s syscall.Signal) error { p.touch(); p.signals <- s; return nil }
func (p *fakeProcess) Terminate() error {
	p.touch()
	if p.gone {
		return os.ErrProcessDone
	}
	if p.deaf {
		return syscall.EAGAIN
	}
	p.termOnce.Do(func() { close(p.terminated) })
	return nil
}
func (p *fakeProcess) Kill() error {
	p.touch()
	p.once.Do(func() { close(p.killed) })
	if p.slow {
		return syscall.EBUSY
	}
	return nil
}
func (p *fakeProcess) Pty() *os.File { return nil }
func (p *fakeProcess) Wait() (*Status, error) {
	<-p.done
	p.mu.Lock()
	p.waits++
	p.over = true
	p.mu.Unlock()
	st := p.status
	return &st, nil
}

func testPolicy(limits policy.Limits) *policy.Policy {
	return &policy.Policy{
		Profile: "test",
		OCI:     &specs.Spec{Process: &specs.Process{Args: []string{"x"}, Cwd: "/"}},
		Limits:  limits,
	}
}

func TestVerdict(t *testing.T) {
	sig := syscall.SIGKILL
	tests := []struct {
		name   string
		run    *run
		status Status
		reason Reason
		code   int
		signal string
	}{
		{"exit 0", &run{}, Status{}, ReasonExit, 0, ""},
		{"exit 3", &run{}, Status{ExitCode: 3}, ReasonExit, 3, ""},
		{"own 125", &run{}, Status{ExitCode: 125}, ReasonExit, 125, ""},
		{"own 124", &run{}, Status{ExitCode: 124}, ReasonExit, 124, ""},
		{"signal", &run{}, Status{Signal: syscall.SIGSEGV}, ReasonSignal, 139, "SIGSEGV"},
		// SIGKILL alone proves nothing: neither a timeout nor the OOM killer.
		{"killed by another", &run{}, Status{Signal: sig}, ReasonSignal, 137, "SIGKILL"},
		{"timeout", &run{ended: ReasonTimeout}, Status{Signal: sig}, ReasonTimeout, 124, "SIGKILL"},
		{"timeout, exit 0 on TERM", &run{ended: ReasonTimeout}, Status{}, ReasonTimeout, 124, ""},
		{"oom", &run{}, Status{Signal: sig, OOMKilled: true}, ReasonOOM, 137, "SIGKILL"},
		{"oom of a child, reported by a shell", &run{}, Status{ExitCode: 137, OOMKilled: true}, ReasonOOM, 137, ""},
		{"oom of a child, and an exit of its own", &run{}, Status{ExitCode: 3, OOMKilled: true}, ReasonExit, 3, ""},
		{"oom of a child, and another signal", &run{}, Status{Signal: syscall.SIGSEGV, OOMKilled: true}, ReasonSignal, 139, "SIGSEGV"},
		{"oom of a child, survived", &run{}, Status{OOMKilled: true}, ReasonExit, 0, ""},
		{"pids", &run{}, Status{ExitCode: 1, PidsDenied: 4}, ReasonPids, 1, ""},
		{"pids, survived", &run{}, Status{PidsDenied: 4}, ReasonExit, 0, ""},
		{"oom and pids", &run{}, Status{Signal: sig, OOMKilled: true, PidsDenied: 1}, ReasonOOM, 137, "SIGKILL"},
		{"canceled", &run{ended: ReasonCanceled}, Status{Signal: syscall.SIGTERM}, ReasonCanceled, 143, "SIGTERM"},
		{"forwarded INT", &run{forwarded: 1 << syscall.SIGINT}, Status{Signal: syscall.SIGINT}, ReasonCanceled, 130, "SIGINT"},
		{"forwarded INT, died of SEGV", &run{forwarded: 1 << syscall.SIGINT}, Status{Signal: syscall.SIGSEGV}, ReasonSignal, 139, "SIGSEGV"},
		{"forwarded INT, exits", &run{forwarded: 1 << syscall.SIGINT}, Status{ExitCode: 1}, ReasonExit, 1, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var res Result
			tt.run.verdict(&res, &tt.status)
			if res.Reason != tt.reason || res.ExitCode != tt.code || res.Signal != tt.signal {
				t.Errorf("got %s, %d, %q; want %s, %d, %q", res.Reason, res.ExitCode, res.Signal, tt.reason, tt.code, tt.signal)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	const limit, grace = 30 * time.Millisecond, 50 * time.Millisecond
	limits := policy.Limits{WallTime: limit, KillAfter: grace}

	t.Run("obeys TERM", func(t *testing.T) {
		d := &fake{status: Status{Signal: syscall.SIGTERM}, command: func(p *fakeProcess) { <-p.terminated }}
		res, err := Run(context.Background(), d, testPolicy(limits), RunOptions{})
		if err != nil || res.Reason != ReasonTimeout || res.ExitCode != ExitTimeout {
			t.Errorf("got %+v, %v", res, err)
		}
		select {
		case <-d.last.killed:
			t.Error("killed although it ended on SIGTERM")
		default:
		}
	})
	t.Run("ignores TERM", func(t *testing.T) {
		d := &fake{status: Status{Signal: syscall.SIGKILL}, command: func(p *fakeProcess) { <-p.killed }}
		begin := time.Now()
		res, _ := Run(context.Background(), d, testPolicy(limits), RunOptions{})
		if res.Reason != ReasonTimeout || res.ExitCode != ExitTimeout || res.Signal != "SIGKILL" {
			t.Errorf("got %+v", res)
		}
		if took := time.Since(begin); took < limit+grace {
			t.Errorf("killed after %v, before the grace of %v was over", took, limit+grace)
		}
	})
	t.Run("no grace", func(t *testing.T) {
		d := &fake{status: Status{Signal: syscall.SIGKILL}, command: func(p *fakeProcess) { <-p.killed }}
		res, _ := Run(context.Background(), d, testPolicy(policy.Limits{WallTime: limit}), RunOptions{})
		if res.Reason != ReasonTimeout {
			t.Errorf("got %+v", res)
		}
	})
	t.Run("in time", func(t *testing.T) {
		d := &fake{command: func(p *fakeProcess) {}}
		res, _ := Run(context.Background(), d, testPolicy(limits), RunOptions{})
		time.Sleep(limit + grace)
		if res.Reason != ReasonExit || d.last.late {
			t.Errorf("got %+v, signalled after the end: %v", res, d.last.late)
		}
	})
	t.Run("does not listen", func(t *testing.T) {
		d := &fake{deaf: true, command: func(p *fakeProcess) { <-p.killed }}
		res, _ := Run(context.Background(), d, testPolicy(limits), RunOptions{})
		if res.Reason != ReasonTimeout || res.ExitCode != ExitTimeout {
			t.Errorf("got %+v, want a timeout", res)
		}
	})
	t.Run("gone when the timer fires", func(t *testing.T) {
		d := &fake{gone: true, command: func(p *fakeProcess) { time.Sleep(2 * limit) }}
		res, _ := Run(context.Background(), d, testPolicy(limits), RunOptions{})
		if res.Reason != ReasonExit || res.ExitCode != 0 {
			t.Errorf("got %+v: nothing was sent, so nothing timed out", res)
		}
	})
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	d := &fake{status: Status{Signal: syscall.SIGTERM}, command: func(p *fakeProcess) { cancel(); <-p.terminated }}
	res, err := Run(ctx, d, testPolicy(policy.Limits{KillAfter: time.Second}), RunOptions{})
	if err != nil || res.Reason != ReasonCanceled || res.ExitCode != 143 {
		t.Errorf("got %+v, %v", res, err)
	}
}

// TestKillWithoutPatience has a kill that reports that something remained: who was
// killed by it was cancelled all the same.
func TestKillWithoutPatience(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	d := &fake{slow: true, status: Status{Signal: syscall.SIGKILL}, command: func(p *fakeProcess) { cancel(); <-p.killed }}
	res, err := Run(ctx, d, testPolicy(policy.Limits{}), RunOptions{})
	if err != nil || res.Reason != ReasonCanceled || res.ExitCode != 137 {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestSignals(t *testing.T) {
	t.Run("forwarded", func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		var got syscall.Signal
		d := &fake{command: func(p *fakeProcess) { signals <- syscall.SIGUSR1; got = <-p.signals }}
		res, _ := Run(context.Background(), d, testPolicy(policy.Limits{}), RunOptions{Signals: signals})
		if got != syscall.SIGUSR1 || res.Reason != ReasonExit {
			t.Errorf("forwarded %v, %+v", got, res)
		}
	})
	t.Run("second INT kills", func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		d := &fake{status: Status{Signal: syscall.SIGKILL}, command: func(p *fakeProcess) {
			signals <- syscall.SIGINT
			signals <- syscall.SIGINT
			<-p.killed
		}}
		res, _ := Run(context.Background(), d, testPolicy(policy.Limits{KillAfter: time.Minute}), RunOptions{Signals: signals})
		if res.Reason != ReasonCanceled || res.ExitCode != 137 {
			t.Errorf("got %+v", res)
		}
	})
	t.Run("INT after TERM does not kill", func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		d := &fake{command: func(p *fakeProcess) {
			signals <- syscall.SIGTERM
			signals <- syscall.SIGINT
			<-p.signals
			<-p.signals
		}}
		res, _ := Run(context.Background(), d, testPolicy(policy.Limits{KillAfter: time.Minute}), RunOptions{Signals: signals})
		if res.Reason != ReasonExit {
			t.Errorf("got %+v", res)
		}
	})
}

func TestCapture(t *testing.T) {
	write := func(n int) func(*fakeProcess) {
		return func(p *fakeProcess) {
			io.WriteString(p.stderr, "err")
			io.Copy(p.stdout, io.LimitReader(letters{}, int64(n)))
		}
	}
	for _, tt := range []struct {
		n         int
		limit     int64
		want      int
		truncated bool
	}{
		{0, 10, 0, false},
		{9, 10, 9, false},
		{10, 10, 10, false},
		{11, 10, 10, true},
		{1 << 20, 100_000, 100_000, true},
		{1 << 20, 0, 1 << 20, false},
	} {
		t.Run(fmt.Sprintf("%d of %d", tt.n, tt.limit), func(t *testing.T) {
			d := &fake{command: write(tt.n)}
			res, err := Run(context.Background(), d, testPolicy(policy.Limits{Output: tt.limit}), RunOptions{Capture: true})
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Stdout) != tt.want || res.StdoutTruncated != tt.truncated || res.Stdout != strings.Repeat("x", tt.want) {
				t.Errorf("kept %d bytes, truncated %v; want %d, %v", len(res.Stdout), res.StdoutTruncated, tt.want, tt.truncated)
			}
			if res.Stderr != "err" || res.StderrTruncated {
				t.Errorf("stderr: %q, %v", res.Stderr, res.StderrTruncated)
			}
		})
	}
}

// TestRoom: runs share a room, whatever each may keep; what one has kept has no hole, and
// what is given back is there for the next.
func TestRoom(t *testing.T) {
	const size = 1 << 20
	room := NewRoom(3 * size / 2)
	run := func() *Result {
		d := &fake{command: func(p *fakeProcess) { io.Copy(p.stdout, io.LimitReader(letters{}, size)) }}
		res, err := Run(context.Background(), d, testPolicy(policy.Limits{}), RunOptions{Capture: true, Room: room})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	first, second := run(), run()
	if len(first.Stdout) != size || first.StdoutTruncated {
		t.Errorf("the first keeps %d bytes, truncated %v", len(first.Stdout), first.StdoutTruncated)
	}
	if n := len(second.Stdout); n > size/2 || n < size/4 || !second.StdoutTruncated {
		t.Errorf("the second keeps %d bytes, truncated %v", n, second.StdoutTruncated)
	}
	room.Give(first)
	room.Give(second)
	if third := run(); len(third.Stdout) != size || third.StdoutTruncated {
		t.Errorf("the third keeps %d bytes, truncated %v", len(third.Stdout), third.StdoutTruncated)
	}
}

// R05: much output is thrown away without being kept.
func TestCaptureMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 512 MiB")
	}
	d := &fake{command: func(p *fakeProcess) { io.Copy(p.stdout, io.LimitReader(letters{}, 512<<20)) }}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res, err := Run(context.Background(), d, testPolicy(policy.Limits{Output: 1 << 20}), RunOptions{Capture: true})
	runtime.ReadMemStats(&after)
	if err != nil || len(res.Stdout) != 1<<20 || !res.StdoutTruncated {
		t.Fatalf("%v: %d bytes", err, len(res.Stdout))
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("allocated %d MiB for 1 MiB of kept output", grown>>20)
	}
}

// P07: someone who keeps the streams open does not hold the result up.
func TestCaptureHeldOpen(t *testing.T) {
	d := &fake{command: func(p *fakeProcess) { p.holds = true; io.WriteString(p.stdout, "said") }}
	begin := time.Now()
	res, err := Run(context.Background(), d, testPolicy(policy.Limits{}), RunOptions{Capture: true})
	d.last.stdout.Close()
	d.last.stderr.Close()
	if err != nil || res.Stdout != "said" {
		t.Errorf("got %+v, %v", res, err)
	}
	if took := time.Since(begin); took > streamGrace+10*time.Second {
		t.Errorf("took %v", took)
	}
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestSetupFailure(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
		kind Code
		hint string
	}{
		{&CommandError{Command: "x", Err: syscall.ENOENT, Fix: "f"}, 127, "", "f"},
		{&CommandError{Command: "x", Err: syscall.EACCES}, 126, "", ""},
		{&CommandError{Command: "x", Err: syscall.ENOEXEC}, 126, "", ""},
		{&CommandError{Command: "x", Err: syscall.E2BIG}, 126, "", ""},
		{&UnavailableError{What: "layer seccomp", Cause: "c", Fix: "g"}, 125, CodeUnavailable, "g"},
		{&UnsupportedError{Driver: "d", Fix: "h"}, 125, CodeUnsupported, "h"},
		{&SetupError{Driver: "d", Err: syscall.EPERM, Fix: "i"}, 125, CodeCreationFailed, "i"},
		{&policy.InvalidError{Field: "f"}, 125, CodeInvalid, ""},
		{errors.New("whatever"), 125, CodeCreationFailed, ""},
		{fmt.Errorf("wrapped: %w", &UnavailableError{Fix: "j"}), 125, CodeUnavailable, "j"},
		// ENOENT of anything but the command is no missing command.
		{&SetupError{Driver: "d", Err: syscall.ENOENT}, 125, CodeCreationFailed, ""},
	} {
		res, err := Run(context.Background(), &fake{start: tt.err}, testPolicy(policy.Limits{}), RunOptions{Capture: true})
		if err != tt.err || res.Reason != ReasonSetup || res.ExitCode != tt.code || res.Code != tt.kind || res.Hint != tt.hint || res.Error != tt.err.Error() {
			t.Errorf("%v: got %+v, %v", tt.err, res, err)
		}
	}
}

func TestDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("counts descriptors in /proc/self/fd")
	}
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for range 3 { // the poller and the like
		Run(context.Background(), &fake{command: func(*fakeProcess) {}}, testPolicy(policy.Limits{}), RunOptions{Capture: true})
	}
	before := open()
	for range 20 {
		Run(context.Background(), &fake{command: func(*fakeProcess) {}}, testPolicy(policy.Limits{WallTime: time.Hour}), RunOptions{Capture: true})
		Run(context.Background(), &fake{start: syscall.EPERM}, testPolicy(policy.Limits{}), RunOptions{Capture: true})
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func BenchmarkRun(b *testing.B) {
	d := &fake{command: func(*fakeProcess) {}}
	for _, bb := range []struct {
		name   string
		limits policy.Limits
	}{{"bare", policy.Limits{}}, {"wall time", policy.Limits{WallTime: time.Minute}}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			p := testPolicy(bb.limits)
			for b.Loop() {
				Run(context.Background(), d, p, RunOptions{})
			}
		})
	}
}
