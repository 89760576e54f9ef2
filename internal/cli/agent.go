package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/internal/agents/whole"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/profiles"
)

// agentLong explains the command, with what is shown and allowed for each agent.
func agentLong() string {
	var b strings.Builder
	b.WriteString(`Run a whole coding agent in a sandbox: its file tools, its hooks and its servers as
well as its commands. The profile is aicode, without its time limit, and the current
directory is the workspace. Other flags of a run change that; --dry-run prints what
would be shown and allowed. If there is a terminal, the agent has one of its own. What
follows the agent's name and flags is the agent's; -- ends the flags.

The agent finds its own directories in its home as it left them, kept by sbxrun: they
are not yours, and no agent on the host obeys what is written there. Log in once. Every
command that the agent runs can read the agent's key or login, and can write what the
next sbxrun agent with that state obeys, in its sandbox.
`)
	for _, a := range whole.Agents {
		keys := a.Keys
		if a.Base != "" {
			keys = append(slices.Clone(keys), a.Base+" (and its host)")
		}
		fmt.Fprintf(&b, "\n%s\n  keeps   ~/%s\n  hosts   %s\n  passes  %s\n", a.Name, strings.Join(a.Keeps, ", ~/"),
			strings.Join(a.Hosts, ", "), strings.Join(keys, ", "))
	}
	return b.String()
}

func newAgent() *cobra.Command {
	o := &options{}
	fs := newRunFlags(o, "agent")
	fs.Lookup("profile").Usage = "profile to run under (default aicode)"
	program, state := "", "default"
	fs.VarPF(&value{"FILE", func(f string) error { program = f; return profiles.CheckPath(f) }}, "agent", "",
		"the agent's program (default: found in PATH)")
	fs.VarPF(&value{"NAME", func(s string) error { state = s; return whole.CheckState(s) }}, "state", "",
		"keep the agent's files apart from those of other names (default default)")
	c := &cobra.Command{
		Use:                   "agent AGENT [flags] [--] [ARG...]",
		Short:                 "Run a whole coding agent in a sandbox: " + strings.Join(whole.Names(), ", "),
		Long:                  agentLong(),
		Example:               "  sbxrun agent claude\n  sbxrun agent codex --allow-host api.example.com -- exec 'run the tests'\n  sbxrun agent claude --state client -- --dangerously-skip-permissions",
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return whole.Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			err := fs.Parse(args)
			rest := fs.Args()
			if err == nil && len(rest) > 0 {
				err = fs.Parse(rest[1:]) // its name ends the flags only for this
			}
			var unknown *pflag.NotExistError
			switch {
			case err == pflag.ErrHelp:
				return c.Help()
			case errors.As(err, &unknown):
				err = engine.Usage("unknown flag "+typed(unknown)+" of sbxrun agent",
					"the agent's own flags go after --")
			}
			if err != nil {
				return o.unparsed(fs, args, err)
			}
			i := slices.IndexFunc(whole.Agents, func(a whole.Agent) bool {
				return len(rest) > 0 && a.Name == strings.TrimSuffix(rest[0], "-code")
			})
			if i < 0 {
				what := "agent needs the name of one that can run inside"
				if len(rest) > 0 {
					what = quote.Inside(rest[0]) + " is no agent that can run inside"
				}
				return engine.Usage(what,
					"one of "+strings.Join(whole.Names(), ", ")+"; sbxrun -P aicode -- CMD runs any other")
			}
			if o.hasScript || o.session != "" {
				return engine.Usage("agent runs an agent, in a sandbox of its own", "leave out --script and --session")
			}
			if !fs.Changed("tty") && !o.json {
				o.req.Terminal = terminal.Is(os.Stdin) && terminal.Is(os.Stdout)
			}
			a := &whole.Agents[i]
			if o.decided, err = a.Prepare(&o.req, program, state, o.dryRun); err != nil {
				return err
			}
			return o.run(slices.Concat(o.req.Command, a.Args, fs.Args()))
		},
	}
	c.Flags().SortFlags = false
	c.Flags().AddFlagSet(fs)
	return c
}
