package driver

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// Reason says how a run ended. It is established from what was recorded: the
// kernel's own counters and who sent the kill, never guessed from SIGKILL.
type Reason string

// Why a run ended.
const (
	ReasonExit     Reason = "exit"     // the command exited
	ReasonSignal   Reason = "signal"   // a signal ended it that sbxrun did not send
	ReasonTimeout  Reason = "timeout"  // the wall time limit ended it
	ReasonOOM      Reason = "oom"      // it was killed for memory: for the limit's sake, or see Result.OOMBy
	ReasonPids     Reason = "pids"     // it failed after the process limit refused it forks
	ReasonOutput   Reason = "output"   // the output limit ended it, where one is set to
	ReasonSetup    Reason = "setup"    // it never started
	ReasonLost     Reason = "lost"     // it may have begun, and how it ended is not known
	ReasonCanceled Reason = "canceled" // the caller ended it
	ReasonDetached Reason = "detached" // it has not ended: the caller left it to its session
)

// Exit codes that sbxrun gives of its own; see timeout(1) and env(1).
const (
	ExitLost          = 123 // the command may have run, and its end, its result or its changes are lost
	ExitTimeout       = 124
	ExitSetup         = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitSignalBase    = 128
)

// A Result is what happened and what was enforced while it did.
type Result struct {
	ExitCode        int           `json:"exit_code"`
	Signal          string        `json:"signal,omitempty"`
	Reason          Reason        `json:"reason"`
	OOMBy           string        `json:"oom_by,omitempty"`       // who was short of memory, if not the sandbox at its limit
	PidsBy          string        `json:"pids_by,omitempty"`      // whose limit refused processes, if not the policy's
	StorageFull     bool          `json:"storage_full,omitempty"` // see Status.StorageFull
	NetworkTried    bool          `json:"network_tried,omitempty"`
	Stdout          string        `json:"stdout"`
	Stderr          string        `json:"stderr"`
	StdoutTruncated bool          `json:"stdout_truncated"`
	StderrTruncated bool          `json:"stderr_truncated"`
	DurationMS      float64       `json:"duration_ms"`
	SetupMS         float64       `json:"setup_ms"`
	Sandboxed       bool          `json:"sandboxed"`
	Driver          string        `json:"driver"`
	Pooled          bool          `json:"pooled,omitempty"` // the sandbox was ready before it was asked for
	Profile         string        `json:"profile"`
	Layers          policy.Layers `json:"layers"`
	Degraded        policy.Layers `json:"degraded"`
	Unwatched       []string      `json:"unwatched,omitempty"` // see Status.Unwatched
	Usage           Usage         `json:"usage"`
	Denials         []Denial      `json:"denials"`
	Network         *Network      `json:"network,omitempty"`      // in egress mode proxy
	Changes         *Changes      `json:"changes,omitempty"`      // with a copy-on-write workspace
	Dependencies    []Dependency  `json:"dependencies,omitempty"` // that were installed first

	// Error and Hint are set when sbxrun itself failed (reason "setup" or "lost").
	Error string `json:"error,omitempty"`
	Code  Code   `json:"error_code,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// Usage is what the sandbox used. A value that the host could not tell is 0.
type Usage struct {
	MemoryPeakBytes uint64  `json:"memory_peak_bytes"` // memory.peak of the cgroup, else the largest process's resident set
	CPUUserMS       float64 `json:"cpu_user_ms"`
	CPUSystemMS     float64 `json:"cpu_system_ms"`
	PidsPeak        uint64  `json:"pids_peak,omitempty"`
	ThrottledMS     float64 `json:"cpu_throttled_ms,omitempty"` // time that cpu.max held it back
	OOMKills        uint64  `json:"oom_kills,omitempty"`
	PidsDenied      uint64  `json:"pids_denied,omitempty"` // forks refused at the limit
}

// Changes tells what became of a copy-on-write workspace.
type Changes struct {
	ID        string `json:"id,omitempty"` // of the change set; "" if nothing was changed
	Workspace string `json:"workspace"`
	Added     int    `json:"added"`
	Modified  int    `json:"modified"`
	Deleted   int    `json:"deleted"`
	Skipped   int    `json:"skipped"` // what no change set can hold, such as sockets

	// Full reports that the storage for changes was full when the command ended.
	Full bool `json:"full,omitempty"`

	// Error says why the changes were not kept, in which case they are lost.
	Error string `json:"error,omitempty"`
}

// A Dependency is an installation that came before the command.
type Dependency struct {
	Manager  string `json:"manager"`
	File     string `json:"file"` // that names what is needed
	Command  string `json:"command"`
	ExitCode *int   `json:"exit_code"` // nil if it did not come to that, or not to its end
}

// Network is what went through the egress gateway. Bytes are those of the
// connections' contents.
type Network struct {
	Connections   uint64 `json:"connections"` // let through
	Denied        uint64 `json:"denied"`
	Failed        uint64 `json:"failed"` // let through, and not reached
	Lookups       uint64 `json:"lookups"`
	LookupsDenied uint64 `json:"lookups_denied"`
	BytesSent     uint64 `json:"bytes_sent"`
	BytesReceived uint64 `json:"bytes_received"`

	// Failure says why the first of those that Failed counts was not reached:
	// "files.example.org:443: no such name".
	Failure string `json:"failure,omitempty"`

	// Log holds every request, in the order of their ends, if the policy asks
	// for it: the first thousand. LogDropped counts the rest.
	Log        []Request `json:"log,omitempty"`
	LogDropped uint64    `json:"log_dropped,omitempty"`

	// Error says why the gateway stopped before the command did; nothing got
	// through from then on.
	Error string `json:"error,omitempty"`
}

// A Request is one decision of the egress gateway, or a connection that ended.
// Its texts are printable, whatever the command sent.
type Request struct {
	Time          time.Time `json:"time"`
	Route         string    `json:"route"`             // transparent, connect, http, socks, dns
	Target        string    `json:"target"`            // NAME:PORT; for dns the name
	Address       string    `json:"address,omitempty"` // that was dialled
	Verdict       string    `json:"verdict"`           // allow, deny, error
	Rule          string    `json:"rule,omitempty"`
	Reason        string    `json:"reason,omitempty"`
	BytesSent     int64     `json:"bytes_sent"`
	BytesReceived int64     `json:"bytes_received"`
	DurationMS    float64   `json:"duration_ms"`
}

// SignalName returns the signal's name as kill -l prints it: "SIGTERM".
func SignalName(s syscall.Signal) string {
	if s >= 0 && int(s) < len(signalNames) && signalNames[s] != "" {
		return signalNames[s]
	}
	return fmt.Sprintf("SIG%d", int(s))
}

// signalNames is no map, which every start would fill.
var signalNames = [...]string{
	syscall.SIGABRT: "SIGABRT", syscall.SIGALRM: "SIGALRM", syscall.SIGBUS: "SIGBUS",
	syscall.SIGCHLD: "SIGCHLD", syscall.SIGCONT: "SIGCONT", syscall.SIGFPE: "SIGFPE",
	syscall.SIGHUP: "SIGHUP", syscall.SIGILL: "SIGILL", syscall.SIGINT: "SIGINT",
	syscall.SIGIO: "SIGIO", syscall.SIGKILL: "SIGKILL", syscall.SIGPIPE: "SIGPIPE",
	syscall.SIGPROF: "SIGPROF", syscall.SIGQUIT: "SIGQUIT", syscall.SIGSEGV: "SIGSEGV",
	syscall.SIGSTOP: "SIGSTOP", syscall.SIGSYS: "SIGSYS", syscall.SIGTERM: "SIGTERM",
	syscall.SIGTRAP: "SIGTRAP", syscall.SIGTSTP: "SIGTSTP", syscall.SIGTTIN: "SIGTTIN",
	syscall.SIGTTOU: "SIGTTOU", syscall.SIGURG: "SIGURG", syscall.SIGUSR1: "SIGUSR1",
	syscall.SIGUSR2: "SIGUSR2", syscall.SIGVTALRM: "SIGVTALRM", syscall.SIGWINCH: "SIGWINCH",
	syscall.SIGXCPU: "SIGXCPU", syscall.SIGXFSZ: "SIGXFSZ",
}

// Code is a stable, machine-readable kind of failure.
type Code string

// The codes of errors that sbxrun itself reports.
const (
	CodeUnavailable    Code = "ENVIRONMENT_UNAVAILABLE"
	CodeCreationFailed Code = "ENVIRONMENT_CREATION_FAILED"
	CodeTimeout        Code = "EXECUTION_TIMEOUT"
	CodeLost           Code = "EXECUTION_LOST"
	CodeImagePull      Code = "IMAGE_PULL_FAILED"
	CodeUnsupported    Code = "POLICY_UNSUPPORTED"
	CodeInvalid        Code = "POLICY_INVALID"
	CodeLimitExceeded  Code = "LIMIT_EXCEEDED"
)

// UnavailableError says that a driver, or a layer that the policy requires,
// cannot be had on this host.
type UnavailableError struct {
	What  string // "native driver", "layer cgroup.memory"
	Cause string // why, in words
	Fix   string // the exact thing to do, completing "hint: …"
	Err   error  // what the system said, or nil
}

func (e *UnavailableError) Error() string {
	s := e.What + " is not available: " + e.Cause
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns what the system said.
func (e *UnavailableError) Unwrap() error { return e.Err }

// UnsupportedError names the parts of a policy that a driver cannot enforce.
type UnsupportedError struct {
	Driver string
	Rules  []string // dotted names of policy fields, with their values
	Fix    string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("driver %s cannot enforce %s", e.Driver, strings.Join(e.Rules, ", "))
}

// LostError says that a command may have begun, and that how it ended is not known:
// what watched it has gone. Whoever takes it for [SetupError] runs it twice.
type LostError struct {
	Err error
	Fix string // beside what Hint says of every such error
}

func (e *LostError) Error() string {
	return e.Err.Error() + "; the command may have run, and how it ended is not known"
}

// Unwrap returns what happened.
func (e *LostError) Unwrap() error { return e.Err }

// Code returns the error's code.
func (e *LostError) Code() Code { return CodeLost }

// Hint says what to do.
func (e *LostError) Hint() string {
	hint := "look at what it has done before you run it again"
	if fix := cmp.Or(e.Fix, HintOf(e.Err)); fix != "" {
		hint += "; " + fix
	}
	return hint
}

// SetupError says that a driver could not build the sandbox.
type SetupError struct {
	Driver string
	Err    error
	Fix    string
}

func (e *SetupError) Error() string { return "set-up: " + e.Err.Error() }

// Unwrap returns what failed.
func (e *SetupError) Unwrap() error { return e.Err }

// FixKeys is the Fix where the kernel has no key left for a session keyring.
const FixKeys = "this user has as many keys as the kernel allows (/proc/key-users), and each sandbox takes one: " +
	"run fewer at once, or sysctl -w kernel.keys.maxkeys=2000 (as root)"

// ErrSandboxGone says that a sandbox which was to stay has ended.
var ErrSandboxGone = errors.New("the sandbox has ended")

// CommandError says that the command itself could not be started: it does not
// exist in the sandbox, or cannot be executed there. The boundary held.
type CommandError struct {
	Command string
	Err     error // ENOENT, EACCES, ENOEXEC, …
	Fix     string
}

func (e *CommandError) Error() string { return quote.Inside(e.Command) + ": " + e.Err.Error() }

// Unwrap returns what execve(2) said.
func (e *CommandError) Unwrap() error { return e.Err }

// HeldBack reports whether a limit of so many processors bound a run, by what the
// kernel counted: it used up most of what it was given, and was held back for half as
// long as it ran or longer. The kernel counts the latter on each processor, so that
// alone tells little where there are many. What is over soon needs no word.
func (r *Result) HeldBack(cpus float64) bool {
	const soon, most = 5000, 0.8
	u := &r.Usage
	return cpus > 0 && r.DurationMS > soon && u.ThrottledMS > r.DurationMS/2 &&
		u.CPUUserMS+u.CPUSystemMS > most*cpus*r.DurationMS
}
