package cli

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/nearest"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

func subcommands() []*cobra.Command {
	return append([]*cobra.Command{
		newRun("run"), newAgent(), newShell(), newHook(), newSession(), newDiff(), newApply(), newDiscard(), newPrune(),
		newSpec(), newWhy(), newLearn(), newProfile(), newDoctor(), newSetup(), newDriver(), newVersion(), newCompletion(),
	}, (&Beside{}).commands()...)
}

// plain is a subcommand that takes its flags anywhere and speaks as the others.
func plain(c *cobra.Command, o *options) *cobra.Command {
	c.DisableFlagsInUseLine = true
	c.Flags().SortFlags = false
	o.voiceFlags(c.Flags())
	return c
}

// listing is a plain command that prints a table, or JSON.
func listing(c *cobra.Command, o *options) *cobra.Command {
	plain(c, o).Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// list prints values as JSON or else in columns, as the flag --json says.
func (o *options) list(v any, rows [][]string) error {
	if o.json {
		return PrintJSON(v)
	}
	return PrintTable(rows)
}

func newProfile() *cobra.Command {
	return group(&cobra.Command{Use: "profile COMMAND", Short: "List, show, check and compare profiles"},
		"list, show, check or diff",
		newProfileList(), newProfileShow(), newProfileCheck(), newProfileDiff())
}

func newProfileList() *cobra.Command {
	o := &options{}
	return listing(&cobra.Command{
		Use:   "list [flags]",
		Short: "List the profiles that can be named",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			f, err := engine.GatherFacts()
			if err != nil {
				return err
			}
			type entry struct {
				profiles.Info
				Error string `json:"error,omitempty"`
			}
			entries := []entry{}
			rows := [][]string{{"PROFILE", "FROM", "DESCRIPTION"}}
			for _, i := range profiles.List(&f.Facts) {
				e := entry{Info: i}
				text := i.Description
				if i.Err != nil {
					e.Error = i.Err.Error()
					text = "error: " + e.Error
				}
				entries = append(entries, e)
				rows = append(rows, []string{i.Name, i.Origin, text})
			}
			return o.list(entries, rows)
		},
	}, o)
}

func newProfileShow() *cobra.Command {
	o := &options{}
	return listing(&cobra.Command{
		Use:   "show [flags] [NAME|FILE]",
		Short: "Show a profile's values as they take effect, and where each came from",
		Long: `Show the values that a run under the profile would have here, with the
configuration files and SBXRUN_ variables over it, and where each came from.`,
		Args:    maxArgs(1),
		Example: "  sbxrun profile show strict\n  sbxrun profile show --json aicode",
		RunE: func(_ *cobra.Command, args []string) error {
			entries, err := namedProfile(append(args, "")[0])
			if err != nil {
				return err
			}
			rows := [][]string{{"KEY", "VALUE", "FROM"}}
			for _, e := range entries {
				rows = append(rows, []string{e.Key, e.Value, e.Origin})
			}
			return o.list(entries, rows)
		},
	}, o)
}

// namedProfile is [engine.ShowProfile] for a name that no flag gave.
func namedProfile(name string) ([]profiles.Entry, error) {
	entries, err := engine.ShowProfile(name)
	return entries, engine.Unflagged(err)
}

func newProfileCheck() *cobra.Command {
	o := &options{}
	return plain(&cobra.Command{
		Use:   "check FILE...",
		Short: "Check profile and configuration files",
		Long: `Check files: a configuration file if it is named config.yaml or .sbxrun.yaml, a
profile otherwise, with all that it extends. The exit code is 1 if one has a
mistake.`,
		Args: minArgs(1, "a file to check"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := engine.GatherFacts()
			if err != nil {
				return err
			}
			failed := false
			for _, name := range args {
				if err := profiles.CheckPath(name); err != nil {
					return err
				}
				if err := profiles.Check(name, &f.Facts); err != nil {
					failed = true
					say.error(err)
				} else if !say.quiet {
					io.WriteString(os.Stdout, quote.Inside(name)+": ok\n")
				}
			}
			if failed {
				return exitError(1)
			}
			return nil
		},
	}, o)
}

func newProfileDiff() *cobra.Command {
	o := &options{}
	return listing(&cobra.Command{
		Use:   "diff [flags] PROFILE PROFILE",
		Short: "Show in which values two profiles differ",
		Args:  exactArgs(2, "two profiles to compare"),
		RunE: func(_ *cobra.Command, args []string) error {
			a, err := namedProfile(args[0])
			if err != nil {
				return err
			}
			b, err := namedProfile(args[1])
			if err != nil {
				return err
			}
			changes := profiles.Diff(a, b)
			if changes == nil {
				changes = []profiles.Change{} // an array for every reader, never null
			}
			rows := [][]string{{"KEY", args[0], args[1]}}
			for _, c := range changes {
				rows = append(rows, []string{c.Key, dash(c.A), dash(c.B)})
			}
			return o.list(changes, rows)
		},
	}, o)
}

