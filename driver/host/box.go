package host

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// Box is what stands in for a sandbox that stays where there is none: it starts
// commands on the bare host, each as Start does, and ends with Close those that
// still run. Unlike in a sandbox, what a command leaves behind in its process
// group ends with it, and what left the group is out of reach.
//
// The driver does not Open: whoever takes a Box says so to the user, which
// code that asks for any Keeper would not.
func (d *Driver) Box(p *policy.Policy) driver.Sandbox {
	return &box{driver: Driver{Home: d.Home}, policy: p, done: make(chan struct{}), running: map[driver.Process]bool{}}
}

type box struct {
	driver.Fixed
	driver Driver // without Sweep: the program has more than one command
	policy *policy.Policy
	done   chan struct{}

	mu      sync.Mutex
	closed  bool
	running map[driver.Process]bool
	ended   sync.WaitGroup
}

// Exec starts a command.
func (b *box) Exec(ctx context.Context, process *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, driver.ErrSandboxGone
	}
	b.ended.Add(1)
	b.mu.Unlock()
	p, spec, own := *b.policy, *b.policy.OCI, *b.policy.OCI.Process
	own.Args, own.Terminal, own.ConsoleSize = process.Args, process.Terminal, process.ConsoleSize
	if process.Env != nil {
		own.Env = process.Env
	}
	if process.Cwd != "" {
		own.Cwd = process.Cwd
	}
	if len(own.Args) > 0 && own.Args[0] == "/proc/self/fd/3" && len(stdio.Extra) > 0 {
		// A program that is handed along: it is looked up before the command has
		// that descriptor.
		own.Args = slices.Clone(own.Args)
		own.Args[0] = "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(stdio.Extra[0].Fd()))
	}
	spec.Process, p.OCI = &own, &spec
	proc, err := b.driver.Start(ctx, &p, stdio)
	if err != nil {
		b.ended.Done()
		return nil, err
	}
	in := &boxed{Process: proc, box: b}
	b.mu.Lock()
	b.running[in] = true
	closed := b.closed
	b.mu.Unlock()
	if closed {
		in.Kill()
	}
	return in, nil
}

// ExecWithin starts a command without limits of its own: nothing here could hold
// them.
func (b *box) ExecWithin(ctx context.Context, process *specs.Process, limits *specs.LinuxResources,
	stdio driver.Stdio) (driver.Process, error) {
	if limits != nil {
		return nil, &driver.UnsupportedError{Driver: Name, Rules: []string{"limits of one command"},
			Fix: "leave them out; prlimit(1) and systemd-run(1) limit commands on the host"}
	}
	return b.Exec(ctx, process, stdio)
}

// Status has no counts: nobody takes any.
func (b *box) Status() (*driver.Status, error) {
	return &driver.Status{Degraded: wanted(b.policy)}, nil
}

// Done is closed by Close.
func (b *box) Done() <-chan struct{} { return b.done }

// Close ends the commands that run.
func (b *box) Close() error {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	for p := range b.running {
		p.Kill()
	}
	b.mu.Unlock()
	b.ended.Wait() // whoever started them waits for them
	if first {
		close(b.done)
	}
	return nil
}

// End is Close.
func (b *box) End() error { return b.Close() }

// boxed is a command of a Box.
type boxed struct {
	driver.Process
	box *box
}

func (p *boxed) Wait() (*driver.Status, error) {
	st, err := p.Process.Wait()
	p.box.mu.Lock()
	delete(p.box.running, p)
	p.box.mu.Unlock()
	p.box.ended.Done()
	return st, err
}
