package engine

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/seccomp"
)

// A DryRun is what would run, by what.
type DryRun struct {
	Drivers   []string       `json:"drivers"` // in the order in which they would be tried
	Driver    string         `json:"driver"`  // the one that would be chosen here, "" if none
	Sandboxed bool           `json:"sandboxed"`
	Error     string         `json:"error,omitempty"`
	Hint      string         `json:"hint,omitempty"`
	Layers    policy.Layers  `json:"layers"` // that the run would require
	Degrade   policy.Layers  `json:"degrade"`
	Policy    *policy.Policy `json:"policy"`
	Lowered   any            `json:"lowered,omitempty"` // what the driver makes of it: arguments, a profile
}

// DryRunOf finds out what would run by a driver, or why none was chosen, and starts nothing.
func DryRunOf(f *Facts, r *profiles.Resolved, kept []profiles.Keep, d driver.Driver, err error) *DryRun {
	out := &DryRun{Drivers: r.Drivers, Layers: r.Policy.Require, Degrade: r.Policy.Degrade, Policy: r.Policy}
	if err != nil {
		out.Error, out.Hint = err.Error(), driver.HintOf(err)
	} else {
		out.Driver, out.Sandboxed = d.Name(), d.Sandboxed()
		d = Fit(d, f, r, false, nil)
		p := unmade(r.Policy, kept)
		if err := d.Check(p); err != nil {
			out.Error, out.Hint = err.Error(), driver.HintOf(err)
		}
		if out.Lowered, err = d.Lowered(p); err != nil && err != errors.ErrUnsupported && out.Error == "" {
			out.Error, out.Hint = err.Error(), driver.HintOf(err)
		}
	}
	return out
}

// unmade is a policy without the kept directories that a run would make first.
func unmade(p *policy.Policy, kept []profiles.Keep) *policy.Policy {
	q, oci := *p, *p.OCI
	oci.Mounts = slices.DeleteFunc(slices.Clone(oci.Mounts), func(m specs.Mount) bool {
		_, err := os.Lstat(m.Source)
		return errors.Is(err, fs.ErrNotExist) && slices.ContainsFunc(kept,
			func(k profiles.Keep) bool { return k.Source == m.Source })
	})
	q.OCI = &oci
	return &q
}

// Lowered is what the first driver that would be tried hands on to another program.
func Lowered(f *Facts, r *profiles.Resolved) (any, error) {
	for _, d := range Drivers(f) {
		if d.Name() != r.Drivers[0] {
			continue
		}
		if v, err := Fit(d, f, r, false, nil).Lowered(r.Policy); err != errors.ErrUnsupported {
			return v, err
		}
	}
	return nil, Usage("driver "+r.Drivers[0]+" hands nothing on to another program",
		"for example: sbxrun spec --lowered --driver seatbelt")
}

// OCI is a policy as an OCI runtime takes it, and what is left out.
func OCI(p *policy.Policy) (*specs.Spec, []string, error) {
	opt := policy.OCIOptions{Exists: func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}}
	if p.Seccomp != "" {
		s, err := seccomp.Spec(p.Seccomp)
		if err != nil {
			return nil, nil, err
		}
		opt.Seccomp = s
	}
	spec, left := p.ToOCI(opt)
	return spec, left, nil
}
