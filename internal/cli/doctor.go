package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/probe"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/profiles"
)

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
				return engine.Usage("--profile is for --secrets: doctor tries what strict needs",
					"add --secrets, or leave out --profile")
			}
			d, err := engine.Diagnose(context.Background())
			if err != nil {
				return err
			}
			if o.json {
				err = PrintJSON(d)
			} else {
				err = printDiagnosis(d)
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
	r, f, err := o.resolveHere("true")
	if err != nil {
		return err
	}
	if !r.Isolated {
		return engine.Usage("the profile "+r.Policy.Profile+" isolates nothing: every file can be read",
			"name another with --profile")
	}
	found, complete := profiles.Credentials(r.Policy, &f.Facts)
	if o.json {
		err = PrintJSON(struct {
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
		if len(found) == 0 && complete {
			say.note("no file that looks like a credential can be read under "+r.Policy.Profile, "")
		}
		if !complete {
			say.warn("too much is shown to look at all of it: the list is not complete")
		}
	}
	if err == nil && (len(found) > 0 || !complete) {
		err = exitError(1)
	}
	return err
}

// printDiagnosis prints it for a person.
func printDiagnosis(d *engine.Diagnosis) error {
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
	if err := PrintTable(rows); err != nil {
		return err
	}
	text := "\nstrict runs here, by the " + d.Driver + " driver\n"
	if !d.Strict {
		text = "\nstrict does not run here: " + quote.Line(d.Error) + "\n"
		if d.Hint != "" {
			text += "fix: " + quote.Line(d.Hint) + "\n"
		}
		if d.Weaker != nil {
			text += "weaker, and was tried here: sbxrun " + d.Weaker.Flags + " -- COMMAND\n"
		}
		if runtime.GOOS == "linux" {
			text += "sbxrun setup lists what it can do about that, and asks first\n"
		}
	}
	_, err := io.WriteString(os.Stdout, text)
	return err
}
