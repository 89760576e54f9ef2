// Package driver is the contract between a policy and what enforces it: an
// interface, the result of a run, and the errors that every driver
// speaks. The native driver, bubblewrap, Docker and the bare host are
// implementations in packages of their own; this one knows none of them.
//
// Time limits, output limits and the verdict on how a run ended are the same
// for every driver and are applied here, by [Run].
package driver

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

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

	// Describe says what the driver can and cannot enforce. It is a function of the
	// driver alone, not of the host.
	Describe() Description

	// The rest is not every driver's to give: see [Basic], which a driver embeds.

	// Open builds the sandbox of a policy, to stay for many commands, and without
	// one: of the policy's process only what is not about one command counts (user,
	// limits, labels), and the rest is what Exec takes as its default. When it
	// returns an error nothing is left behind.
	//
	// The context bounds set-up only.
	Open(ctx context.Context, p *policy.Policy) (Sandbox, error)

	// Prepare builds as much of a sandbox as the policy, and every policy that
	// shows more files than that, has in common: most of the work of Open, before
	// the policy is known in full. When it returns an error nothing is left behind.
	Prepare(ctx context.Context, p *policy.Policy) (Prepared, error)

	// Lowered returns what the driver hands on to another program, in that program's
	// own words: the arguments of one, the profile of the other. It starts nothing,
	// and works where the driver does not.
	Lowered(p *policy.Policy) (any, error)

	// Program is the path of the program's file that the driver is made of, "" if
	// that is not there.
	Program() (string, error)

	// Version is that program's version in its own words, "" if it is not there. To
	// ask starts it.
	Version() string
}

// Basic is embedded by a driver for what it has no means to give.
type Basic struct{}

// Open is ErrUnsupported.
func (Basic) Open(context.Context, *policy.Policy) (Sandbox, error) {
	return nil, errors.ErrUnsupported
}

// Prepare is ErrUnsupported.
func (Basic) Prepare(context.Context, *policy.Policy) (Prepared, error) {
	return nil, errors.ErrUnsupported
}

// Describe claims nothing.
func (Basic) Describe() Description { return Description{} }

// Lowered is ErrUnsupported.
func (Basic) Lowered(*policy.Policy) (any, error) { return nil, errors.ErrUnsupported }

// Program is ErrUnsupported.
func (Basic) Program() (string, error) { return "", errors.ErrUnsupported }

// Version is "".
func (Basic) Version() string { return "" }

// MaxExtra is how many files besides the standard streams a command can be given. A
// message to a sandbox that stays holds no more descriptors, with those that go along.
const MaxExtra = 9

// Stdio is what the command gets as its standard streams. A nil file is
// /dev/null. The files stay the caller's to close.
type Stdio struct {
	Stdin, Stdout, Stderr *os.File

	// Extra files become descriptors 3, 4, … of the command; no more than MaxExtra.
	Extra []*os.File

	// Else, if not "", is the program to execute where the first of the arguments, a name
	// without a slash, is not to be found; the other arguments are its. Drivers that look for
	// the command before they start anything need not heed it.
	Else string

	// Explain asks the driver to note, among the denials, what the command looks for and
	// the sandbox does not show although the host has it. The native driver can; others
	// note nothing.
	Explain bool

	// Unasked has refusals stay refusals where a sandbox asks about them.
	Unasked bool

	// Seen, if not nil, is called with each path that the command uses, each time anew: what
	// it looks up and finds, executes or changes. It must return soon, and may not open
	// anything. Who describes the process, during the call. The native driver calls it, for a
	// command of its own, and then looks as for Explain; others do not.
	Seen func(u Use, who func() *Asker)

	// Refused, if not nil, is called with what is refused, each time anew, and before the
	// command learns of it, but for connections that end in their middle. It may be called
	// several times at once, and must return soon. The native driver calls it, for the
	// network of a command of its own alone; others do not.
	Refused func(Denial)

	// Starting, if not nil, is called once set-up is under way: what takes time and
	// must be in place while the command runs has its place there. The command has not
	// begun when it returns. It is not called if set-up fails early.
	Starting func()

	// Made, if not nil, is called with the process once it can be ended, where Start waits
	// for more than that: for a file system that does not answer, or a session's holder.
	// If Start fails after that nothing is left of it.
	Made func(Process)
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

	// Halted has what passes signals on to the command, and tells of its end, continue if
	// somebody stopped it, and reports for how long that did not help: nobody who is asked
	// to end obeys then. It is 0 if it runs, or where that cannot be told.
	Halted() time.Duration

	Changeable
}

// Changeable is what a Process and a Sandbox have in common. Each method is
// errors.ErrUnsupported where the driver has no means; see [Fixed].
type Changeable interface {
	// Reload puts other network rules in place: for new connections, and those that
	// they refuse end. After an error the last good ones stay.
	Reload(e policy.Egress) error

	// Layer hands over the directory that holds what was changed at the
	// policy's path with Overlay, in the form of the kernel's overlayfs. It can
	// be read for as long as the file is open, also when nothing of the sandbox
	// is left. It is called at most once, by whom the file then belongs to: after
	// Wait of a Process, and before Close of a Sandbox. It is nil if no path has
	// Overlay. A Process's file that nobody takes is open until the garbage collector
	// finds the Process.
	Layer() (*os.File, error)
}

// Fixed is embedded by a Process or a Sandbox of which nothing can change, and that is
// complete from the start.
type Fixed struct{}

// Completed is nil.
func (Fixed) Completed() error { return nil }

// Halted is 0.
func (Fixed) Halted() time.Duration { return 0 }

