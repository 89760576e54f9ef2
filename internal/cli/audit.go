package cli

import (
	"os"

	"github.com/sbxrun/sbxrun/audit"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/profiles"
)

// openAudit opens the log that the operator asked for.
func openAudit(r *profiles.Resolved, f *facts) (*audit.Log, error) {
	a := r.Operator.Audit
	l, err := audit.Open(audit.Config{File: a.File, MaxSize: a.MaxSize, Keep: a.Keep}, audit.NewRedactor(append(os.Environ(), r.Policy.OCI.Process.Env...)))
	return l, invalid(err)
}

// record writes a run down, one that did not come about too. A run of which there
// is no record counts as failed: who asked for the log wants to know.
func record(l *audit.Log, o *options, r *profiles.Resolved, res *driver.Result, failed error) error {
	if res == nil {
		res = &driver.Result{}
		driver.Fail(res, failed)
	}
	sandboxed := res.Sandboxed && res.Reason != driver.ReasonSetup
	return l.Run(audit.Record{Source: "run", Command: o.req.Command, Cwd: r.Policy.OCI.Process.Cwd, Profile: r.Policy.Profile, Driver: res.Driver, Sandboxed: sandboxed},
		audit.OutcomeOf(res), res.Denials)
}
