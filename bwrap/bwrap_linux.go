package bwrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// find returns bubblewrap's absolute path.
func (d Driver) find() (string, error) {
	path := d.Path
	if path == "" {
		var err *programs.NotFoundError
		if path, err = programs.Find("bwrap"); err != nil {
			return "", &driver.UnavailableError{What: "driver " + Name, Cause: err.Error(),
				Fix: err.Hint("install bubblewrap (Debian: apt-get install bubblewrap)")}
		}
	}
	return path, nil
}

// Program is the path of its file.
func (d Driver) Program() (string, error) {
	path, _ := d.find()
	return path, nil
}

// Version is what bwrap --version says.
func (d Driver) Version() string {
	path, _ := d.find()
	return programs.Version(path)
}

// parseVersion reads "bubblewrap 0.8.0".
func parseVersion(s string) (major, minor int, ok bool) {
	s, ok = strings.CutPrefix(s, "bubblewrap ")
	a, rest, _ := strings.Cut(s, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, ok && err == nil && err2 == nil
}

// options finds out what this bubblewrap can be told.
func (d Driver) options() (path string, o Options, err error) {
	if path, err = d.find(); err != nil {
		return "", o, err
	}
	version := d.Version()
	major, minor, ok := parseVersion(version)
	if !ok || major == 0 && minor < 7 {
		return "", o, &driver.UnavailableError{What: "driver " + Name,
			Cause: "it needs bubblewrap 0.7 or later, and " + path + " is " + strconv.Quote(version),
			Fix:   "install a newer bubblewrap"}
	}
	o.DisableUserns = major > 0 || minor >= 8
	return path, o, nil
}

// Available runs bubblewrap's own --version in an empty sandbox.
func (d Driver) Available(ctx context.Context) error {
	path, _, err := d.options()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc",
		"--", path, "--version")
	if out, err := cmd.CombinedOutput(); err != nil {
		return &driver.UnavailableError{What: "driver " + Name, Cause: "bubblewrap cannot make a sandbox here",
			Err: errors.New(strings.TrimSpace(string(out))),
			Fix: "allow it user namespaces and mounts; see sbxrun doctor"}
	}
	return nil
}

// Check lowers the policy against the host's files.
func (d Driver) Check(p *policy.Policy) error {
	if err := check(p); err != nil {
		return err
	}
	_, err := lower(p, "", Options{}, 0, "")
	return err
}

// lower lowers a policy on this host.
func lower(p *policy.Policy, filter string, o Options, first int, stage string) (*lowered, error) {
	root, err := rootfs.Lower(Name, p, rootfs.HostFS{})
	if err != nil {
		return nil, err
	}
	keep, ops, err := supervisor.Present(&root.Tree)
	if err != nil {
		return nil, err
	}
	l := &lowered{ops: ops}
	if stage != "" {
		l.stage, keep = supervisor.NewStage(keep, stage)
		l.stage.Still = true // it makes mount points by path, with the host below /oldroot
	}
	l.Lowered, err = Args(p, keep, filter, first, o)
	return l, err
}

type lowered struct {
	*Lowered
	ops   []mounts.Op
	stage *supervisor.Stage
}

