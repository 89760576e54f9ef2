// Package reexec starts the second stage of a sandbox and speaks with it.
//
// The second stage is the process that becomes PID 1 of the sandbox. It is
// cloned straight into its namespaces, does the set-up there, starts the
// command, reaps orphans, forwards signals, and ends everything when the
// command ends or when its supervisor is gone.
//
// Runtimes written in Go usually re-execute themselves for this, because a
// cloned child has no Go runtime, and pay a second start of the runtime on each
// run (0.6 to 1.0 ms here, a quarter of a whole run). This stage does without
// one: it stays a clone, which shares the supervisor's memory, and walks programs
// of system calls (internal/sys) that the supervisor prepared, where it could
// allocate and fail in comfort. So the plan of a set-up is data. It can be
// printed and compared, and a test can fail or stop it at any step.
//
// Sharing memory with a supervisor is safe as long as nobody in the sandbox gets
// at the stage. It keeps its capabilities in the sandbox's user namespace, and a
// process may be traced, or looked into through /proc, only by one that has no
// fewer (cap_ptrace_access_check in security/commoncap.c); the command has none.
// Who builds a sandbox hides /proc/1 as well, of which the command line is open
// to everyone.
//
// # Protocol
//
// Supervisor and stage share a SOCK_SEQPACKET pair; each message is one packet
// of fixed size. The supervisor sends Go once the cgroups exist, then requests
// to signal. The stage sends at most one Terminal message with the master of
// the command's terminal, then exactly one final message: Failed, or Exited
// after no process but itself is left. Anything else, a packet of another size
// among them, is an error, and the stage is killed.
//
// A stage that serves (MaxJobs) has no command of its own. Each [Job] is a
// program and the descriptors for it, which travel with the request; the stage
// vforks and runs it as it would its own command, tells when it has started or
// failed, and later that it has ended. What a job leaves running lives on until
// End. So every command of a session is born in the sandbox: nothing ever enters
// one from outside by setns(2).
//
// The end of the stream is the protocol too: when the supervisor dies, however
// it dies, the stage reads end of file, kills every process, removes the
// cgroups and exits. PR_SET_PDEATHSIG could not do that: it speaks when the thread that
// cloned the stage ends (golang.org/issue/27505). It has another use here: with SIGCONT
// it wakes a stage that somebody stopped, and harms none that runs.
package reexec

import (
	"fmt"
	"syscall"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// A StepError says which step of a set-up failed. It is the second stage's own
// report; nothing is left of the sandbox when it arrives.
type StepError struct {
	Stage  string // "clone", "init" or "command"
	Index  int    // of the step in its program
	Op     string // the system call
	Layer  uint32 // which the step makes, as the program numbers them; 0 is none
	Object string // what the step was about; may be empty
	Origin string // what asked for it ("flag --ro"); may be empty
	Errno  syscall.Errno
}

func (e *StepError) Error() string {
	s := fmt.Sprintf("%s[%d]", e.Op, e.Index)
	if e.Object != "" {
		s += " " + quote.Inside(e.Object)
	}
	if e.Origin != "" {
		s += " (" + quote.Line(e.Origin) + ")"
	}
	return s + ": " + e.Errno.Error()
}

// Unwrap returns the errno.
func (e *StepError) Unwrap() error { return e.Errno }

// An ExecError says that execve(2) refused the command: the sandbox was
// complete and held, but there was nothing to run in it.
type ExecError struct {
	Errno syscall.Errno
	Else  bool // the other program of [Else] was tried, too
}

func (e *ExecError) Error() string { return e.Errno.Error() }

// Unwrap returns the errno.
func (e *ExecError) Unwrap() error { return e.Errno }

// A ProtocolError says that the second stage did not keep to the protocol, or
// died before it could report.
type ProtocolError struct {
	What string
}

func (e *ProtocolError) Error() string { return "second stage: " + e.What }
