package engine

import (
	"os"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/workspace"
)

// Dependencies finds out what a directory depends on, from the names in it.
func Dependencies(dir string) ([]workspace.Dependency, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return workspace.Dependencies(func(name string) bool {
		fi, err := root.Lstat(name)
		return err == nil && fi.Mode().IsRegular()
	}), nil
}

// An Install is the installation of dependencies before a run's command, in the
// same sandbox.
type Install struct {
	list []workspace.Dependency
	r, w *os.File // what came of each, told by the script
}

// InstallFirst makes a policy's command one that installs dependencies first. It adds
// to the descriptors that the command gets.
func InstallFirst(p *policy.Policy, list []workspace.Dependency, extra *[]*os.File) (*Install, error) {
	fd := 3 + len(*extra)
	if fd > 9 {
		return nil, Usage("--install-deps needs one of the descriptors 3 to 9, and all are passed on", "pass on fewer")
	}
	i := &Install{list: list}
	var err error
	if i.r, i.w, err = os.Pipe(); err != nil {
		return nil, err
	}
	*extra = append(*extra, i.w)
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
		b.WriteString("( " + d.Command + " ) </dev/null >&2 " + n + ">&-; s=$?; echo $s >&" + n +
			"; test $s = 0 || exit $s\n")
		if d.Bin != "" {
			b.WriteString("PATH=$PWD/" + d.Bin + ":$PATH; export PATH\n")
		}
	}
	// A script of --script is bash's, or sh's where there is no bash.
	b.WriteString("exec " + n +
		">&-\ncase $1 in bash) command -v bash >/dev/null || { shift; set -- sh \"$@\"; };; esac\nexec \"$@\"\n")
	return b.String()
}

// Result tells what came of each.
func (i *Install) Result() []driver.Dependency {
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
