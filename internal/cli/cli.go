// Package cli is sbxrun's command line: flags become a [profiles.Request], a
// [driver.Result] becomes an exit code, and what lies between is elsewhere.
//
// It is a package of its own, not package main, so that the manual page is
// generated from the same tree of commands that runs.
//
// The run path is what counts: "sbxrun CMD" parses the flags of a run, "sbxrun session
// exec" and "sbxrun shell" their own, and nothing else. The other subcommands are built only
// when the first argument names one.
//
// It decides nothing about isolation, makes no system call that is not about
// its own terminal, and writes nothing to stdout but what was asked for with
// --json, --dry-run or a subcommand: stdout belongs to the command that runs.
package cli

//go:generate go run ./man ../..

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/files"
	"github.com/sbxrun/sbxrun/internal/holder"
	"github.com/sbxrun/sbxrun/internal/persona"
	"github.com/sbxrun/sbxrun/internal/probe"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/profiles"
)

// Stay and Spread, if there are any, keep the program on one processor from then on, and
// give it all of them at once.
var Stay, Spread func()

// Main runs sbxrun with the arguments after the program's name and returns its
// exit code.
func Main(args []string) int {
	engine.Killable()
	if name := persona.Name(os.Args[0]); name != "" {
		return asShell(name, args)
	}
	if code, ok := inner(args); ok {
		return code
	}
	if len(args) > 0 && args[0] == holder.Command {
		return holder.Hold()
	}
	terminal.Quit()
	if code, ok := early(args); ok {
		return code
	}
	if len(args) > 0 && isSubcommand(args[0]) {
		return execute(Root(), args)
	}
	if len(args) == 1 && args[0] == "--version" {
		return execute(Root(), []string{"version"})
	}
	// What cobra does beyond parsing flags costs a run a tenth of a
	// millisecond, and is for subcommands.
	o := &options{}
	fs := newRunFlags(o, "sbxrun")
	err := fs.Parse(args)
	if err == pflag.ErrHelp {
		return execute(Root(), []string{"help"})
	}
	if err == nil {
		err = o.run(fs.Args())
	} else {
		err = o.unparsed(fs, args, err)
	}
	return report(fs, err)
}

// early runs the commands that an agent runs all the time, without the tree of all
// commands: to build that takes longer than what else a client of a session does before
// it connects. Flags that there are not, and those for help, are left to the tree.
func early(args []string) (code int, ok bool) {
	switch {
	case len(args) > 1 && args[0] == "session" && args[1] == "exec":
		return sessionExec(args[2:])
	case len(args) > 0 && args[0] == "shell":
		return shellCall(args[1:])
	}
	return 0, false
}

// leave reports whether what early could not parse is the tree's to answer. Other errors
// are not: a value can be a pipe, which is read once.
func leave(err error) bool {
	var unknown *pflag.NotExistError
	if err != pflag.ErrHelp && !errors.As(err, &unknown) {
		return false
	}
	say = speaker{}
	return true
}

// inner does what this program is started for by itself, and by probes, inside of
// sandboxes; not for people. It reports whether that is what the arguments are.
func inner(args []string) (code int, ok bool) {
	files.Agent(args) // files for sbxrun session cp
	if len(args) > 0 {
		switch args[0] {
		case probe.Command:
			return probe.Child(args[1:]), true
		case probe.CanaryCommand:
			return probe.Canary(args[1:]), true
		}
	}
	return 0, false
}

// newRunFlags returns the flags of a run, which end at the first word that is
// no flag: everything after it is the command's.
func newRunFlags(o *options, name string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.Usage = func() {}
	fs.SetInterspersed(false)
	fs.SortFlags = false
	o.runFlags(fs)
	return fs
}

// isSubcommand reports whether the first argument names a subcommand. Only the
// first can: after a flag or "--", a word is the command to run.
func isSubcommand(arg string) bool {
	switch arg {
	case "run", "session", "prune", "spec", "why", "learn", "profile", "doctor", "setup", "driver", "diff", "apply", "discard",
		"version", "completion", "help", "mcp", "command", "shell", "serve", "pool",
		"hook", "prompt", "integrate", "agent",
		cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
		return true
	}
	return false
}

// Root returns the whole tree of commands.
func Root() *cobra.Command {
	root := newRun("sbxrun")
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(subcommands()...)
	helpTopics(root)
	for _, c := range append(root.Commands(), root) {
		if c.Flags().Lookup("profile") != nil {
			c.RegisterFlagCompletionFunc("profile", completeProfile)
			c.RegisterFlagCompletionFunc("driver", completeDriver)
		}
	}
	return root
}

func completeProfile(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	f, err := engine.GatherFacts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, i := range profiles.List(&f.Facts) {
		names = append(names, i.Name+"\t"+i.Description)
	}
	return names, cobra.ShellCompDirectiveDefault // or a file
}

func completeDriver(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return append([]string{driver.Auto}, engine.DriverNames(&facts{})...), cobra.ShellCompDirectiveNoFileComp
}

// execute runs a command and returns the exit code.
func execute(c *cobra.Command, args []string) int {
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	c.SetOut(os.Stdout)
	c.SetErr(os.Stderr)
	at, err := c.ExecuteC()
	if at.HasParent() && at.Name() != "run" {
		helpHint = "see " + at.CommandPath() + " --help"
	}
	return report(at.Flags(), err)
}
