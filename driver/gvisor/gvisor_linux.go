package gvisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/rlimit"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

func (d Driver) find() (string, error) {
	path := d.Path
	if path == "" {
		var err *programs.NotFoundError
		if path, err = programs.Find(d.program()); err != nil {
			return "", &driver.UnavailableError{What: "driver " + d.Name(), Cause: err.Error(),
				Fix: err.Hint("install " + d.program() + " (Debian: apt-get install " + d.program() + ")")}
		}
	}
	return path, nil
}

// Program is the path of its file.
func (d Driver) Program() (string, error) {
	path, _ := d.find()
	return path, nil
}

// Version is the first line that the runtime's --version prints.
func (d Driver) Version() string {
	path, _ := d.find()
	line, _, _ := strings.Cut(programs.Version(path), "\n")
	return strings.TrimSpace(line)
}

// probes are the runtimes that were found to work, or not, by path: trying costs
// a container.
var probes sync.Map

// Available runs a container that ends at once.
func (d Driver) Available(ctx context.Context) error {
	path, err := d.find()
	if err != nil {
		return err
	}
	if v, ok := probes.Load(path); ok {
		err, _ := v.(error)
		return err
	}
	err = d.probe(ctx)
	if err == nil {
		probes.Store(path, nil)
		return nil
	}
	err = &driver.UnavailableError{What: "driver " + d.Name(), Cause: d.program() + " cannot run a container here",
		Err: err, Fix: "run it as root, or see what " + d.program() + " needs of the host; or use another driver"}
	probes.Store(path, err)
	return err
}

func (d Driver) probe(ctx context.Context) error {
	id := func(host int) []specs.LinuxIDMapping { return []specs.LinuxIDMapping{{HostID: uint32(host), Size: 1}} }
	p := &policy.Policy{
		OCI: &specs.Spec{
			Process: &specs.Process{Args: []string{"/bin/true"}, Cwd: "/", NoNewPrivileges: true},
			Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc"}, {Destination: "/dev", Type: "tmpfs"}},
			Linux:   &specs.Linux{UIDMappings: id(os.Geteuid()), GIDMappings: id(os.Getegid())},
		},
		Limits: policy.Limits{WallTime: 30 * time.Second},
	}
	for _, f := range []string{"/bin", "/usr", "/lib", "/lib64"} {
		p.Files = append(p.Files, policy.FileRule{Path: f, Access: policy.ReadExec, Optional: true})
	}
	for _, n := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace,
		specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		p.OCI.Linux.Namespaces = append(p.OCI.Linux.Namespaces, specs.LinuxNamespace{Type: n})
	}
	res, err := driver.Run(ctx, d, p, driver.RunOptions{Capture: true})
	if err == nil && res.ExitCode != 0 {
		err = errors.New("exit code " + strconv.Itoa(res.ExitCode) + ": " + strings.TrimSpace(res.Stderr))
	}
	return err
}

// Check lowers the policy against the host's files.
func (d Driver) Check(p *policy.Policy) error {
	if err := d.check(p); err != nil {
		return err
	}
	root, err := rootfs.Lower(d.Name(), p, rootfs.HostFS{})
	if err != nil {
		return err
	}
	tree, _, err := supervisor.Present(&root.Tree)
	if err != nil {
		return err
	}
	_, _, err = d.Spec(p, tree, Options{})
	return err
}

// Start runs the policy's command in a container.
func (d Driver) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	if err := d.check(p); err != nil {
		return nil, err
	}
	path, err := d.find()
	if err != nil {
		return nil, err
	}
	if len(stdio.Extra) != 0 && d.traits().kernel {
		return nil, &driver.UnsupportedError{Driver: d.Name(),
			Rules: []string{"descriptors beyond the standard streams"}}
	}
	root, err := rootfs.Lower(d.Name(), p, rootfs.HostFS{})
	if err != nil {
		return nil, err
	}
	tree, ops, err := supervisor.Present(&root.Tree)
	if err != nil {
		return nil, err
	}
	if err := supervisor.Lookup(p, ops); err != nil {
		return nil, err
	}
	dir, err := rundir.Make(cmp.Or(d.RunDir, rundir.Parent(os.Geteuid())), d.program(),
		func(dead string) { d.delete(path, dead) })
	if err != nil {
		return nil, &driver.SetupError{Driver: d.Name(), Err: err}
	}
	c := &container{d: d, t: d.traits(), path: path, dir: dir.Path, command: p.OCI.Process.Args[0]}
	proc, err := c.start(ctx, p, tree, stdio, func() { dir.Remove() })
	return proc, err
}

