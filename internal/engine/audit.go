package engine

import (
	"os"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/profiles"
)

// OpenAudit opens the log that the operator asked for, nil if there is none. Env is
// the command's.
func OpenAudit(op *profiles.Operator, env []string) (*audit.Log, error) {
	a := op.Audit
	if a.File == "" {
		return nil, nil
	}
	l, err := audit.Open(audit.Config{File: a.File, MaxSize: a.MaxSize, Keep: a.Keep},
		audit.NewRedactor(append(os.Environ(), env...)))
	return l, Invalid(err)
}

// Recorded runs what has a record. It is written for a run that did not come about
// too; one of which there is none counts as failed: who asked for the log wants to
// know.
func Recorded(l *audit.Log, r audit.Record, run func() (*driver.Result, error)) (*driver.Result, error) {
	if l != nil {
		if err := l.Begin(&r); err != nil {
			return nil, err
		}
	}
	res, err := run()
	if l == nil {
		return res, err
	}
	out := res
	if out == nil {
		out = &driver.Result{Driver: r.Driver, Profile: r.Profile}
		driver.Fail(out, err)
	}
	r.Driver, r.Sandboxed = out.Driver, out.Sandboxed && out.Reason != driver.ReasonSetup
	if failed := l.Run(r, audit.OutcomeOf(out), out.Denials); failed != nil && err == nil {
		res.ExitCode, res.Error, res.Code, res.Hint = driver.ExitLost, failed.Error(), driver.CodeOf(failed),
			driver.HintOf(failed)
		err = failed
	}
	return res, err
}
