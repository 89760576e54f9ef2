package cli

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver/host"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/profiles"
)

// An Integration is what sbxrun integrate was asked to do.
type Integration struct {
	Agent string
	Do    string   // "", print, undo or verify
	By    string   // means, "" for the agent's first
	Flags []string // of sbxrun shell, or of a run

	Managed bool // for every user of the host
	Session bool // the flags name a session that there is

	Program string   // the agent's own, "" to look for it
	File    string   // where mcp puts the server
	Command []string // that starts the agent, for verify of shell and mcp

	Partial func() (bool, error) // whether the operator's roll-out leaves some agents out
}

func (b *Beside) newPrompt() *cobra.Command {
	o := &options{}
	policyFile, key := "", ""
	c := plain(&cobra.Command{
		Use:   "prompt [flags]",
		Short: "Print what to tell a model of the sandbox that its commands run in",
		Long: `Print a section for an agent's system prompt, as Markdown: what its commands can
read and write, which hosts they reach, the limits, and the commands that
execute_command runs. It is the effective policy of the same flags, here and now;
or that there is none, where the operator's roll-out leaves this agent out.`,
		Example: "  sbxrun prompt --profile aicode -C ~/project\n  claude --append-system-prompt \"$(sbxrun prompt --profile aicode)\"",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if b.Prompt == nil {
				return executeBeside(engine.MCPProgram)
			}
			_, why, err := engine.RolledOut(&o.req, key)
			if err != nil {
				return err
			}
			if why != "" {
				say.warn("agents' commands are not sandboxed: " + why)
				return b.Prompt(nil, why, policyFile)
			}
			r, _, err := o.resolveHere("/")
			if err != nil {
				return err
			}
			if slices.Equal(r.Drivers, []string{host.Name}) {
				why = "the driver is " + host.Name
			}
			return b.Prompt(r.Policy, why, policyFile)
		},
	}, o)
	o.policyFlags(c.Flags())
	rolloutFlag(c.Flags(), &key)
	c.Flags().VarPF(&value{"FILE|none", func(f string) error { policyFile = f; return profiles.CheckPath(f) }},
		"command-policy", "",
		"JSON file with the lists of execute_command (default: the built-in ones); none leaves them out")
	return c
}