// Reload is ErrUnsupported.
func (Fixed) Reload(policy.Egress) error { return errors.ErrUnsupported }

// Layer is ErrUnsupported.
func (Fixed) Layer() (*os.File, error) { return nil, errors.ErrUnsupported }

// A Sandbox is one that stays until it is closed, or until the process that
// opened it ends. Its methods may be called at the same time.
type Sandbox interface {
	// Exec starts a command beside those that run. Arguments are required;
	// an environment of nil, an empty working directory and a nil rlimit list
	// are those of the policy. The other fields of the process are the
	// policy's and must be empty, but for the terminal.
	//
	// Everything is confined by birth: the command is a child of the sandbox's
	// own init. What it leaves running stays when it ends, so that Wait of the
	// Process returns with the command, unless Terminate or Kill was called:
	// they end all that the command started, and Wait waits for that.
	Exec(ctx context.Context, process *specs.Process, stdio Stdio) (Process, error)

	// ExecWithin is Exec with limits on memory, cpu and processes for this
	// command and all that it starts, for as long as anything of that is left.
	// They hold within the sandbox's own, which hold too: a limit that the
	// sandbox has not, or that is larger than the sandbox's, is a
	// *policy.InvalidError. What the driver cannot limit for one command is an
	// *UnsupportedError. Limits of nil are none.
	ExecWithin(ctx context.Context, process *specs.Process, limits *specs.LinuxResources, stdio Stdio) (Process, error)

	// Status is what was counted since Open, of all commands together. With a Signal and
	// OOMKilled, the sandbox itself was ended for its memory.
	Status() (*Status, error)

	// Completed waits until the sandbox is complete: one that was prepared need not be
	// when it is handed out. After an error, which is ErrIncomplete, nothing is left of
	// it.
	Completed() error

	// Done is closed when nothing of the sandbox is left, because of Close or
	// because its init died.
	Done() <-chan struct{}

	// End ends everything in the sandbox. When it returns nothing is left to run;
	// what the host keeps of the sandbox goes by itself, and Close waits for that.
	End() error

	// Close ends everything in the sandbox at once and waits until it is gone.
	Close() error

	Changeable
}

// A Prepared is a sandbox in which nothing has run yet. Its methods may be called
// at the same time.
type Prepared interface {
	// Complete makes of it the sandbox that Open would make of the policy; the
	// Prepared is that from then on, and not to be used any more. It is
	// ErrMismatch, and changes nothing, if what is prepared is not part of what
	// the policy asks for. After any other error nothing is left: ErrIncomplete
	// if the host's files are not what they were when it was prepared.
	//
	// It may return before the sandbox is complete; see [Sandbox.Completed]. The first Exec
	// waits for that and, if it could not be completed, fails with ErrIncomplete
	// and the reason: nothing has run, and nothing is left.
	Complete(ctx context.Context, p *policy.Policy) (Sandbox, error)

	// Check reports an error if it does not answer.
	Check(ctx context.Context) error

	// Done and Close are those of a Sandbox.
	Done() <-chan struct{}
	Close() error
}

// ErrMismatch says that a prepared sandbox is not one for a policy.
var ErrMismatch = errors.New("prepared for another policy")

// ErrIncomplete says that a prepared sandbox could not be completed. One that is
// built from nothing may come about all the same.
var ErrIncomplete = errors.New("the prepared sandbox could not be completed")

// Status is what a driver recorded of a process that ended.
type Status struct {
	// Exited holds the command's exit code, or Signal the signal that ended
	// it; Signal is 0 if it exited.
	ExitCode int
	Signal   syscall.Signal

	// EndedFirst says that the command had ended before anything that Terminate or
	// Kill did: neither was called, or the end had only not been noticed yet. A
	// driver that cannot tell leaves it false.
	EndedFirst bool `json:",omitempty"`

	// OOMKilled reports that the kernel's out-of-memory killer ended a process
	// of the sandbox at its memory limit, from the cgroup's own count.
	OOMKilled bool

	// OOMBy says who was short of memory if it was not the sandbox: a group above it,
	// with its limit, or the host. A driver that cannot tell leaves it "".
	OOMBy string `json:",omitempty"`

	// PidsDenied counts forks that failed at the process limit.
	PidsDenied uint64
	// PidsBy says whose limit that was if it was not the policy's.
	PidsBy string `json:",omitempty"`

	// StorageFull reports that the private storage had no room left, when the command
	// ended or when it was looked at before.
	StorageFull bool `json:",omitempty"`

	// NetworkTried reports that the command, which failed, asked for a name or an address
	// while it had no network. Only the native driver can tell.
	NetworkTried bool `json:",omitempty"`

	Layers   policy.Layers // enforced in this run
	Degraded policy.Layers // agreed to go without, and missing

	// Unwatched names the memory of the kernel that counts towards no memory limit and
	// that nothing watched, in a run that has such a limit: see [Unwatched].
	Unwatched []string `json:",omitempty"`

	Usage   Usage
	Denials []Denial
	Network *Network // nil without an egress gateway

	// Pooled says that the sandbox was ready before it was asked for.
	Pooled bool

	// SetupNanos is the time from Start to the command's execve(2).
	SetupNanos int64
}

// The memory of the kernel that no cgroup counts.
const (
	Netlink   = "netlink" // what waits unread in netlink sockets
	FileLocks = "locks"   // locks of files
)

// Unwatched returns what of kinds is to be told of: all, if the layers have a memory
// limit, beside which it comes. Without that, the limit itself is missing.
func Unwatched(l policy.Layers, kinds ...string) []string {
	if !l.Has(policy.LayerCgroupMemory) {
		return nil
	}
	return kinds
}
