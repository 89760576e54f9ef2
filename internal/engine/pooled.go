package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
)

// runSocket is the name of the socket at which a server lends sandboxes; package
// serve has it too.
const runSocket = "run.sock"

// ServerDir is where a server's sockets are, "" if none is to be used.
func ServerDir() string {
	switch dir := os.Getenv(ServerEnv); dir {
	case "":
		return RuntimeDir("serve")
	case "none":
		return ""
	default:
		return dir
	}
}

// pooled is a driver that has a run's sandbox from a server, if there is one that
// has exactly that ready.
type pooled struct {
	driver.Driver
	socket string
	build  string
	frugal bool
	not    func(why string)
}

// FromPool lets a driver have its sandbox from a server of the same build, if one runs.
// Frugal reads no counts that nobody will see. Not is told why there was none.
func FromPool(d driver.Driver, p *policy.Policy, build string, frugal bool, not func(why string)) driver.Driver {
	dir := ServerDir()
	// What the gateway counts, and changes of its rules, are of a run's own.
	if dir == "" || p.Egress.Mode == policy.EgressProxy || len(p.Egress.Publish) > 0 {
		return d
	}
	socket := filepath.Join(dir, runSocket)
	if _, err := os.Lstat(socket); err != nil || !d.Describe().Stays {
		return d
	}
	return &pooled{d, socket, build, frugal, not}
}

// Start starts the command in a sandbox of the server's, or else in its own.
func (d *pooled) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	birth, err := session.Birth()
	var loan *session.Loan
	if err == nil {
		loan, err = session.Borrow(d.socket, d.build, birth, p)
	}
	if err != nil {
		d.not(err.Error())
		return d.Driver.Start(ctx, p, stdio)
	}
	if stdio.Starting != nil {
		stdio.Starting = sync.OnceFunc(stdio.Starting) // refused, it starts again
	}
	pr := p.OCI.Process
	proc, err := loan.Exec(ctx, &specs.Process{Args: pr.Args, Terminal: pr.Terminal, ConsoleSize: pr.ConsoleSize},
		stdio, d.frugal)
	var lost *driver.LostError
	switch {
	case errors.Is(err, session.ErrRefused):
		d.not(err.Error())
		return d.Driver.Start(ctx, p, stdio)
	case errors.As(err, &lost) && errors.Is(err, driver.ErrSandboxGone):
		lost.Fix = "the server ended; --no-pool runs without one"
	case lost == nil && errors.Is(err, driver.ErrSandboxGone):
		return nil, &driver.SetupError{Driver: d.Name(), Err: err, Fix: "the server ended; --no-pool runs without one"}
	}
	return proc, err
}
