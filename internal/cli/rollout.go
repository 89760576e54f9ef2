package cli

import (
	"os"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/host"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/persona"
	"github.com/sbxrun/sbxrun/internal/standin"
	"github.com/sbxrun/sbxrun/profiles"
)

// rolloutFlag defines the flag for what a roll-out knows an agent by.
func rolloutFlag(fs *pflag.FlagSet, key *string) {
	fs.VarPF(&value{"KEY", func(k string) error { *key = k; return nil }}, "rollout-key", "",
		"what rollout.percent and rollout.force of config.yaml know this agent by (default USER:WORKSPACE)")
}

// rolloutKey is what a roll-out knows an agent by, if it has no key of its own.
func rolloutKey(workspace string) string { return strconv.Itoa(os.Getuid()) + ":" + workspace }

// rolledOut says why the commands of an agent are not sandboxed, "" if they are. It
// asks the operator's files alone: whatever else is wrong here is no matter to an
// agent that is not part of a roll-out.
func rolledOut(req *profiles.Request, key string) (op profiles.Operator, why string, err error) {
	f, err := engine.GatherFacts()
	if err != nil {
		return op, "", err
	}
	if op, err = engine.OperatorOf(req, f); err != nil {
		return op, "", err
	}
	if r := op.Rollout; r.Enabled && r.Percent >= 100 {
		return op, "", nil // whatever the key
	}
	if key == "" {
		dir, err := profiles.WorkspaceOf(req, &f.Facts)
		if err != nil {
			return op, "", engine.Invalid(err)
		}
		key = rolloutKey(dir)
	}
	_, why = op.Rollout.Sandboxed(key)
	return op, why, nil
}

// recordOutside records, where the operator asked for that, a command that is about
// to run on the host. How it ends nobody here will know.
func recordOutside(op *profiles.Operator, r audit.Record, why string) error {
	l, err := engine.OpenAudit(op, nil)
	if err != nil || l == nil {
		return err
	}
	r.Driver, r.Why = host.Name, why
	return l.Run(r, nil, nil)
}

// outside becomes the shell itself, as the agent would have had it: with its own
// arguments, environment and streams. It returns only if it could not.
func (s *shell) outside(op *profiles.Operator, why, file, start string, args, environ []string) error {
	argv := append([]string{file}, args...)
	if err := recordOutside(op, audit.Record{Source: "run", Command: argv, Cwd: start}, why); err != nil {
		return err
	}
	say.warn("NOT SANDBOXED: this runs on the host with all that its user can do, because " + why)
	if at, ok := persona.Script(args); ok && s.cwdFD >= 0 {
		argv[1+at] = persona.Telling(persona.Name(file), args[at], s.cwdFD)
	}
	err := syscall.Exec(file, argv, standin.OutsideEnviron(environ))
	return commandError(&driver.CommandError{Command: file, Err: err})
}
