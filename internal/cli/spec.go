package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/seccomp"
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
	Lowered   any            `json:"lowered,omitempty"` // what the driver makes of it: arguments, a profile
}

// printDryRun says what would run, and starts nothing.
func (o *options) printDryRun(ctx context.Context, r *profiles.Resolved, f *facts) error {
	out := dryRun{Drivers: r.Drivers, Layers: r.Policy.Require, Degrade: r.Policy.Degrade, Policy: r.Policy}
	d, err := selectDriver(ctx, f, r, o.req.Require)
	if err != nil {
		out.Error, out.Hint = err.Error(), driver.HintOf(err)
	} else {
		out.Driver, out.Sandboxed = d.Name(), d.Sandboxed()
		d = fit(d, f, r, false)
		p := unmade(r.Policy, o.req.Kept)
		if err := d.Check(p); err != nil {
			out.Error, out.Hint = err.Error(), driver.HintOf(err)
		}
		if out.Lowered, err = d.Lowered(p); err != nil && err != errors.ErrUnsupported && out.Error == "" {
			out.Error, out.Hint = err.Error(), driver.HintOf(err)
		}
	}
	return PrintJSON(out)
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

// PrintJSON prints a value for programs, and for people who pass it on.
func PrintJSON(v any) error {
	b, err := engine.EncodeJSON(v, true)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}

func newSpec() *cobra.Command {
	o := &options{}
	oci, lowered := false, false
	c := &cobra.Command{
		Use:   "spec [flags] [--] [CMD [ARG...]]",
		Short: "Print the policy of a run as JSON",
		Long: `Print the policy that a run with these flags would have, as JSON, and run
nothing. With --oci it is a configuration for OCI runtimes alone (config.json),
below an empty root file system "rootfs"; what such a runtime cannot enforce is
named on stderr. With --lowered it is what the driver makes of the policy: the
profile of seatbelt, the arguments of docker. The command is sh if none is given.`,
		Example:               "  sbxrun spec --memory 1g -- make test\n  mkdir -p bundle/rootfs && sbxrun spec --oci -- make test > bundle/config.json\n  sudo runc run -b bundle test",
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"sh"}
			}
			r, f, err := o.resolveHere(args...)
			if err != nil {
				return err
			}
			if oci {
				return printOCI(r.Policy)
			}
			if lowered {
				return printLowered(r, f)
			}
			return PrintJSON(r.Policy)
		},
	}
	fs := c.Flags()
	fs.SetInterspersed(false)
	fs.SortFlags = false
	fs.BoolVar(&oci, "oci", false, "print a configuration for OCI runtimes only")
	fs.BoolVar(&lowered, "lowered", false, "print what the driver makes of the policy")
	o.policyFlags(fs)
	o.voiceFlags(fs)
	return c
}

// printLowered prints what the first driver that would be tried hands on.
func printLowered(r *profiles.Resolved, f *facts) error {
	for _, d := range engine.Drivers(f) {
		if d.Name() != r.Drivers[0] {
			continue
		}
		v, err := fit(d, f, r, false).Lowered(r.Policy)
		if err == errors.ErrUnsupported {
			break
		}
		if err != nil {
			return err
		}
		if s, ok := v.(fmt.Stringer); ok {
			_, err := io.WriteString(os.Stdout, s.String())
			return err
		}
		return PrintJSON(v)
	}
	return engine.Usage("driver "+r.Drivers[0]+" hands nothing on to another program",
		"for example: sbxrun spec --lowered --driver seatbelt")
}

// printOCI prints the policy as an OCI runtime takes it.
func printOCI(p *policy.Policy) error {
	opt := policy.OCIOptions{Exists: func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}}
	if p.Seccomp != "" {
		s, err := seccomp.Spec(p.Seccomp)
		if err != nil {
			return err
		}
		opt.Seccomp = s
	}
	spec, left := p.ToOCI(opt)
	for _, l := range left {
		say.note("not in the OCI configuration: "+l, "")
	}
	return PrintJSON(spec)
}
