package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/probe"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// diagnosis is what doctor finds.
type diagnosis struct {
	Strict bool          `json:"strict"` // a run under strict would work here
	Driver string        `json:"driver,omitempty"`
	Layers policy.Layers `json:"layers"` // that such a run requires
	Error  string        `json:"error,omitempty"`
	Hint   string        `json:"hint,omitempty"`
	Weaker *weaker       `json:"weaker,omitempty"` // what works here, where strict does not
	Checks []probe.Check `json:"checks"`
}

// weaker is a way to run commands that is weaker than strict, and was tried.
type weaker struct {
	Driver  string        `json:"driver"`
	Without policy.Layers `json:"without"` // to be named with --allow-degraded
	flags   string
}

func newDoctor() *cobra.Command {
	o := &options{}
	secrets := false
	c := plain(&cobra.Command{
		Use:   "doctor [flags]",
		Short: "Find out what this host can isolate, and prove that it does",
		Long: `Try on this host what a sandbox is made of, and say for each part that is missing
why, and what to do about it. Then run canaries in a sandbox: acts that the
strict profile denies, each of which must fail.

The exit code is 0 if a run under the strict profile would work here, else 1.

With --secrets it runs nothing, and lists the files that look like credentials, by
name or by what they hold, and that a command could read under a profile in this
home and workspace. The exit code is 0 if there are none, else 1.`,
		Example: "  sbxrun doctor\n  sbxrun doctor --secrets -P aicode",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if secrets {
				return o.listSecrets()
			}
			if c.Flags().Changed("profile") {
				return engine.Usage("--profile is for --secrets: doctor tries what strict needs", "add --secrets, or leave out --profile")
			}
			d, err := diagnose(context.Background())
			if err != nil {
				return err
			}
			if o.json {
				err = printJSON(d)
			} else {
				err = d.print(os.Stdout)
			}
			if err == nil && !d.Strict {
				err = exitError(1)
			}
			return err
		},
	}, o)
	c.Flags().BoolVar(&secrets, "secrets", false, "list readable files that look like credentials")
	c.Flags().StringVarP(&o.req.Profile, "profile", "P", "", "profile for --secrets (default strict)")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// listSecrets prints what looks like a credential and can be read under a profile.
func (o *options) listSecrets() error {
	f, err := engine.GatherFacts()
	if err != nil {
		return err
	}
	o.req.Command = []string{"true"}
	r, err := o.resolve(f)
	if err != nil {
		return err
	}
	if !r.Isolated {
		return engine.Usage("the profile "+r.Policy.Profile+" isolates nothing: every file can be read", "name another with --profile")
	}
	found, complete := profiles.Credentials(r.Policy, &f.Facts)
	if o.json {
		err = printJSON(struct {
			Profile  string                `json:"profile"`
			Complete bool                  `json:"complete"` // all that is shown was looked at
			Secrets  []profiles.Credential `json:"secrets"`
		}{r.Policy.Profile, complete, append([]profiles.Credential{}, found...)})
	} else {
		w := bufio.NewWriter(os.Stdout)
		for _, c := range found {
			fmt.Fprintln(w, quote.Escape(c.Path)+": "+c.Why)
		}
		err = w.Flush()
		if !complete {
			say.warn("too much is shown to look at all of it: the list is not complete")
		}
	}
	if err == nil && (len(found) > 0 || !complete) {
		err = exitError(1)
	}
	return err
}

func diagnose(ctx context.Context) (*diagnosis, error) {
	f, err := engine.GatherFactsAnywhere("/")
	if err != nil {
		return nil, err
	}
	d := &diagnosis{}
	programs := map[string]probe.Check{} // that drivers are made of
	for _, c := range probe.Host(ctx) {
		if c.Group == probe.GroupDrivers {
			programs[c.Name] = c
		} else {
			d.Checks = append(d.Checks, c)
		}
	}
	for _, k := range engine.Drivers(f) {
		c := probe.Check{Name: k.Name(), Group: probe.GroupDrivers, State: probe.Yes, Detail: madeOf(k.Name(), programs)}
		if !k.Sandboxed() {
			c.Detail += "; isolates nothing, and is never chosen unless named"
		}
		if err := k.Available(ctx); err != nil {
			c.State, c.Detail, c.Cause, c.Fix = probe.No, "", err.Error(), driver.HintOf(err)
		}
		d.Checks = append(d.Checks, c)
	}
	checks, err := d.try(ctx, f, profiles.Request{})
	d.Checks = append(d.Checks, checks...)
	if err == nil {
		err = engine.BoundaryError(checks)
	}
	if err != nil {
		d.Error, d.Hint = err.Error(), hintOf(err)
		d.Weaker = tryWeaker(ctx, f)
	}
	d.Strict = err == nil
	return d, nil
}

