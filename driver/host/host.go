// Package host is the driver that isolates nothing: it runs the command as any
// shell would, on the bare host. It exists for machines where nothing else
// works and for comparing a command inside with the same command outside; it
// is chosen only by its own name, and whoever chooses it says so to the user.
//
// It gives the command a session of its own (so no controlling terminal unless
// the policy asks for one), the policy's environment and working directory, and
// ends whatever is left of its process group when the command ends, is killed
// or runs out of time.
//
// It enforces no layer: file rules, network, memory, process and system call
// limits of the policy have no effect, and the result says so.
package host

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/pty"
	"github.com/sbxrun/sbxrun/policy"
)

// Name is the driver's name.
const Name = "host"

// A Driver runs commands on the bare host. The zero value is ready to use.
type Driver struct {
	driver.Basic

	// Home replaces a HOME of the policy that is private storage, or does not
	// exist: there is none on the bare host. "" leaves it.
	Home string

	// Sweep lets the driver end every process that descends from the command,
	// also those that left its process group: on Linux it makes the calling
	// process a child subreaper and takes every child that it did not start
	// itself for the command's. Only for a program that has no other children,
	// and that starts commands from a locked thread that stays (the command is
	// killed when that thread ends; golang/go#27505).
	Sweep bool
}

var _ driver.Driver = (*Driver)(nil)

// Name returns "host".
func (*Driver) Name() string { return Name }

// Sandboxed reports false: nothing is isolated.
func (*Driver) Sandboxed() bool { return false }

// Available reports nil: every host can run a command.
func (*Driver) Available(context.Context) error { return nil }

// Check reports what would make no sense even without isolation. That the
// policy's rules have no effect is what choosing this driver means.
func (*Driver) Check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	// That nothing of the workspace is changed is a promise about the result, not
	// only a rule for the command.
	if i := slices.IndexFunc(p.Files, func(r policy.FileRule) bool { return r.Overlay }); i >= 0 {
		return &driver.UnsupportedError{Driver: Name, Rules: []string{"files.overlay " + p.Files[i].Path},
			Fix: "leave out --workspace overlay, or use a driver that isolates"}
	}
	return nil
}

// Start starts the policy's command.
func (d *Driver) Start(_ context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	if err := d.Check(p); err != nil {
		return nil, err
	}
	begin := time.Now()
	spec := p.OCI.Process
	env := environment(spec.Env, d.Home, func(home string) bool { return isDir(home) && !private(p, home) })
	// fork/exec reports a missing directory and a missing program alike.
	if fi, err := os.Stat(spec.Cwd); err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err}
	} else if !fi.IsDir() {
		return nil, &driver.SetupError{Driver: Name,
			Err: &os.PathError{Op: "chdir", Path: spec.Cwd, Err: syscall.ENOTDIR}}
	}
	file, err := lookup(spec.Args[0], spec.Cwd, env, executable)
	if err != nil {
		return nil, &driver.CommandError{Command: spec.Args[0], Err: err}
	}

	proc := &process{sweep: d.Sweep, dropped: wanted(p)}
	sys := &syscall.SysProcAttr{Setsid: true}
	if d.Sweep {
		if err := adopt(sys); err != nil {
			return nil, &driver.SetupError{Driver: Name, Err: err}
		}
	}
	files, ours, err := proc.streams(spec, &stdio)
	if err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	defer ours.Close()
	sys.Setctty = spec.Terminal // Ctty is descriptor 0 of the child
	if stdio.Starting != nil {
		stdio.Starting()
	}
	proc.p, err = os.StartProcess(file, spec.Args, &os.ProcAttr{
		Dir:   spec.Cwd,
		Env:   env,
		Files: append(files, stdio.Extra...),
		Sys:   sys,
	})
	if err != nil {
		if proc.pty != nil {
			proc.pty.Close()
		}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return nil, &driver.CommandError{Command: spec.Args[0], Err: errno}
		}
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	proc.setup = time.Since(begin)
	return proc, nil
}

// streams are the command's standard streams, on a terminal of its own if it is to have
// one. Ours is the file that is none of the caller's.
func (p *process) streams(spec *specs.Process, stdio *driver.Stdio) (files []*os.File, ours *os.File, err error) {
	if spec.Terminal {
		p.pty, ours, err = pty.Open(spec.ConsoleSize)
		return []*os.File{ours, ours, ours}, ours, err
	}
	if ours, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, nil, err
	}
	for _, f := range []*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr} {
		files = append(files, cmp.Or(f, ours))
	}
	return files, ours, nil
}

