package cli

import (
	"os"

	"github.com/sbxrun/sbxrun/policy"
)

// dryRun is what --dry-run prints: what would run, by what.
type dryRun struct {
	Drivers []string       `json:"drivers"` // in the order in which they would be tried
	Driver  string         `json:"driver"`  // the one that would be chosen here, "" if none
	Error   string         `json:"error,omitempty"`
	Hint    string         `json:"hint,omitempty"`
	Layers  policy.Layers  `json:"layers"` // that the run would require
	Degrade policy.Layers  `json:"degrade"`
	Policy  *policy.Policy `json:"policy"`
}

func (o *options) printDryRun(p *policy.Policy, names []string, f *facts) error {
	out := dryRun{Drivers: names, Layers: p.Require, Degrade: p.Degrade, Policy: p}
	b, err := encode(out, true)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}
