package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// An engine's first process (--init) that cannot execute the command ends with the
// exit code that shells have for that, and says why on the command's own stderr. A
// command may do both as well. So the container is asked, which is over and still
// there: was there such a program?

// defaultPath is where an engine looks for a command of an image without PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// maxCandidates bounds what the engine is asked for: PATH may be the image's.
const maxCandidates = 64

// candidates are the files that execvp(3) would try in a container, whose
// working directory an empty element of PATH stands for. It is nil if they are too
// many to look for.
func candidates(name, cwd string, env []string) []string {
	abs := func(p string) string {
		if path.IsAbs(p) {
			return path.Clean(p)
		}
		return path.Join(cwd, p)
	}
	if strings.Contains(name, "/") {
		return []string{abs(name)}
	}
	search := defaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	if strings.Count(search, ":") >= maxCandidates {
		return nil
	}
	var out []string
	for dir := range strings.SplitSeq(search, ":") {
		out = append(out, path.Join(abs(dir), name))
	}
	return out
}

// unexecuted is why a command with such an exit code cannot have been executed, 0
// if it can: what is at each of its candidates, as nil for nothing.
func unexecuted(code int, found []*tar.Header) syscall.Errno {
	there := 0
	for _, h := range found {
		switch {
		case h == nil:
		case h.Typeflag != tar.TypeDir && h.Mode&0o111 != 0:
			return 0
		default:
			there++
		}
	}
	switch {
	case code == driver.ExitNotFound && there == 0:
		return syscall.ENOENT
	case code == driver.ExitNotExecutable && there > 0:
		return syscall.EACCES
	}
	return 0
}

// commandError returns why the container's command was not executed, or nil if
// the exit code is its own, or if the engine does not tell.
func (r *container) commandError(ctx context.Context, code int) error {
	found, ok := r.found(ctx)
	if !ok {
		return nil
	}
	if errno := unexecuted(code, found); errno != 0 {
		return &driver.CommandError{Command: r.c.d.command(r.policy), Err: errno, Fix: lookedFor}
	}
	return nil
}

// found is what is at each of the places of the container's command; ok is false if the
// engine does not tell.
func (r *container) found(ctx context.Context) (list []*tar.Header, ok bool) {
	out, err := r.c.output(ctx, "inspect", "--type", "container", "--format", "{{json .Config.Env}}", r.name)
	var env []string
	if err != nil || json.Unmarshal([]byte(out), &env) != nil {
		return nil, false
	}
	files := candidates(r.c.d.command(r.policy), r.policy.OCI.Process.Cwd, env)
	list, told := make([]*tar.Header, len(files)), make([]bool, len(files))
	slots := make(chan struct{}, 8) // clients at a time
	var all sync.WaitGroup
	for i, file := range files {
		slots <- struct{}{}
		all.Go(func() {
			list[i], told[i] = r.stat(ctx, file, true)
			<-slots
		})
	}
	all.Wait()
	return list, files != nil && !slices.Contains(told, false)
}

const lookedFor = "it is looked for in the image"

// command is the program that the container executes.
func (d Driver) command(p *policy.Policy) string {
	if d.Entrypoint != "" {
		return d.Entrypoint
	}
	return p.OCI.Process.Args[0]
}

// stat describes a file of the container; nil is nothing. Podman follows symbolic
// links in any case. ok is false if the engine does not tell.
func (r *container) stat(ctx context.Context, file string, follow bool) (h *tar.Header, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// What is copied is an archive. Its first header is enough, and the client is
	// ended after it.
	args := []string{"cp", r.name + ":" + file, "-"}
	if follow && !r.c.d.Podman {
		args = slices.Insert(args, 1, "--follow-link")
	}
	cmd := exec.CommandContext(ctx, r.c.path, args...)
	cmd.Env = r.c.env
	detach(cmd)
	var errs bytes.Buffer
	cmd.Stderr = &limited{w: &errs, n: 64 << 10}
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return nil, false
	}
	h, err = tar.NewReader(out).Next()
	if err == nil {
		cancel()
	}
	cmd.Wait()
	if err == nil {
		return h, !follow || h.Typeflag != tar.TypeSymlink
	}
	text := strings.ToLower(errs.String())
	for _, s := range [...]string{"could not find", "no such file", "not be found", "not a directory"} {
		if strings.Contains(text, s) {
			return nil, true
		}
	}
	return nil, false
}

// orElse makes the container anew, with another program and the same arguments, if the image
// has not the first; "" is none.
func (r *container) orElse(ctx context.Context, e *engine, stdin bool, other string) error {
	if other == "" || r.c.d.Entrypoint != "" || strings.Contains(r.policy.OCI.Process.Args[0], "/") {
		return nil
	}
	found, ok := r.found(ctx)
	if !ok || unexecuted(driver.ExitNotFound, found) == 0 {
		return nil
	}
	if err := r.remove(); err != nil {
		return &driver.SetupError{Driver: r.c.d.Name(), Err: err}
	}
	p, oci, process := *r.policy, *r.policy.OCI, *r.policy.OCI.Process
	process.Args = append([]string{other}, process.Args[1:]...)
	oci.Process, p.OCI, r.policy = &process, &oci, &p
	return r.create(context.WithoutCancel(ctx), e, stdin)
}
