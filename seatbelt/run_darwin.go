package seatbelt

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/gateway"
	"github.com/sbxrun/sbxrun/internal/pty"
	"github.com/sbxrun/sbxrun/policy"
)

const (
	sandboxExec = "/usr/bin/sandbox-exec"
	bash        = "/bin/bash"
	ps          = "/bin/ps"

	// every is how often the run is looked at.
	every = 200 * time.Millisecond
)

// stands are the layers whose purpose the profile serves: Landlock's and the
// network and IPC namespaces'. A set-user-id program is never executed in a
// sandbox of the system's (forbidden-exec-sugid).
const stands = policy.LayerLandlock | policy.LayerNet | policy.LayerIPC | policy.LayerNoNewPrivs | policy.LayerRlimits

// psArgs are what ps(1) is asked for. See the manual of macOS: -x includes
// processes without a terminal, "=" leaves the heading out.
var psArgs = []string{"-axo", "pid=,ppid=,pgid=,rss="}

func available(context.Context) error {
	if _, err := os.Stat(sandboxExec); err != nil {
		return &driver.UnavailableError{What: "driver " + Name, Cause: sandboxExec + " is missing", Err: err,
			Fix: "it is part of macOS: reinstall the system"}
	}
	return nil
}

// start makes private storage and starts the command. The command's group is
// its own session's.
func start(d Driver, p *policy.Policy, stdio driver.Stdio) (_ driver.Process, err error) {
	begin := time.Now()
	fail := func(err error) error { return &driver.SetupError{Driver: Name, Err: err} }
	for _, r := range p.Files {
		if r.Optional || r.Access == policy.Hide {
			continue
		}
		if _, err := os.Lstat(r.Path); err != nil {
			return nil, fail(err)
		}
	}
	if err := findCommand(p, func(file string) bool {
		fi, err := os.Stat(file)
		return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
	}); err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "sbxrun-")
	if err != nil {
		return nil, fail(err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(scratch)
		}
	}()
	if scratch, err = filepath.EvalSymlinks(scratch); err != nil {
		return nil, fail(err)
	}
	for _, dir := range append(storage(p), "/tmp") {
		if err = os.MkdirAll(scratch+dir, 0o700); err != nil {
			return nil, fail(err)
		}
	}
	o := Options{Home: d.Home, Scratch: scratch}
	env := Environment(p, scratch)
	var net *gateway.Local
	if p.Egress.Mode == policy.EgressProxy {
		if net, err = gateway.Serve(p, d.Upstream, d.NoProxy); err != nil {
			return nil, fail(err)
		}
		defer func() {
			if err != nil {
				net.End(nil)
			}
		}()
		o.ProxyPort, env = net.Port(), net.Environ(env)
	}
	var master *os.File
	attr := &syscall.SysProcAttr{Setsid: true}
	files := []*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr}
	if p.OCI.Process.Terminal {
		var slave *os.File
		if master, slave, err = pty.Open(p.OCI.Process.ConsoleSize); err != nil {
			return nil, fail(err)
		}
		defer slave.Close()
		defer func() {
			if err != nil {
				master.Close()
			}
		}()
		o.Terminal = slave.Name()
		files = []*os.File{slave, slave, slave}
		attr.Setctty = true // Ctty is descriptor 0 of the child
	}
	profile, err := Lower(p, o)
	if err != nil {
		return nil, err
	}
	script, unknown := ulimits(p.OCI.Process.Rlimits)
	if len(unknown) != 0 {
		err = &driver.UnsupportedError{Driver: Name, Rules: unknown}
		return nil, err
	}
	argv := append([]string{sandboxExec}, profile.Args(p.OCI.Process.Args)...)
	if script != "" {
		// -p: neither BASH_ENV nor functions of the environment count.
		argv = append([]string{bash, "-p", "-c", script, "bash"}, argv...)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fail(err)
	}
	defer null.Close()
	for i := range files {
		if files[i] == nil {
			files[i] = null
		}
	}
	if stdio.Starting != nil {
		stdio.Starting()
	}
	proc, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Dir:   place(p, p.OCI.Process.Cwd, scratch),
		Env:   env,
		Files: append(files, stdio.Extra...),
		Sys:   attr,
	})
	if err != nil {
		return nil, fail(err)
	}
	r := &run{p: proc, pty: master, net: net, scratch: scratch, known: map[int]bool{}, setup: time.Since(begin),
		stop: make(chan struct{})}
	r.layers = p.Require&stands | policy.LayerNoNewPrivs
	if len(p.Protect) != 0 {
		r.layers |= policy.LayerProtect
	}
	if net != nil {
		r.layers |= policy.LayerEgress
	}
	r.degraded = p.Dispensable() &^ r.layers
	if p.OCI.Linux != nil && p.OCI.Linux.Resources != nil {
		if m := p.OCI.Linux.Resources.Memory; m != nil && m.Limit != nil && *m.Limit > 0 {
			r.memory = uint64(*m.Limit)
		}
	}
	r.disk = p.Scratch.Bytes
	r.watched.Add(1)
	go r.watch()
	if net != nil {
		return &connected{r}, nil
	}
	return r, nil
}

