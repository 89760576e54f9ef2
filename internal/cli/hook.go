package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/persona"
)

// blocked is the exit code by which a hook of Claude Code's blocks the call that
// it was asked about. Every other but 0 is a failure of the hook, after which the
// call goes on.
const blocked = 2

// maxHook bounds what a hook reads.
const maxHook = 16 << 20

func newHook() *cobra.Command {
	s := &shell{}
	fs := s.flags()
	decision := ""
	fs.VarPF(&value{"ask|allow", oneOf(&decision, "ask", "allow")}, "decision", "",
		"whether the call is asked about (default: as Claude Code's own rules say)")
	c := &cobra.Command{
		Use:   "hook claude-code [flags]",
		Short: "Rewrite the commands of Claude Code's Bash tool so that they run in a sandbox",
		Long: `Read a call of Claude Code's hook PreToolUse on stdin, and answer it on stdout: the
command of the Bash tool becomes one that runs it by sbxrun shell, with the flags
that are given here. A call that cannot be understood is blocked, with exit code 2.
An agent that the operator's roll-out leaves out (rollout in config.yaml) keeps its
commands as they are, and so does a call that says dangerouslyDisableSandbox where
agents.unsandboxed allows that; user, model and audit log are told.

Claude Code goes on with a command as it was when a hook is missing or dies. Its
variable CLAUDE_CODE_SHELL_PREFIX does not: sbxrun integrate claude-code sets that.`,
		Example: `  { "hooks": { "PreToolUse": [ { "matcher": "Bash|Monitor|PowerShell",
    "hooks": [ { "type": "command", "command": "sbxrun hook claude-code --profile aicode" } ] } ] } }`,
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true,
		RunE: func(c *cobra.Command, args []string) error {
			if err := s.hook(fs, &decision, args); err != nil {
				if err == pflag.ErrHelp {
					return c.Help()
				}
				helpHint = "see sbxrun hook --help"
				say.error(flagError(fs, err))
				return exitError(blocked)
			}
			return nil
		},
	}
	c.Flags().SortFlags = false
	c.Flags().AddFlagSet(fs)
	return c
}

func (s *shell) hook(fs *pflag.FlagSet, decision *string, args []string) error {
	if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
		return pflag.ErrHelp
	}
	if len(args) == 0 || args[0] != "claude-code" {
		return engine.Usage("hook needs an agent: claude-code", "see sbxrun hook --help")
	}
	// Checked now: a shell that refuses them tells nobody before the first command.
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return engine.Usage("unexpected argument "+fs.Arg(0), "see sbxrun hook --help")
	}
	if s.keep != "" && s.keep != autoSession {
		if err := checkNamed(fs, s.keep, "decision"); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	h := persona.Hook{Program: append([]string{self, "shell"}, words(fs, args[1:], []string{"decision"})...),
		Decision: *decision}
	if s.ignoreEnv {
		// The files that count for this hook count for the shell too, whatever a
		// project sets for its agent.
		for _, name := range []string{"HOME", "XDG_CONFIG_HOME"} {
			if v, ok := os.LookupEnv(name); ok {
				h.Env = append(h.Env, name+"="+v)
			}
		}
	}
	_, start, err := s.settle()
	if err != nil {
		return err
	}
	op, why, err := engine.RolledOut(&s.req, s.key)
	if err != nil {
		return err
	}
	h.Outside = why
	if op.Unsandboxed {
		h.Bare = engine.CallAllowed
	}
	h.Left = func(tool, command, why string) error {
		return engine.RecordOutside(&op, audit.Record{Source: "hook", Tool: tool, Command: []string{command}, Cwd: start},
			why)
	}
	in, err := io.ReadAll(io.LimitReader(os.Stdin, maxHook))
	if err != nil {
		return err
	}
	out, err := h.Answer(in)
	if err != nil || out == nil {
		return err
	}
	_, err = os.Stdout.Write(append(out, '\n'))
	return err
}