// Start runs the policy's command by bubblewrap.
func (d Driver) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	path, o, err := d.options()
	if err != nil {
		return nil, err
	}
	filter, err := supervisor.Filter(ctx, Name, p, d.CacheDir, d.SeccompCompiler)
	if err != nil {
		return nil, err
	}
	first := supervisor.FirstFile(stdio)
	stage, clean := "", func() {}
	if os.Geteuid() == 0 {
		dir, err := rundir.Make(rundir.Parent(0), "bwrap", nil)
		if err != nil {
			return nil, &driver.SetupError{Driver: Name, Err: err}
		}
		stage, clean = dir.Path, func() { dir.Remove() }
	}
	// Before what the policy needs come the options and the status.
	low, err := lower(p, filter.Filter, o, first+2, stage)
	if err == nil {
		err = supervisor.Lookup(p, low.ops)
	}
	if err != nil {
		clean()
		return nil, err
	}

	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	file := func(content string) error {
		f, err := memfile(content)
		if err == nil {
			files = append(files, f)
		}
		return err
	}
	if err := file(strings.Join(low.Args, "\x00") + "\x00"); err != nil {
		clean()
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	r, w, err := os.Pipe()
	if err != nil {
		clean()
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	files = append(files, w)
	for _, content := range low.Data {
		if err := file(content); err != nil {
			r.Close()
			clean()
			return nil, &driver.SetupError{Driver: Name, Err: err}
		}
	}
	st := &status{r: r, done: make(chan struct{})}
	argv := append([]string{"bwrap", "--args", strconv.Itoa(first), "--json-status-fd", strconv.Itoa(first + 1),
		"--"}, p.OCI.Process.Args...)
	proc, err := supervisor.Start(ctx, &supervisor.Config{
		Driver: Name, Policy: p, Layers: d.Describe().Claims.Given(p),
		Paths: []string{path}, Argv: argv, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Dir: "/",
		Stdio: stdio, Files: files, Terminal: p.OCI.Process.Terminal, Overhead: overhead, Rlimits: true, HostNodes: true,
		Unwatched: []string{driver.Netlink, driver.FileLocks}, Stage: low.stage, Clean: clean,
		Signal:    func(_ int, sig syscall.Signal) error { return st.signal(sig) },
		Terminate: func(int) error { return st.terminate() },
		Ended: func(s *driver.Status, err error) (*driver.Status, error) {
			return st.ended(s, err, p.OCI.Process.Args[0])
		},
	})
	if err != nil {
		r.Close()
		return nil, err
	}
	go st.read()
	return proc, nil
}

// memfile is a file in memory that is read from its start.
func memfile(content string) (*os.File, error) {
	fd, err := unix.MemfdCreate("bwrap", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if _, err := f.WriteString(content); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// status is what bubblewrap writes to --json-status-fd: an object with child-pid
// once the sandbox's process 1 exists, and one with exit-code if the command was
// executed.
type status struct {
	r    *os.File
	done chan struct{} // closed when there is no more

	mu   sync.Mutex
	text []byte
}

func (s *status) read() {
	defer close(s.done)
	defer s.r.Close()
	buf := make([]byte, 512)
	for {
		n, err := s.r.Read(buf)
		s.mu.Lock()
		if len(s.text) < 1<<16 {
			s.text = append(s.text, buf[:n]...)
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// report is the objects that were written so far, in one.
type report struct {
	Pid  int  `json:"child-pid"`
	Exit *int `json:"exit-code"`
}

func (s *status) get() report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return parseReport(s.text)
}

func parseReport(text []byte) report {
	var r report
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		if d.Decode(&r) != nil {
			return r
		}
	}
}

// patience bounds how long a signal waits for the command to come into being.
const patience = 2 * time.Second

// await waits for the sandbox's process 1, and for its first child.
func (s *status) await() (init, command int) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if init = s.get().Pid; init > 1 {
			if c := supervisor.Children(init); len(c) > 0 {
				return init, c[0]
			}
		}
		select {
		case <-s.done:
			return 0, 0
		default:
		}
	}
	return 0, 0
}

func (s *status) signal(sig syscall.Signal) error {
	init, command := s.await()
	if command == 0 {
		return syscall.ESRCH
	}
	return supervisor.SignalChild(init, command, sig)
}

func (s *status) terminate() error {
	init, _ := s.await()
	if init == 0 {
		return syscall.ESRCH
	}
	return supervisor.SignalBelow(init, syscall.SIGTERM, syscall.SIGCONT)
}

// ended tells bubblewrap's own failures from the command's.
func (s *status) ended(st *driver.Status, err error, command string) (*driver.Status, error) {
	<-s.done
	if err != nil || s.get().Exit != nil || st.Signal != 0 || st.ExitCode > driver.ExitSignalBase {
		// A signal: bubblewrap was killed with all the rest, or what was to
		// become the command was, before it did.
		return st, err
	}
	if s.get().Pid != 0 && st.OOMKilled {
		st.Signal = syscall.SIGKILL // its process 1 was, before it could tell
		return st, nil
	}
	return nil, &driver.SetupError{Driver: Name,
		Err: errors.New("bubblewrap could not build the sandbox, or not execute " + strconv.Quote(command) +
			" in it; it said why on the command's stderr"),
		Fix: "check that the command and its interpreter are visible inside"}
}