// connected is a run with network by name.
type connected struct{ *run }

// Reload puts other rules in place; see [driver.Changeable].
func (c *connected) Reload(e policy.Egress) error { return c.net.Reload(e) }

// storage are the places of private storage.
func storage(p *policy.Policy) []string {
	var out []string
	for i := range p.OCI.Mounts {
		if m := &p.OCI.Mounts[i]; m.Type == "tmpfs" {
			out = append(out, m.Destination)
		}
	}
	return out
}

type run struct {
	driver.Fixed
	p        *os.Process
	pty      *os.File       // the master of its terminal, or nil
	net      *gateway.Local // nil without network by name
	scratch  string
	memory   uint64 // bytes; 0 is no limit
	disk     uint64
	layers   policy.Layers
	degraded policy.Layers
	setup    time.Duration

	stop    chan struct{}
	watched sync.WaitGroup

	mu     sync.Mutex
	reaped bool
	known  map[int]bool
	peak   uint64
	oom    bool
}

func (r *run) Pty() *os.File { return r.pty }

func (r *run) Signal(sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reaped {
		return os.ErrProcessDone
	}
	return r.p.Signal(sig)
}

func (r *run) Terminate() error { return r.all(syscall.SIGTERM, syscall.SIGCONT) }
func (r *run) Kill() error      { return r.all(syscall.SIGKILL) }

func (r *run) all(sigs ...syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reaped {
		return os.ErrProcessDone
	}
	found := r.look()
	var err error
	for _, sig := range sigs {
		if e := syscall.Kill(-r.p.Pid, sig); err == nil {
			err = e
		}
		for _, p := range found {
			syscall.Kill(p.pid, sig)
		}
	}
	return err
}

// look lists the run's processes. The lock is held.
func (r *run) look() []process {
	out, err := exec.Command(ps, psArgs...).Output()
	if err != nil {
		return nil
	}
	found := tree(parsePS(string(out)), r.p.Pid, r.known)
	clear(r.known) // an id that is gone may be another's next time
	for _, p := range found {
		r.known[p.pid] = true
	}
	return found
}

// watch ends the run when it has more memory or private storage than it may.
func (r *run) watch() {
	defer r.watched.Done()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-t.C:
		}
		r.mu.Lock()
		var used uint64
		for _, p := range r.look() {
			used += p.resident
		}
		r.peak = max(r.peak, used)
		over := r.memory != 0 && used > r.memory
		r.oom = r.oom || over
		r.mu.Unlock()
		if over || r.disk != 0 && size(r.scratch) > r.disk {
			r.Kill()
		}
	}
}

// size is what lies below a directory, in bytes.
func size(dir string) uint64 {
	var n uint64
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if i, err := e.Info(); err == nil {
				n += uint64(i.Size())
			}
		}
		return nil
	})
	return n
}

func (r *run) Wait() (*driver.Status, error) {
	if r.pty != nil {
		defer r.pty.Close()
	}
	state, err := r.p.Wait()
	r.mu.Lock()
	// The group's id can be another's only once all of it is gone.
	syscall.Kill(-r.p.Pid, syscall.SIGKILL)
	for range 10 {
		left := 0
		for _, p := range r.look() {
			if p.pid != r.p.Pid {
				syscall.Kill(p.pid, syscall.SIGKILL)
				left++
			}
		}
		if left == 0 {
			break
		}
	}
	r.reaped = true
	r.mu.Unlock()
	close(r.stop)
	r.watched.Wait()
	if e := os.RemoveAll(r.scratch); err == nil && e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = e
	}
	if err != nil {
		if r.net != nil {
			r.net.End(nil)
		}
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	st := &driver.Status{Layers: r.layers, Degraded: r.degraded, OOMKilled: r.oom, SetupNanos: r.setup.Nanoseconds()}
	ws := state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		st.Signal = ws.Signal()
	} else {
		st.ExitCode = ws.ExitStatus()
	}
	if r.net != nil {
		r.net.End(st)
	}
	st.Usage.MemoryPeakBytes = r.peak
	st.Usage.CPUUserMS = float64(state.UserTime()) / float64(time.Millisecond)
	st.Usage.CPUSystemMS = float64(state.SystemTime()) / float64(time.Millisecond)
	return st, nil
}
