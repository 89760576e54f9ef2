package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/nearest"
)

// misplaced says what a command that nobody has was meant to be, "" if that is not
// known: a word of sbxrun's own in a place where it is a program's name. Args are
// sbxrun's own arguments.
func misplaced(name string, args []string) string {
	switch {
	case strings.HasPrefix(name, "-") && len(args) > 2 && args[0] == "session" && args[1] == "exec":
		return "flags come before the session's name"
	case strings.HasPrefix(name, "-"):
		return "flags of sbxrun come before --"
	case isSubcommand(name):
		return name + " is a command of sbxrun only as the first word"
	case len(args) > 0 && args[0] == name:
		for _, c := range Root().Commands() {
			if c.HasSubCommands() && slices.Contains(commandNames(c), name) {
				return "did you mean sbxrun " + c.Name() + " " + name + "?"
			}
		}
		if near := nearest.Name(name, commandNames(Root())); near != "" {
			return "did you mean sbxrun " + near + "?"
		}
	}
	return ""
}

// commandNames are the names of a command's own commands.
func commandNames(c *cobra.Command) []string {
	var names []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			names = append(append(names, sub.Name()), sub.Aliases...)
		}
	}
	return names
}

// group makes of c a command that has commands and does nothing by itself.
func group(c *cobra.Command, needs string, commands ...*cobra.Command) *cobra.Command {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(c, args[0])
	}
	c.RunE = func(*cobra.Command, []string) error {
		return engine.Usage(c.Name()+" needs a command: "+needs, "see sbxrun "+c.Name()+" --help")
	}
	c.AddCommand(commands...)
	return c
}

func unknownCommand(c *cobra.Command, name string) error {
	hint := "see " + c.CommandPath() + " --help"
	if c.HasParent() && c.HasSubCommands() {
		hint = "one of " + strings.Join(commandNames(c), ", ") + "; " + hint
	}
	if near := nearest.Name(name, commandNames(c)); near != "" {
		hint = "did you mean " + c.CommandPath() + " " + near + "?"
	}
	return engine.Usage("unknown command "+name+" of "+c.CommandPath(), hint)
}

// helpTopics has help say which topic it does not know, instead of printing the
// whole help.
func helpTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() != "help" {
			continue
		}
		c.Run = nil
		c.RunE = func(_ *cobra.Command, args []string) error {
			topic, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return unknownCommand(topic, rest[0])
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		}
	}
}

// shortOf is the long name of a short flag that a run has and the command that was
// asked for has not, "" for others.
func shortOf(unknown *pflag.NotExistError) string {
	if unknown.GetSpecifiedShortnames() == "" {
		return ""
	}
	if f := newRunFlags(&options{}, "").ShorthandLookup(unknown.GetSpecifiedName()); f != nil {
		return f.Name
	}
	return ""
}