func newDriver() *cobra.Command {
	o := &options{}
	return group(&cobra.Command{Use: "driver COMMAND", Short: "List the drivers"}, "list", listing(&cobra.Command{
		Use:   "list [flags] [DRIVER]",
		Short: "List the drivers, whether each works here, and what it can enforce",
		Long: `List the drivers, whether each works on this host, and the version of the program
that it is made of. With the name of one, list what that can and cannot enforce of
a policy. A policy that asks for something with "no" is refused, and the message
names it. --json has all of it.`,
		Args: maxArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := engine.GatherFacts()
			if err != nil {
				return err
			}
			known := engine.Drivers(f)
			if len(args) == 1 {
				i := slices.IndexFunc(known, func(d driver.Driver) bool { return d.Name() == args[0] })
				if i < 0 {
					return engine.Usage("there is no driver "+strconv.Quote(args[0]),
						"there are "+strings.Join(engine.DriverNames(f), ", "))
				}
				if known = known[i : i+1]; !o.json {
					return printClaims(known[0].Describe().Claims)
				}
			}
			entries := []engine.DriverEntry{}
			rows := [][]string{{"DRIVER", "ISOLATES", "AVAILABLE", ""}}
			for _, d := range known {
				e := engine.EntryOf(d)
				entries = append(entries, e)
				text := e.Error
				switch {
				case e.Hint != "":
					text += " (" + e.Hint + ")"
				case e.Available && e.Version != "":
					text = e.Version
				}
				rows = append(rows, []string{e.Name, yesNo(e.Sandboxed), yesNo(e.Available), text})
			}
			return o.list(entries, rows)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return engine.DriverNames(&facts{}), cobra.ShellCompDirectiveNoFileComp
		},
	}, o))
}

// Drivers returns all that this build has, for who documents them.
func Drivers() []driver.Driver { return engine.Drivers(&facts{}) }

// driverError says what to do about a driver that there is not.
func driverError(err error, f *facts) error {
	var invalid *policy.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "driver" {
		return err
	}
	hint := "sbxrun driver list tells what each is, and which work here"
	if near := nearest.Name(invalid.Value, engine.DriverNames(f)); near != "" {
		hint = "did you mean " + near + "?"
	}
	return engine.Usage("there is no driver "+strconv.Quote(invalid.Value)+": want "+invalid.Want, hint)
}

// printClaims prints what one driver can enforce.
func printClaims(claims driver.Claims) error {
	rows := [][]string{{"FEATURE", "ENFORCED", "WHAT"}}
	for i := range driver.Features {
		feature := &driver.Features[i]
		text := feature.What
		if note := claims[feature.Name].Note; note != "" {
			text += ": " + note
		}
		rows = append(rows, []string{feature.Name, claims[feature.Name].Support.String(), text})
	}
	return PrintTable(rows)
}

func newVersion() *cobra.Command {
	o := &options{}
	return listing(&cobra.Command{
		Use:   "version [flags]",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := engine.VersionOf()
			if o.json {
				return PrintJSON(v)
			}
			text := "sbxrun " + v.Version
			if v.Revision != "" {
				text += " (" + v.Revision
				if v.Modified {
					text += ", modified"
				}
				text += ")"
			}
			_, err := io.WriteString(os.Stdout, text+" "+v.OS+"/"+v.Arch+" "+v.Go+"\n")
			return err
		},
	}, o)
}

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Example: `  source <(sbxrun completion bash)
  source <(sbxrun completion zsh)
  sbxrun completion fish | source`,
		Args:                  exactArgs(1, "one of bash, zsh, fish"),
		ValidArgs:             []string{"bash", "zsh", "fish"},
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			return printCompletion(c.Root(), args[0], os.Stdout)
		},
	}
}

// printCompletion writes a shell's completion script.
func printCompletion(root *cobra.Command, shell string, w io.Writer) error {
	switch shell {
	case "bash":
		return root.GenBashCompletionV2(w, true)
	case "zsh":
		return root.GenZshCompletion(w)
	case "fish":
		return root.GenFishCompletion(w, true)
	}
	return engine.Usage("no completion for "+shell, "one of bash, zsh, fish")
}

// The checks of positional arguments, in our words.

func noArgs(c *cobra.Command, args []string) error { return maxArgs(0)(c, args) }

func maxArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return engine.Usage("too many arguments: "+args[n], "usage: "+c.UseLine())
		}
		return nil
	}
}

func minArgs(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return engine.Usage(c.Name()+" needs "+what, "usage: "+c.UseLine())
		}
		return nil
	}
}

func exactArgs(n int, what string) cobra.PositionalArgs {
	return cobra.MatchAll(minArgs(n, what), maxArgs(n))
}

// PrintTable prints rows in columns; the last column is not padded.
func PrintTable(rows [][]string) error {
	var width []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			if len(r) == 1 {
				break // a heading
			}
			width[i] = max(width[i], utf8.RuneCountInString(quote.Line(cell)))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		var line strings.Builder
		for i, cell := range r {
			cell = quote.Line(cell)
			line.WriteString(cell)
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(os.Stdout, b.String())
	return err
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