// process is a command and its process group, whose id is the command's.
type process struct {
	driver.Fixed
	p       *os.Process
	pty     *os.File
	sweep   bool
	dropped policy.Layers
	setup   time.Duration

	mu      sync.Mutex
	touched bool // Terminate or Kill has done something
	reaped  bool // the group's id may be another's from here on
}

func (p *process) Pty() *os.File { return p.pty }

// Signal sends sig to the command alone.
func (p *process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	return p.p.Signal(sig)
}

func (p *process) Terminate() error {
	return p.all(syscall.SIGTERM, syscall.SIGCONT)
}

func (p *process) Kill() error {
	return p.all(syscall.SIGKILL)
}

// all sends signals to the process group, and to whatever else descends from
// the command.
func (p *process) all(sigs ...syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped || !p.touched && hasExited(p.p.Pid) {
		// Wait, which may not have seen it yet, kills what is left of it.
		return os.ErrProcessDone
	}
	p.touched = true
	var err error
	for _, sig := range sigs {
		if e := syscall.Kill(-p.p.Pid, sig); err == nil {
			err = e
		}
		if p.sweep {
			signalDescendants(sig)
		}
	}
	return err
}

func (p *process) Wait() (*driver.Status, error) {
	if p.pty != nil {
		defer p.pty.Close()
	}
	// The command stays a zombie until its group is dead, so that the group's
	// id cannot be given to another meanwhile.
	awaitExit(p.p.Pid)
	p.mu.Lock()
	syscall.Kill(-p.p.Pid, syscall.SIGKILL) // ESRCH: nothing is left
	state, err := p.p.Wait()
	p.reaped = true
	p.mu.Unlock()
	if p.sweep {
		sweepDescendants()
	}
	if err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	st := &driver.Status{Degraded: p.dropped, EndedFirst: !p.touched, SetupNanos: p.setup.Nanoseconds()}
	ws := state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		st.Signal = ws.Signal()
	} else {
		st.ExitCode = ws.ExitStatus()
	}
	if ru, ok := state.SysUsage().(*syscall.Rusage); ok {
		st.Usage.MemoryPeakBytes = uint64(ru.Maxrss) * maxrssUnit
		st.Usage.CPUUserMS = float64(state.UserTime()) / float64(time.Millisecond)
		st.Usage.CPUSystemMS = float64(state.SystemTime()) / float64(time.Millisecond)
	}
	return st, nil
}

// wanted lists the layers that the policy asked for and that do not exist here.
func wanted(p *policy.Policy) policy.Layers { return p.Require | p.Degrade }

// environment returns env with home for a HOME that is not there.
func environment(env []string, home string, exists func(string) bool) []string {
	out := make([]string, 0, len(env))
	for _, e := range env {
		if h, ok := strings.CutPrefix(e, "HOME="); ok && home != "" && !exists(h) {
			e = "HOME=" + home
		}
		out = append(out, e)
	}
	return out
}

// private reports whether the policy has private storage at a path.
func private(p *policy.Policy, path string) bool {
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		if m.Type == "tmpfs" && (path == m.Destination || strings.HasPrefix(path, m.Destination+"/")) {
			return true
		}
	}
	return false
}

// lookup finds a command as execvp(3) does, along the PATH of env. check
// reports why a file cannot be executed.
func lookup(name, dir string, env []string, check func(string) error) (string, error) {
	at := func(p string) string {
		if strings.HasPrefix(p, "/") {
			return p
		}
		return dir + "/" + p
	}
	if name == "" {
		return "", syscall.ENOENT
	}
	if strings.Contains(name, "/") {
		return at(name), check(at(name))
	}
	path := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	found := error(syscall.ENOENT)
	for d := range strings.SplitSeq(path, ":") {
		// An empty element is the working directory; a command is never taken
		// from there without being asked for with a slash.
		if d == "" {
			continue
		}
		file := at(d) + "/" + name
		err := check(file)
		if err == nil {
			return file, nil
		}
		if err == errNotExecutable {
			found = err // but a later directory may have one that can be
		}
	}
	return "", found
}

// executable reports whether a file can be executed, as an errno.
func executable(file string) error {
	fi, err := os.Stat(file)
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return errno
		}
		return err
	}
	if fi.IsDir() || fi.Mode()&0o111 == 0 {
		return errNotExecutable
	}
	return nil
}

// errNotExecutable is a file that is there and cannot be executed. A directory
// of PATH that may not be searched says EACCES as well, and has nothing to do
// with the command: a caller's PATH may name some of root's.
var errNotExecutable error = notExecutable{}

type notExecutable struct{}

func (notExecutable) Error() string { return syscall.EACCES.Error() }
func (notExecutable) Unwrap() error { return syscall.EACCES }

func isDir(p string) bool {
	fi, err := os.Stat(p)
	return err == nil && fi.IsDir()
}
