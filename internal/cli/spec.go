package cli

import (
	"context"
	"os"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// dryRun is what --dry-run prints: what would run, by what.
type dryRun struct {
	Drivers   []string       `json:"drivers"` // in the order in which they would be tried
	Driver    string         `json:"driver"`  // the one that would be chosen here, "" if none
	Sandboxed bool           `json:"sandboxed"`
	Error     string         `json:"error,omitempty"`
	Hint      string         `json:"hint,omitempty"`
	Layers    policy.Layers  `json:"layers"` // that the run would require
	Degrade   policy.Layers  `json:"degrade"`
	Policy    *policy.Policy `json:"policy"`
}

// printDryRun says what would run, and starts nothing.
func (o *options) printDryRun(ctx context.Context, r *profiles.Resolved, f *facts) error {
	out := dryRun{Drivers: r.Drivers, Layers: r.Policy.Require, Degrade: r.Policy.Degrade, Policy: r.Policy}
	d, err := selectDriver(ctx, f, r.Drivers, r.Policy, o.req.Require)
	if err != nil {
		out.Error, out.Hint = err.Error(), driver.HintOf(err)
	} else {
		out.Driver, out.Sandboxed = d.Name(), d.Sandboxed()
	}
	return printJSON(out)
}

func printJSON(v any) error {
	b, err := encode(v, true)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}
