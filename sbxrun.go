// Package sbxrun runs commands that nobody trusts in sandboxes. It reads as os/exec
// does:
//
//	out, err := sbxrun.Command("make", "test").Output()
//
// runs make in a sandbox with the profile strict: the system is read-only, the home
// and /tmp are private and empty, the current directory is the writable workspace,
// there is no network, and memory, processors, processes and time are limited.
// [Cmd.Options] changes that, as the flags of the program sbxrun do. If this host
// cannot provide a layer, the command does not run, and the error says which layer
// and what to do; see [HintOf].
//
// A command that ended otherwise than with exit code 0 is an [*ExitError]. Either way
// [Cmd.Result] says how it ended, what it used, which layers held and what was refused.
//
// The user's and the system's configuration files and the variables SBXRUN_* count as
// they do for the program, its audit log too. A project's own .sbxrun.yaml can only
// tighten. No command can write the file of the program that runs it.
//
// Differences to the program: no self-test runs before the first command on a host
// ([Doctor] runs it), sandboxes of a server are not used, and Options.Seccomp names
// a built-in filter. With Workspace "overlay" the changes are a change set, which
// sbxrun diff, apply and discard know by the ID in [Result].Changes.
package sbxrun

import (
	"context"
	"fmt"
	"runtime"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/workspace"
)

// Options are what a command asks of its sandbox, in the words of the flags of sbxrun
// run. The zero Options are the profile strict. Command and Dir are the [Cmd]'s: what
// is set of them here is not read. Env adds to what the profile passes, unless the Cmd
// has an Env.
type Options = profiles.Request

// A Result says how a command ended and what held it. Stdout and Stderr are empty but
// after [Cmd.Output] and [Cmd.CombinedOutput].
type Result = driver.Result

// HintOf says what to do about an error of this package's, "" if nothing is known.
func HintOf(err error) string { return engine.HintOf(err) }

// An ExitError is a command that ran, and did not end with exit code 0.
type ExitError struct {
	Result *Result
	Stderr []byte // what it wrote there, if Output was called and Cmd.Stderr was nil
}

func (e *ExitError) Error() string {
	switch r := e.Result; r.Reason {
	case driver.ReasonExit:
		return fmt.Sprintf("exit status %d", r.ExitCode)
	case driver.ReasonSignal:
		return "signal: " + r.Signal
	case driver.ReasonTimeout:
		return "the time limit ended the command"
	case driver.ReasonOOM:
		return "the memory limit ended the command"
	case driver.ReasonPids:
		return "the command failed after the limit on processes refused it one"
	case driver.ReasonCanceled:
		return "the command was cancelled"
	case driver.ReasonLost:
		return "the command may have run, and how it ended is not known"
	default:
		return string(r.Reason)
	}
}

// ExitCode is the exit code of the program sbxrun for this end: the command's own, 128
// and the number of the signal that ended it, or 124 for the time limit.
func (e *ExitError) ExitCode() int { return e.Result.ExitCode }

// prepared is a sandbox that was asked for, and nothing has been built of.
type prepared struct {
	policy *policy.Policy
	driver driver.Driver
	log    *audit.Log
	facts  *engine.Facts // nil for a command in a session, whose changes are the session's
}

// prepare makes a policy of options and chooses what enforces it.
func prepare(ctx context.Context, o *Options) (*prepared, error) {
	if err := engine.Enough(); err != nil {
		return nil, err
	}
	if o.Terminal {
		return nil, &driver.UnsupportedError{Driver: "package sbxrun", Rules: []string{"a terminal"},
			Fix: "execute the program sbxrun with --tty"}
	}
	f, err := engine.LibraryFacts(o.Dir)
	if err != nil {
		return nil, err
	}
	r, err := engine.Resolve(o, f)
	if err != nil {
		return nil, err
	}
	if l := r.Policy.OCI.Linux; l != nil && l.Seccomp != nil {
		return nil, &driver.UnsupportedError{Driver: "package sbxrun", Rules: []string{"a system call filter of one's own"},
			Fix: "name a built-in filter in Options.Seccomp (strict, production, default), or execute the program sbxrun, which has a compiler"}
	}
	log, err := engine.OpenAudit(&r.Operator, r.Policy.OCI.Process.Env)
	if err != nil {
		return nil, err
	}
	d, err := engine.Select(ctx, f, r, o.Require, nil)
	if err != nil {
		return nil, err
	}
	return &prepared{policy: r.Policy, driver: engine.Fit(d, f, r, false, nil), log: log, facts: f}, nil
}

// run runs a command, with a record of it if there is to be one.
func (p *prepared) run(ctx context.Context, ro driver.RunOptions) (*Result, error) {
	if !p.driver.Sandboxed() {
		// The host driver's commands die with the thread that started them
		// (golang.org/issue/27505).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	process := p.policy.OCI.Process
	record := audit.Record{Source: "go", Command: process.Args, Cwd: process.Cwd, Profile: p.policy.Profile}
	return engine.Recorded(p.log, record, func() (*Result, error) {
		if p.facts == nil {
			return driver.Run(ctx, p.driver, p.policy, ro)
		}
		kept, err := engine.KeepChanges(p.facts, p.policy, workspace.Info{ID: engine.ChangesID(), Command: process.Args})
		if err != nil {
			return driver.Fail(&Result{Profile: p.policy.Profile}, err)
		}
		if kept == nil {
			return driver.Run(ctx, p.driver, p.policy, ro)
		}
		defer kept.Close()
		began := ro.Started
		ro.Started = func(proc driver.Process) func() {
			began(proc)
			return kept.Started(proc)
		}
		res, err := driver.Run(ctx, p.driver, p.policy, ro)
		return res, kept.Into(res, err)
	})
}
