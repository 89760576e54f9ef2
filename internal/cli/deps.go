package cli

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
	"github.com/sbxrun/sbxrun/workspace"
)

// dependencies finds out what a directory depends on, from the names in it.
func dependencies(dir string) ([]workspace.Dependency, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	list := workspace.Dependencies(func(name string) bool {
		fi, err := root.Lstat(name)
		return err == nil && fi.Mode().IsRegular()
	})
	if list == nil {
		say.note("nothing in "+dir+" says what it depends on", "")
	}
	return list, nil
}

// An install is the installation of dependencies before a run's command, in the
// same sandbox.
type install struct {
	list []workspace.Dependency
	r, w *os.File // what came of each, told by the script
}

// installFirst makes a policy's command one that installs dependencies first; nil
// if none is to be installed.
func (o *options) installFirst(p *policy.Policy, dir string) (*install, error) {
	if !o.checkout.install {
		return nil, nil
	}
	list, err := dependencies(dir)
	if err != nil || list == nil {
		return nil, err
	}
	fd := 3 + len(o.extra)
	if fd > 9 {
		return nil, engine.Usage("--install-deps needs one of the descriptors 3 to 9, and all are passed on", "pass on fewer")
	}
	i := &install{list: list}
	if i.r, i.w, err = os.Pipe(); err != nil {
		return nil, err
	}
	o.extra = append(o.extra, i.w)
	pr := p.OCI.Process
	pr.Args = append([]string{"/bin/sh", "-c", installScript(list, fd), "sh"}, pr.Args...)
	return i, nil
}

// installScript runs the commands of dependencies, tells what each ended with on a
// descriptor that they do not have, and becomes the command in its arguments.
func installScript(list []workspace.Dependency, fd int) string {
	n := strconv.Itoa(fd)
	var b strings.Builder
	for _, d := range list {
		b.WriteString("( " + d.Command + " ) </dev/null >&2 " + n + ">&-; s=$?; echo $s >&" + n + "; test $s = 0 || exit $s\n")
		if d.Bin != "" {
			b.WriteString("PATH=$PWD/" + d.Bin + ":$PATH; export PATH\n")
		}
	}
	// A script of --script is bash's, or sh's where there is no bash.
	b.WriteString("exec " + n + ">&-\ncase $1 in bash) command -v bash >/dev/null || { shift; set -- sh \"$@\"; };; esac\nexec \"$@\"\n")
	return b.String()
}

// result tells what came of each.
func (i *install) result() []driver.Dependency {
	i.w.Close()
	defer i.r.Close()
	// Somebody outside could hold it: what there is now is all that counts.
	lines := strings.Split(string(driver.Waiting(i.r, 4096)), "\n")
	var out []driver.Dependency
	for k, d := range i.list {
		r := driver.Dependency{Manager: d.Manager, File: d.File, Command: d.Command}
		if k < len(lines)-1 {
			if code, err := strconv.Atoi(lines[k]); err == nil {
				r.ExitCode = &code
			}
		}
		out = append(out, r)
	}
	return out
}

// explainDependencies says which installation ended a run.
func explainDependencies(list []driver.Dependency) {
	for _, d := range list {
		switch {
		case d.ExitCode == nil:
			return
		case *d.ExitCode != 0:
			say.note("installing what "+d.File+" names failed, so the command did not run: "+d.Command+" ended with "+strconv.Itoa(*d.ExitCode), installHint(*d.ExitCode, d.Manager))
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
			ro.Stdio.Starting = func() { catch(signals, false) }
			say.detail("installing what " + d.File + " names: " + d.Command)
			res, err := driver.Run(context.Background(), session.In(c, "native", pr), p, ro)
			if err != nil {
				return err
			}
			if res.ExitCode != 0 {
				return engine.Hinted(errors.New("installing what "+d.File+" names failed: "+d.Command+" ended with "+strconv.Itoa(res.ExitCode)), installHint(res.ExitCode, d.Manager))
			}
		}
		return nil
	})
}