// container is one run.
type container struct {
	d       Driver
	t       traits
	path    string
	dir     string
	command string
	relays  sync.WaitGroup
}

// id names the container; it is that of its directory.
func id(dir string) string { return "sbxrun-" + filepath.Base(dir) }

func (c *container) start(ctx context.Context, p *policy.Policy, tree *mounts.Tree, stdio driver.Stdio,
	clean func()) (driver.Process, error) {
	d := c.d
	fail := func(err error) (driver.Process, error) {
		clean()
		return nil, &driver.SetupError{Driver: d.Name(), Err: err}
	}
	o := Options{UID: os.Geteuid(), GID: os.Getegid(), Bundle: c.dir}
	if p.Seccomp != "" {
		s, err := seccomp.Spec(p.Seccomp)
		if err != nil {
			return fail(err)
		}
		o.Seccomp = s
	} else {
		o.Seccomp = p.OCI.Linux.Seccomp
	}
	cfg := &supervisor.Config{
		Driver: d.Name(), Policy: p, Layers: d.Describe().Claims.Given(p),
		Env:      []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "XDG_RUNTIME_DIR=" + c.dir},
		Terminal: p.OCI.Process.Terminal, HostNodes: !c.t.kernel,
		Nested: id(c.dir),
		Signal: c.signal, Terminate: c.terminate,
		Gone:  c.gone,
		Ended: c.ended,
		Clean: clean,
	}
	if !c.t.kernel { // gVisor's own kernel has these in its memory, which is counted
		cfg.Unwatched = []string{driver.Netlink, driver.FileLocks}
	}
	switch {
	case c.t.kernel:
		cfg.Without = cgroups.Pids
	case c.t.keep:
		// The runtime's own threads are in the group: it limits the rest itself
		// where it can, and where it cannot they are allowed for.
		cfg.Overhead = runtimeThreads
		if n := policy.LimitsOf(p.OCI.Linux.Resources).Pids; n > 0 && os.Geteuid() == 0 && pidsOnV1() {
			o.Pids = n
			cfg.Overhead = 4 * runtimeThreads
		}
	default:
		cfg.Overhead = 1
	}
	stage, tree := supervisor.NewStage(tree, c.dir+"/stage")
	cfg.Stage = stage
	spec, nodes, err := d.Spec(p, tree, o)
	if err != nil {
		clean()
		return nil, err
	}
	nodes = append(nodes, Node{Path: "stage", Dir: true, Mode: 0o700})
	if !c.t.kernel {
		spec.Process.Rlimits = rlimit.Within(spec.Process.Rlimits)
	}
	if err := c.bundle(spec, nodes); err != nil {
		return fail(err)
	}

	argv := []string{d.program()}
	argv = append(argv, c.t.global...)
	if c.t.kernel {
		network := "none"
		if p.Egress.Mode == policy.EgressHost {
			network = "host"
		}
		argv = append(argv, "--network="+network)
		if os.Geteuid() != 0 {
			argv = append(argv, "--rootless")
		}
	}
	argv = append(argv, "--root", c.dir+"/state", "--log", c.t.logFile+c.dir+"/log", "--log-format", "json", "run",
		"--bundle", c.dir, "--pid-file", c.dir+"/pid")
	if c.t.keep {
		argv = append(argv, "--keep")
	}
	if n := len(stdio.Extra); n > 0 {
		argv = append(argv, "--preserve-fds", strconv.Itoa(n))
	}
	cfg.Paths, cfg.Argv, cfg.Dir = []string{c.path}, append(argv, id(c.dir)), c.dir

	if c.t.kernel && !cfg.Terminal {
		// runsc gives its standard streams to another user (fchown): they must
		// not be the caller's files, nor the host's /dev/null.
		var mine []*os.File
		if stdio, mine, err = c.relay(stdio); err != nil {
			return fail(err)
		}
		defer func() {
			for _, f := range mine {
				f.Close()
			}
		}()
	}
	cfg.Stdio = stdio
	return supervisor.Start(ctx, cfg)
}

// runtimeThreads bounds the threads of a runtime written in Go, and of its
// helpers.
const runtimeThreads = 24