func (b *Beside) newIntegrate() *cobra.Command {
	s := &shell{}
	i := &Integration{}
	fs := s.flags()
	fs.Lookup("profile").Usage = "profile to run under (default aicode)"
	fs.Bool("print", false, "print what would be changed, and change nothing")
	fs.Bool("undo", false, "put the agent's files back as they were")
	fs.Bool("verify", false, "prove that a command of the agent's really runs in the sandbox")
	fs.VarPF(&value{"prefix|hook", oneOf(&i.By, "prefix", "hook")}, "by", "",
		"the means, for claude-code (default prefix)")
	fs.BoolVar(&i.Managed, "managed", false,
		"for every user of the host, by settings that no project's can replace: claude-code; needs root")
	fs.VarPF(&value{"FILE", func(f string) (err error) {
		i.File, err = filepath.Abs(f)
		return errors.Join(err, profiles.CheckPath(f))
	}}, "file", "", "for mcp: the JSON file in which the agent looks for mcpServers")
	fs.VarPF(&value{"FILE", func(f string) error { i.Program = f; return profiles.CheckPath(f) }}, "agent", "",
		"the agent's program (default: found in PATH)")
	c := &cobra.Command{
		Use:   "integrate AGENT [flags] [--verify -- COMMAND]",
		Short: "Have a coding agent run its commands in a sandbox: claude-code, codex, opencode, gemini, qwen, copilot, pi, goose, any",
		Long: `Change the configuration of a coding agent so that its commands run in a sandbox,
under the profile aicode or with the flags that are given. What was there before is
kept: --undo puts it back. --print shows what would change. --verify has the agent run
a command that reaches for what it must not get, and says whether it did.

For an agent that is not listed, AGENT is shell or mcp. "shell" makes a program that
you name as the agent's shell. "mcp" adds a server to the JSON file --file, in which
the agent looks for mcpServers. For these, --verify -- COMMAND starts the agent, and
asks its own model to run the command; {} in COMMAND stands for the request.`,
		Example:               "  sbxrun integrate claude-code --print\n  sbxrun integrate claude-code --session auto --allow-host api.example.com\n  sbxrun integrate claude-code --verify\n  sbxrun integrate claude-code --undo\n  sbxrun integrate shell --verify -- env SHELL=$HOME/.local/share/sbxrun/agents/shell/bash my-agent -p {}",
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true,
		RunE: func(c *cobra.Command, args []string) error {
			err := fs.Parse(args)
			if err == pflag.ErrHelp {
				return c.Help()
			}
			if err != nil {
				return err
			}
			if at := slices.Index(args, "--"); at >= 0 && fs.ArgsLenAtDash() >= 0 {
				i.Command, args = fs.Args()[fs.ArgsLenAtDash():], args[:at]
			}
			if fs.NArg()-len(i.Command) != 1 {
				return engine.Usage("integrate needs one agent",
					"one of claude-code, codex, opencode, gemini, qwen, copilot, pi, goose, shell, mcp")
			}
			own := []string{"print", "undo", "verify", "by", "agent", "file", "managed", "quiet", "verbose", "color"}
			i.Agent, i.Flags = fs.Arg(0), words(fs, args, own)
			if err := i.check(fs); err != nil {
				return err
			}
			if i.Session = s.keep != "" && s.keep != autoSession; i.Do != "undo" {
				if err := s.integrable(fs, own, i.Session); err != nil {
					return err
				}
			}
			i.Partial = func() (bool, error) {
				f, err := engine.GatherFacts()
				if err != nil {
					return false, err
				}
				op, err := engine.OperatorOf(&s.req, f)
				return !op.Rollout.Enabled || op.Rollout.Percent < 100, err
			}
			if b.Integrate == nil {
				return executeBeside(engine.MCPProgram)
			}
			return b.Integrate(i)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().AddFlagSet(fs)
	return c
}

// check reports words that do not go together.
func (i *Integration) check(fs *pflag.FlagSet) error {
	verify, _ := fs.GetBool("verify")
	switch any := i.Agent == "shell" || i.Agent == "mcp"; {
	case i.Agent == "codex" && fs.Changed("rollout-key"):
		return engine.Usage("flag --rollout-key: codex executes by a run, and a run is never part of a roll-out",
			"leave it out")
	case len(i.Command) > 0 && !(any && verify):
		return engine.Usage("a command is for --verify of shell and mcp", "leave out what follows --")
	case i.File != "" && i.Agent != "mcp":
		return engine.Usage("flag --file is for mcp", "leave it out")
	case i.File == "" && i.Agent == "mcp":
		return engine.Usage("mcp needs the file in which the agent looks for servers", "name it: --file FILE")
	case any && i.Program != "":
		return engine.Usage("flag --agent is for agents that are listed", "leave it out")
	}
	if slices.Contains([]string{"codex", "gemini", "qwen", "copilot", "mcp"}, i.Agent) {
		names := []string{"session", "shell", "ignore-env", "cwd-fd"}
		if k := slices.IndexFunc(names, fs.Changed); k >= 0 {
			return engine.Usage("flag --"+names[k]+" is for agents that call a shell; "+i.Agent+" keeps one sandbox",
				"leave it out")
		}
	}
	return i.choose(fs)
}

// choose finds out what is to be done.
func (i *Integration) choose(fs *pflag.FlagSet) error {
	for _, name := range []string{"print", "undo", "verify"} {
		switch on, _ := fs.GetBool(name); {
		case on && i.Do != "":
			return engine.Usage("--"+i.Do+" and --"+name+" are two things", "one at a time")
		case on:
			i.Do = name
		}
	}
	return nil
}

// integrable reports what would end every command of an agent's, once written down.
func (s *shell) integrable(fs *pflag.FlagSet, own []string, named bool) error {
	if named {
		if err := checkNamed(fs, s.keep, own...); err != nil {
			return err
		}
	}
	if fs.Changed("profile") {
		_, err := engine.ShowProfile(s.req.Profile)
		return err
	}
	return nil
}

// words are the flags among arguments, as they were given, without some of them.
func words(fs *pflag.FlagSet, args, without []string) []string {
	var keep []string
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "--") {
			continue
		}
		name, _, has := strings.Cut(args[i][2:], "=")
		f := fs.Lookup(name)
		if f == nil {
			continue
		}
		from, to := i, i+1
		if !has && f.NoOptDefVal == "" && i+1 < len(args) {
			to++
		}
		if !slices.Contains(without, name) {
			keep = append(keep, args[from:to]...)
		}
		i = to - 1
	}
	return keep
}
