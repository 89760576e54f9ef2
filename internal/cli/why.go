package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
)

func newWhy() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "why [flags] PATH|HOST[:PORT]|SYSCALL",
		Short: "Say what a run may do with a path, a host or a system call, by which rule, and what would grant it",
		Long: `Say whether a run with these flags sees a path, reaches a host or may make a system
call, which rule decides and where that is from, and the least that would grant it.
Nothing runs. What has a slash, begins with a dot or ~, or exists is a path; the name
of a system call is one; anything else is a host.`,
		Example:               "  sbxrun why ~/.config/tool.yaml\n  sbxrun why --profile aicode registry.npmjs.org:443\n  sbxrun why ptrace",
		Args:                  exactArgs(1, "a path, a host or a system call"),
		DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "" {
				return engine.Usage("the path, host or system call is empty", "for example: sbxrun why ~/.config/tool.yaml")
			}
			r, f, err := o.resolveHere("true")
			if err != nil {
				return err
			}
			why, err := engine.Why(args[0], r.Policy, f, o.req.Dir)
			if err != nil {
				return err
			}
			if o.json {
				return PrintJSON(why)
			}
			return printRuling(why)
		},
	}
	c.Flags().SortFlags = false
	o.policyFlags(c.Flags())
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	o.voiceFlags(c.Flags())
	return c
}

// printRuling says it in lines.
func printRuling(w *engine.Ruling) error {
	rule := quote.Line(w.Rule)
	if w.Origin != "" {
		rule += " (" + quote.Line(w.Origin) + ")"
	}
	lines := [][]string{{w.Kind, quote.Inside(w.Of)}, {"answer", w.Answer}, {"rule", rule}}
	if w.Reason != "" {
		lines = append(lines, []string{"reason", quote.Line(w.Reason)})
	}
	for _, to := range []string{"read", "write", "connect", "call"} {
		if g := w.Grants[to]; g != "" {
			lines = append(lines, []string{"to " + to, g.Shell()})
		}
	}
	if len(w.Grants) == 0 && !strings.HasPrefix(w.Answer, "visible and writable") &&
		w.Answer != "visible, and changes are kept apart" && w.Answer != "reachable" && w.Answer != "allowed" {
		lines = append(lines, []string{"grant", "none"})
	}
	for _, l := range lines {
		if _, err := fmt.Printf("%-10s %s\n", l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}
