package cli

import (
	"context"
	"errors"
	"os"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
	"github.com/sbxrun/sbxrun/workspace"
)

// dependencies are [engine.Dependencies]; it says if there are none.
func dependencies(dir string) ([]workspace.Dependency, error) {
	list, err := engine.Dependencies(dir)
	if list == nil && err == nil {
		say.note("nothing in "+dir+" says what it depends on", "")
	}
	return list, err
}

// installFirst makes a policy's command one that installs dependencies first; nil
// if none is to be installed.
func (o *options) installFirst(p *policy.Policy, dir string) (*engine.Install, error) {
	if !o.checkout.Install {
		return nil, nil
	}
	list, err := dependencies(dir)
	if err != nil || list == nil {
		return nil, err
	}
	return engine.InstallFirst(p, list, &o.extra)
}

// explainDependencies says which installation ended a run.
func explainDependencies(list []driver.Dependency) {
	for _, d := range list {
		switch {
		case d.ExitCode == nil:
			return
		case *d.ExitCode != 0:
			say.note("installing what "+d.File+" names failed, so the command did not run: "+d.Command+" ended with "+
				strconv.Itoa(*d.ExitCode), installHint(*d.ExitCode, d.Manager))
			return
		}
		say.detail("installed what " + d.File + " names: " + d.Command)
	}
}

func installHint(code int, manager string) string {
	if code == driver.ExitNotFound {
		return manager + " is not in the sandbox: install it on the host, or show where it is with --ro"
	}
	return "the network rules of the run count: --profile aicode reaches the registries that you use, --allow-host names others"
}

// installInSession installs dependencies in a session that was just created.
func (o *options) installInSession(id, dir string) error {
	list, err := dependencies(dir)
	if err != nil || list == nil {
		return err
	}
	return withSession(id, func(_ *session.Store, c *session.Client) error {
		for _, d := range list {
			pr := &specs.Process{Args: []string{"/bin/sh", "-c", "( " + d.Command + " ) >&2"}}
			p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{Args: pr.Args}}}
			signals := make(chan os.Signal, 16)
			ro := driver.RunOptions{Signals: signals}
			ro.Stdio.Stdout, ro.Stdio.Stderr = os.Stderr, os.Stderr
			ro.Stdio.Starting = func() { terminal.Catch(signals, false) }
			say.detail("installing what " + d.File + " names: " + d.Command)
			res, err := driver.Run(context.Background(), session.In(c, "native", pr), p, ro)
			if err != nil {
				return err
			}
			if res.ExitCode != 0 {
				return engine.Hinted(errors.New("installing what "+d.File+" names failed: "+d.Command+" ended with "+
					strconv.Itoa(res.ExitCode)), installHint(res.ExitCode, d.Manager))
			}
		}
		return nil
	})
}