// pidsOnV1 reports whether processes are limited by a version 1 hierarchy: there
// a runtime can make a limited group within one that has processes.
func pidsOnV1() bool {
	l, err := cgroups.Read()
	return err == nil && slices.ContainsFunc(l.Hierarchies,
		func(h cgroups.Hierarchy) bool { return !h.V2 && h.Controllers.Has(cgroups.Pids) })
}

// bundle writes what a runtime wants to find.
func (c *container) bundle(spec *specs.Spec, nodes []Node) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.dir+"/config.json", b, 0o600); err != nil {
		return err
	}
	for _, n := range nodes {
		at := filepath.Join(c.dir, n.Path)
		// Parents come first in a tree's operations.
		switch {
		case n.Link != "":
			err = os.Symlink(n.Link, at)
		case n.Dir:
			if err = os.Mkdir(at, 0o755); errors.Is(err, os.ErrExist) {
				err = nil
			}
		default:
			err = os.WriteFile(at, []byte(n.Data), 0o600)
		}
		if err == nil && n.Link == "" {
			err = os.Chmod(at, os.FileMode(n.Mode&0o777))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// relay puts a pipe before each standard stream. The second result are the ends
// that the runtime gets.
func (c *container) relay(stdio driver.Stdio) (driver.Stdio, []*os.File, error) {
	var mine []*os.File
	out := stdio
	fail := func(err error) (driver.Stdio, []*os.File, error) {
		for _, f := range mine {
			f.Close() // and with the other ends, the relays
		}
		return stdio, nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	mine = append(mine, r)
	out.Stdin = r
	if stdio.Stdin == nil {
		w.Close()
	} else {
		from, err := duplicate(stdio.Stdin)
		if err != nil {
			w.Close()
			return fail(err)
		}
		go func() {
			io.Copy(w, from) // ends with the pipe's other end, or the caller's
			w.Close()
			from.Close()
		}()
	}
	for i, to := range []*os.File{stdio.Stdout, stdio.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		mine = append(mine, w)
		if to != nil {
			if to, err = duplicate(to); err != nil {
				r.Close()
				return fail(err)
			}
		}
		if i == 0 {
			out.Stdout = w
		} else {
			out.Stderr = w
		}
		c.relays.Add(1)
		go func() {
			defer c.relays.Done()
			defer r.Close()
			if to == nil {
				io.Copy(io.Discard, r)
				return
			}
			defer to.Close()
			if _, err := io.Copy(to, r); err != nil {
				io.Copy(io.Discard, r)
			}
		}()
	}
	return out, mine, nil
}

// duplicate duplicates a file, which stays its owner's to close.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// runtime runs another subcommand.
func (c *container) runtime(args ...string) ([]byte, error) {
	return c.d.run(c.path, c.dir, args...)
}

func (d Driver) run(path, dir string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	argv := append(append([]string{}, d.traits().global...), "--root", dir+"/state")
	if d.traits().kernel && os.Geteuid() != 0 {
		argv = append(argv, "--rootless")
	}
	cmd := exec.CommandContext(ctx, path, append(argv, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "XDG_RUNTIME_DIR=" + dir}
	return cmd.CombinedOutput()
}

// delete removes what a runtime keeps of a container: state, and cgroups.
func (d Driver) delete(path, dir string) {
	if _, err := os.Stat(dir + "/state/" + id(dir)); err == nil || d.traits().kernel {
		d.run(path, dir, "delete", "--force", id(dir))
	}
	if !d.traits().keep {
		return
	}
	// A runtime that was killed before it wrote its state left cgroups of which
	// it knows nothing any more; it makes them below its own.
	b, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		name := strings.TrimPrefix(f[1], "name=")
		for _, top := range []string{name, "unified", ""} {
			// ENOENT mostly; EBUSY: it is no leftover.
			syscall.Rmdir(filepath.Join("/sys/fs/cgroup", top, f[2], id(dir)))
		}
	}
}

// init is the container's process 1 on the host, 0 if there is none. The pid
// file is written when the container has been created.
func (c *container) init(stage int) (parent, pid int) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		main := supervisor.Children(stage)
		if len(main) == 0 {
			return 0, 0
		}
		b, err := os.ReadFile(c.dir + "/pid")
		if pid, e := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && e == nil && pid > 1 {
			return main[0], pid
		}
	}
	return 0, 0
}

func (c *container) signal(stage int, sig syscall.Signal) error {
	parent, pid := c.init(stage)
	if pid == 0 {
		return syscall.ESRCH
	}
	if c.t.kernel {
		if out, err := c.runtime("kill", id(c.dir), strconv.Itoa(int(sig))); err != nil {
			return errors.New(strings.TrimSpace(string(out)))
		}
		return nil
	}
	return supervisor.SignalChild(parent, pid, sig)
}

func (c *container) terminate(stage int) error {
	parent, pid := c.init(stage)
	if pid == 0 {
		return syscall.ESRCH
	}
	if c.t.kernel {
		_, err := c.runtime("kill", "--all", id(c.dir), "TERM")
		return err
	}
	return supervisor.SignalTree(parent, pid, syscall.SIGTERM, syscall.SIGCONT)
}

// gone reads what the runtime's own cgroups counted, and has it remove them.
func (c *container) gone(st *driver.Status) {
	if c.t.keep {
		c.counts(st)
	}
	c.d.delete(c.path, c.dir)
}

// counts adds the verdicts of the cgroups that the runtime made within ours.
func (c *container) counts(st *driver.Status) {
	b, err := os.ReadFile(c.dir + "/state/" + id(c.dir) + "/state.json")
	if err != nil {
		return
	}
	var state struct {
		Paths map[string]string `json:"cgroup_paths"`
	}
	if json.Unmarshal(b, &state) != nil {
		return
	}
	read := func(controller, file, key string) uint64 {
		dir := cmp.Or(state.Paths[controller], state.Paths[""])
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || dir == "" {
			return 0
		}
		return count(b, key)
	}
	kills := read("memory", "memory.oom_control", "oom_kill") + read("memory", "memory.events", "oom_kill")
	if kills > 0 {
		st.OOMKilled = true
		st.Usage.OOMKills = max(st.Usage.OOMKills, kills)
	}
	if denied := read("pids", "pids.events", "max"); denied > st.PidsDenied {
		st.PidsDenied, st.Usage.PidsDenied = denied, denied
	}
}

// count finds a number in lines of names and numbers.
func count(b []byte, key string) uint64 {
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == key {
			n, _ := strconv.ParseUint(string(f[1]), 10, 64)
			return n
		}
	}
	return 0
}

