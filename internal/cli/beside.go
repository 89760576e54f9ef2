package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// mcpProgram is the program beside sbxrun that serves MCP and parses shell
// scripts. What it links has init functions that no run should pay for.
const mcpProgram = "sbxrun-mcp"

// A Service is what sbxrun mcp was asked to serve: a policy, fixed by who
// started it, and sandboxes of it.
type Service struct {
	Policy      *policy.Policy
	Driver      string // its name
	MaxSessions int    // sandboxes at a time
	Commands    string // file with the command policy, "" for the built-in lists
	Version     string

	// Open builds one more sandbox of the policy.
	Open func(context.Context) (driver.Sandbox, error)
}

// Beside are the commands of which the work is done by a program beside sbxrun.
// Nil functions are those of sbxrun itself, which executes that program.
type Beside struct {
	// MCP serves until its client is gone.
	MCP func(*Service) error

	// Check judges a script by a command policy and prints what came of it. It
	// reports whether the script is allowed.
	Check func(script, commands string, json bool) (bool, error)
}

// Main runs the program beside sbxrun with the arguments after its name, of which
// the first is the subcommand, and returns its exit code.
func (b *Beside) Main(args []string) int {
	if code, ok := inner(args); ok {
		return code
	}
	root := &cobra.Command{Use: "sbxrun", Short: "Serves sbxrun mcp and sbxrun command: not for people", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		return &usageError{mcpProgram + " is started by sbxrun", "see sbxrun mcp --help and sbxrun command --help"}
	}}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(b.commands()...)
	return execute(root, args)
}

func (b *Beside) commands() []*cobra.Command {
	return []*cobra.Command{b.newMCP(), b.newCommand()}
}

func (b *Beside) newMCP() *cobra.Command {
	o := &options{}
	s := &Service{MaxSessions: 4}
	c := plain(&cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve sandboxed commands to an agent, by the Model Context Protocol on stdin and stdout",
		Long: `Serve tools that run commands, scripts and Python in sandboxes, and read and
write files there, to a client of the Model Context Protocol on stdin and stdout.

The flags make the policy, as those of a run do; no call can change it. Each
sandbox is a session: a connection has one of its own, made at the first call,
and can create more. All end with the connection. The limits on time and output
are those of each command; the limits on memory, cpu and processes are those of
each session.`,
		Example: "  sbxrun mcp --profile strict -C ~/project\n  claude mcp add sandbox -- sbxrun mcp --profile strict",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if b.MCP == nil {
				return executeBeside()
			}
			if err := o.service(s); err != nil {
				return err
			}
			if isTerminal(os.Stdin) {
				say.note("waiting for a client of the Model Context Protocol on stdin", "an agent starts this command; docs/agents.md tells how")
			}
			return b.MCP(s)
		},
	}, o)
	o.policyFlags(c.Flags())
	c.Flags().VarPF(&value{"FILE", func(f string) error { s.Commands = f; return checkPath(f) }}, "command-policy", "", "JSON file that says which commands execute_command runs (default: the built-in lists)")
	c.Flags().VarPF(&value{"N", func(n string) error {
		var err error
		if s.MaxSessions, err = strconv.Atoi(n); err != nil || s.MaxSessions < 1 || s.MaxSessions > 1000 {
			return &usageError{strconv.Quote(n) + " is not a number of sessions", "1 to 1000; each can use the limits on memory, cpu and processes in full"}
		}
		return nil
	}}, "max-sessions", "", "sessions that there can be at a time (default 4)")
	return c
}

func (b *Beside) newCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "command COMMAND",
		Short: "Ask a command policy what it says of a script: check",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return &usageError{"command needs a command: check", "see sbxrun command --help"}
		},
	}
	o := &options{}
	policyFile := ""
	check := plain(&cobra.Command{
		Use:   "check [flags] SCRIPT",
		Short: "Say whether a command policy allows a shell script, and which words it refuses",
		Long: `Say whether a command policy allows a shell script. Nothing runs. Exit code 0 is
allowed, 1 refused. The policy is a convenience for who calls a model's commands,
never the boundary: what an allowed command may do is the sandbox's to say.`,
		Example: "  sbxrun command check 'make test | tail -5'\n  sbxrun command check --json 'git status; sudo reboot'",
		Args:    exactArgs(1, "a script"),
		RunE: func(_ *cobra.Command, args []string) error {
			if b.Check == nil {
				return executeBeside()
			}
			ok, err := b.Check(args[0], policyFile, o.json)
			if err == nil && !ok {
				return exitError(1)
			}
			return err
		},
	}, o)
	check.Flags().BoolVar(&o.json, "json", false, "print the decision as JSON")
	check.Flags().VarPF(&value{"FILE", func(f string) error { policyFile = f; return checkPath(f) }}, "command-policy", "", "JSON file with the lists (default: the built-in ones)")
	c.AddCommand(check)
	return c
}

// service resolves what the flags ask for.
func (o *options) service(s *Service) error {
	if o.req.Terminal {
		return &usageError{"mcp gives no command a terminal", "leave out --tty"}
	}
	f, err := gatherFacts()
	if err != nil {
		return err
	}
	o.req.Command = []string{"/"} // commands come later
	r, err := o.resolve(f)
	if err != nil {
		return err
	}
	ctx := context.Background()
	d, err := selectDriver(ctx, f, r, o.req.Require)
	if err != nil {
		return err
	}
	k, ok := fit(d, f, r, false).(driver.Keeper)
	if !ok {
		return &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"sessions"}, Fix: "mcp needs the native driver"}
	}
	if err := o.verify(ctx, k, r, f); err != nil {
		return err
	}
	s.Policy, s.Driver, s.Version = r.Policy, d.Name(), versionOf().Version
	s.Open = func(ctx context.Context) (driver.Sandbox, error) { return k.Open(ctx, r.Policy) }
	return nil
}

// executeBeside becomes the program that does the work of this command line.
func executeBeside() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(self), mcpProgram)
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
	fix := "install it beside sbxrun: make build makes both, and so does go install ./cmd/..."
	if !errors.Is(err, fs.ErrNotExist) {
		fix = "see that it can be executed"
	}
	return &driver.UnavailableError{What: "sbxrun " + os.Args[1], Cause: "it is done by " + path, Fix: fix, Err: err}
}
