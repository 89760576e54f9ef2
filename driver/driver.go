// Package driver is the contract between a policy and what enforces it: one
// small interface, the result of a run, and the errors that every driver
// speaks. The native driver, bubblewrap, Docker and the bare host are
// implementations in packages of their own; this one knows none of them.
//
// Time limits, output limits and the verdict on how a run ended are the same
// for every driver and are applied here, by [Run].
package driver

import (
	"context"
	"os"
	"syscall"

	"github.com/sbxrun/sbxrun/policy"
)

// A Driver runs policies by one means of isolation.
type Driver interface {
	// Name is the driver's name on the command line and in results.
	Name() string

	// Sandboxed reports whether the driver isolates at all; the host driver
	// does not.
	Sandboxed() bool

	// Available reports nil if the driver can run on this host, or an
	// *UnavailableError that names what is missing and the fix.
	Available(ctx context.Context) error

	// Check lowers the policy as far as that goes without acting. It reports
	// an *UnsupportedError for each part of the policy that this driver has no
	// means to enforce. Start does all that Check does.
	Check(p *policy.Policy) error

	// Start builds the sandbox and starts the command in it. When it returns
	// an error nothing runs and nothing is left behind.
	//
	// The context bounds set-up only; the process lives until it ends, is
	// killed, or its Process is closed.
	Start(ctx context.Context, p *policy.Policy, stdio Stdio) (Process, error)
}

// Stdio is what the command gets as its standard streams. A nil file is
// /dev/null. The files stay the caller's to close.
type Stdio struct {
	Stdin, Stdout, Stderr *os.File

	// Extra files become descriptors 3, 4, … of the command.
	Extra []*os.File

	// Starting, if not nil, is called once set-up is under way and before the
	// command can run: what takes time and must be in place by then has its
	// place there. It is not called if set-up fails early.
	Starting func()
}

// A Process is a command that runs in a sandbox, together with everything that
// it started.
//
// Once the command and everything else is gone, Signal, Terminate and Kill
// report ESRCH or os.ErrProcessDone.
type Process interface {
	// Signal sends a signal to the command.
	Signal(sig syscall.Signal) error

	// Terminate sends SIGTERM to every process in the sandbox and lets
	// stopped ones continue, so that they can act on it.
	Terminate() error

	// Kill ends every process in the sandbox at once, daemonised, stopped and
	// signal-proof ones included.
	Kill() error

	// Pty is the master of the command's terminal, or nil without one. It
	// belongs to the Process and is closed by Wait.
	Pty() *os.File

	// Wait returns once nothing that the command started is left. It is
	// called exactly once.
	Wait() (*Status, error)
}

// Status is what a driver recorded of a process that ended.
type Status struct {
	// Exited holds the command's exit code, or Signal the signal that ended
	// it; Signal is 0 if it exited.
	ExitCode int
	Signal   syscall.Signal

	// OOMKilled reports that the kernel's out-of-memory killer ended a process
	// of the sandbox at its memory limit, from the cgroup's own count.
	OOMKilled bool

	// PidsDenied counts forks that failed at the process limit.
	PidsDenied uint64

	Layers   policy.Layers // enforced in this run
	Degraded policy.Layers // agreed to go without, and missing
	Usage    Usage
	Denials  []Denial

	// SetupNanos is the time from Start to the command's execve(2).
	SetupNanos int64
}
