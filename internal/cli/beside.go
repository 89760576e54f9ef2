package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
)

// Beside are the commands of which the work is done by a program beside sbxrun.
// Nil functions are those of sbxrun itself, which executes that program.
type Beside struct {
	// MCP serves until its client is gone.
	MCP func(*Service) error

	// Serve serves pools until the context ends.
	Serve func(context.Context, *engine.Server) error

	// Pools prints what the server in a directory has, or has counted.
	Pools func(dir string, counted, json bool) error

	// Check judges a script by a command policy and prints what came of it. It
	// reports whether the script is allowed.
	Check func(script, commands string, json bool) (bool, error)

	// Prompt prints what a model is told of a policy, or of why there is none that
	// holds, and of a command policy; of none if that is called "none".
	Prompt func(p *policy.Policy, outside, commands string) error

	// Integrate changes an agent's configuration, or looks at it.
	Integrate func(*Integration) error
}

// Main runs the program beside sbxrun with the arguments after its name, of which
// the first is the subcommand, and returns its exit code.
func (b *Beside) Main(args []string) int {
	if code, ok := inner(args); ok {
		return code
	}
	engine.Killable()
	root := &cobra.Command{Use: "sbxrun", Short: "Does some of the work of sbxrun: not for people", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return engine.Usage("this program is started by sbxrun", "see sbxrun --help")
		}}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(b.commands()...)
	return execute(root, args)
}

func (b *Beside) commands() []*cobra.Command {
	return []*cobra.Command{b.newMCP(), b.newCommand(), b.newPrompt(), b.newIntegrate(), b.newServe(), b.newPool()}
}

func (b *Beside) newCommand() *cobra.Command {
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
				return executeBeside(engine.MCPProgram)
			}
			ok, err := b.Check(args[0], policyFile, o.json)
			if err == nil && !ok {
				return exitError(1)
			}
			return err
		},
	}, o)
	check.Flags().BoolVar(&o.json, "json", false, "print the decision as JSON")
	check.Flags().VarPF(&value{"FILE", into(&policyFile, checked)}, "command-policy", "",
		"JSON file with the lists (default: the built-in ones)")
	return group(&cobra.Command{Use: "command COMMAND", Short: "Ask a command policy what it says of a script: check"},
		"check", check)
}

// executeBeside becomes the program that does the work of this command line.
func executeBeside(program string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(self), program)
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
	fix := "install it beside sbxrun: make build makes both, and so does go install ./cmd/..."
	if !errors.Is(err, fs.ErrNotExist) {
		fix = "see that it can be executed"
	}
	return &driver.UnavailableError{What: "sbxrun " + os.Args[1], Cause: "it is done by " + path, Fix: fix, Err: err}
}