// madeOf says what a driver that works here is made of: a program's version and path.
func madeOf(name string, checked map[string]probe.Check) string {
	switch name {
	case "gvisor":
		name = "runsc"
	case "container-use":
		for _, file := range []string{"cu", "container-use"} {
			if path, err := programs.Find(file); err == nil {
				return path
			}
		}
	}
	if c, ok := checked[name]; ok {
		return c.Detail
	}
	return "built in"
}

// tryWeaker finds what comes nearest to strict on this host, by running the
// canaries under each: those whose acts it still denies have to hold.
func tryWeaker(ctx context.Context, f *facts) *weaker {
	for _, w := range []weaker{
		{"native", policy.LayerCgroup, "--allow-degraded cgroup"},
		{"landlock", policy.LayerNamespaces | policy.LayerProtect, "--driver landlock --allow-degraded namespaces,protect"},
		{"landlock", policy.LayerNamespaces | policy.LayerProtect | policy.LayerCgroup, "--driver landlock --allow-degraded namespaces,protect,cgroup"},
	} {
		checks, err := new(diagnosis).try(ctx, f, profiles.Request{Driver: w.Driver, Degrade: w.Without})
		if err == nil && engine.BoundaryError(checks) == nil {
			return &w
		}
	}
	return nil
}

// try runs the canaries as a run under the strict profile would, with what req
// asks for besides.
func (d *diagnosis) try(ctx context.Context, f *facts, req profiles.Request) ([]probe.Check, error) {
	ws, err := os.MkdirTemp("", "sbxrun-doctor-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(ws)
	req.Profile, req.Dir, req.Command = "strict", ws, []string{"true"}
	r, err := profiles.Resolve(&req, &f.Facts)
	if err != nil {
		return nil, err
	}
	d.Layers = r.Policy.Require
	chosen, err := driver.Select(ctx, engine.Drivers(f), r.Drivers, r.Policy, nil)
	if err != nil {
		return nil, err
	}
	d.Driver = chosen.Name()
	return engine.SelfTest(ctx, chosen, r.Policy)
}

// print prints the diagnosis for a person.
func (d *diagnosis) print(w io.Writer) error {
	group := ""
	rows := [][]string{}
	for i, c := range d.Checks {
		if c.Group != group {
			group = c.Group
			title := group
			if group == probe.GroupBoundary {
				title += ": acts tried inside a sandbox, and whether it held"
			}
			rows = append(rows, []string{title})
		}
		text := c.Detail
		if c.State != probe.Yes {
			text = c.Cause
		}
		rows = append(rows, []string{"  " + c.Name, c.State.String(), text})
		if next := i + 1; next < len(d.Checks) && d.Checks[next].Fix == c.Fix {
			continue // it is said once, below the last
		}
		if c.Fix != "" {
			rows = append(rows, []string{"", "", "fix: " + c.Fix})
		}
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	text := "\nstrict runs here, by the " + d.Driver + " driver\n"
	if !d.Strict {
		text = "\nstrict does not run here: " + quote.Line(d.Error) + "\n"
		if d.Hint != "" {
			text += "fix: " + quote.Line(d.Hint) + "\n"
		}
		if d.Weaker != nil {
			text += "weaker, and was tried here: sbxrun " + d.Weaker.flags + " -- COMMAND\n"
		}
		if runtime.GOOS == "linux" {
			text += "sbxrun setup lists what it can do about that, and asks first\n"
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