// ended tells the runtime's own failures from the command's, by its log.
func (c *container) ended(st *driver.Status, err error) (*driver.Status, error) {
	c.relays.Wait()
	if err != nil {
		return st, err
	}
	if c.t.kernel && st.OOMKilled {
		// The kernel ended the sandbox as a whole, or its monitor said so.
		st.ExitCode, st.Signal = 0, syscall.SIGKILL
		return st, nil
	}
	if _, e := os.Stat(c.dir + "/pid"); e == nil && st.ExitCode != 1 && !(c.t.kernel && st.ExitCode == 128) {
		return st, nil
	}
	b, _ := os.ReadFile(c.dir + "/log")
	msg := lastError(b)
	switch {
	case st.ExitCode == 0 || st.Signal != 0:
		return st, nil
	case msg == "":
		return st, nil
	}
	if cause := notStarted(msg); cause != nil {
		return nil, &driver.CommandError{Command: c.command, Err: cause}
	}
	return nil, &driver.SetupError{Driver: c.d.Name(), Err: errors.New(c.d.program() + ": " + msg)}
}

// notStarted reads of a runtime's error that the command is not there, or cannot be
// executed; nil if it is about anything else.
func notStarted(msg string) error {
	about := false
	for _, s := range []string{"unable to start container process: exec", // runc
		"error finding executable", "failed to load", // runsc
		"executable file `", "open executable"} { // crun
		about = about || strings.Contains(msg, s)
	}
	switch {
	case !about:
	case strings.Contains(msg, "not found in $PATH") ||
		strings.Contains(strings.ToLower(msg), "no such file or directory"):
		return syscall.ENOENT
	case strings.Contains(strings.ToLower(msg), "permission denied") || strings.Contains(msg, "is a directory"):
		return syscall.EACCES
	}
	return nil
}

// lastError is the last error in a runtime's log, "" if there is none.
func lastError(log []byte) string {
	last := ""
	for line := range bytes.Lines(log) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			last = entry.Msg
		}
	}
	return last
}
