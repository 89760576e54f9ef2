package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/pty"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/rlimit"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/policy"
)

// Config is what a driver wants to be run.
type Config struct {
	Driver string
	Policy *policy.Policy

	// Layers are those that the driver gives this run, but for cgroup limits,
	// which are added here.
	Layers policy.Layers

	// Paths are what execve(2) is tried with, in order. Dir is where it is run,
	// "" is the caller's directory.
	Paths, Argv, Env []string
	Dir              string

	// Tries says that Paths are the command's, and so Stdio.Else is tried after them.
	Tries bool

	// Stdio are the command's descriptors; Files follow them, for the program
	// itself. FirstFile says which numbers they get.
	Stdio driver.Stdio
	Files []*os.File

	// Terminal gives the program a new terminal for its first three
	// descriptors, and makes it the controlling one.
	Terminal bool

	// Unwatched is the memory of the kernel that the program gives the command, and
	// that no cgroup counts.
	Unwatched []string

	// Without are controllers that the driver has no use of: their limits are not
	// enforced, and missing from the status.
	Without cgroups.Controllers

	// Overhead is how many processes of the program's own are in the cgroup
	// beside the command and its children.
	Overhead int64

	// Rlimits applies the policy's resource limits to the program, and so to
	// all that it starts.
	Rlimits bool

	// HostNodes says that what the command has in /dev are the host's nodes, and that
	// nothing keeps it from opening descriptors anew by /proc.
	HostNodes bool

	// Stage is what of the host the program shows; nil if its paths are the host's.
	Stage *Stage

	// Init and Restrict append to what the stage does first, and to what the
	// program's process does right before its descriptors are put in place;
	// Last comes after all else. They may be nil.
	Init, Restrict, Last func(p *sys.Program)

	// Hold are descriptors that Init's or Restrict's calls use.
	Hold []int

	// Signal and Terminate reach the command, and every process of the sandbox;
	// stage is the pid above them. Nil is the program itself, and all below
	// the stage.
	Signal    func(stage int, sig syscall.Signal) error
	Terminate func(stage int) error

	// Nested is the name of a directory that the program makes within the cgroup,
	// "" for none. Gone is called when every process is gone and before the
	// cgroup is removed, to add to what it counted, and to remove what the
	// program left in it; nil for nothing.
	Nested string
	Gone   func(*driver.Status)

	// Ended makes the status of what the program's exit means. It may replace
	// the error. Nil leaves both as they are.
	Ended func(*driver.Status, error) (*driver.Status, error)

	// Clean is called once nothing is left, also when Start fails.
	Clean func()

	// Explain turns a step that failed into an error with cause and fix, or
	// returns nil if it knows of none. It may be nil.
	Explain func(*reexec.StepError) error
}

// FirstFile is the number of the first of Config.Files.
func FirstFile(stdio driver.Stdio) int { return 3 + len(stdio.Extra) }

// Start runs the program. Nothing is left behind when it returns an error.
func Start(ctx context.Context, c *Config) (driver.Process, error) {
	s := &starter{Config: c, layers: c.Layers, begin: Monotonic()}
	proc, err := s.start(ctx)
	if err != nil {
		s.release()
		if c.Clean != nil {
			c.Clean()
		}
		return nil, err
	}
	return proc, nil
}

type starter struct {
	*Config
	layers   policy.Layers
	degraded policy.Layers
	begin    int64

	group  *cgroups.Group
	limits []specs.POSIXRlimit // in place of cgroup limits
	pty    *os.File
	slave  *os.File
	null   *os.File
	feeds  []*feed
	events *[64]byte // what the group's pids.events was when the stage let nothing fork any more; zero if it did not
}

func (s *starter) release() {
	s.endFeeds()
	if s.group != nil {
		s.group.Remove()
		s.group.Close()
	}
	for _, f := range []*os.File{s.pty, s.slave, s.null} {
		if f != nil {
			f.Close()
		}
	}
}

func (s *starter) endFeeds() {
	for _, f := range s.feeds {
		f.end()
	}
	s.feeds = nil
}

func (s *starter) setup(err error) error {
	return &driver.SetupError{Driver: s.Driver, Err: err}
}

func (s *starter) start(ctx context.Context) (driver.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.degraded = s.Policy.Dispensable() &^ s.Layers &^ policy.LayerCgroup
	if missing := driver.Wanted(s.Policy) &^ s.Layers &^ policy.LayerCgroup; missing != 0 {
		// Check refused it already where the driver never has it.
		return nil, driver.Without(s.Policy, missing, "driver "+s.Driver+" cannot have it on this host", "")
	}
	files, err := s.files()
	if err != nil {
		return nil, err
	}
	if err := s.prepareCgroup(); err != nil {
		return nil, err
	}
	cfg := s.programs(files)
	child, err := reexec.Start(cfg)
	if err != nil {
		return nil, s.explain(err)
	}
	if s.Stdio.Starting != nil {
		s.Stdio.Starting()
	}
	if s.group != nil {
		if err := s.group.Create(); err != nil {
			child.Close(false)
			return nil, s.setup(err)
		}
	}
	if err := child.Go(); err != nil && !errors.Is(err, syscall.ESRCH) {
		child.Close(false)
		return nil, s.setup(err)
	}
	proc := &process{starter: s, child: child}
	if s.slave != nil {
		s.slave.Close()
		s.slave = nil
	}
	if s.null != nil {
		s.null.Close()
		s.null = nil
	}
	return proc, nil
}

// files are what becomes descriptors 0, 1, 2, ….
func (s *starter) files() ([]int, error) {
	var fds []int
	var err error
	if s.Terminal {
		if s.pty, s.slave, err = pty.Open(s.Policy.OCI.Process.ConsoleSize); err != nil {
			return nil, s.setup(err)
		}
	}
	for i, f := range append([]*os.File{s.Stdio.Stdin, s.Stdio.Stdout, s.Stdio.Stderr}, s.Stdio.Extra...) {
		if s.Terminal && i < 3 {
			f = s.slave
		}
		if f == nil {
			if s.null == nil {
				if s.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
					return nil, s.setup(err)
				}
			}
			f = s.null
		}
		st, err := CheckStream(s.Driver, f, i)
		if err != nil {
			return nil, err
		}
		if s.HostNodes && needsFeed(int(f.Fd()), st.Mode) {
			fed, err := newFeed(f)
			if err != nil {
				return nil, s.setup(err)
			}
			s.feeds = append(s.feeds, fed)
			f = fed.r
		}
		fds = append(fds, int(f.Fd()))
	}
	for _, f := range s.Files {
		fds = append(fds, int(f.Fd()))
	}
	return fds, nil
}

// prepareCgroup opens the directories above the run's cgroup.
func (s *starter) prepareCgroup() error {
	if s.Policy.OCI.Linux == nil || s.Policy.OCI.Linux.Resources == nil {
		return nil
	}
	r := *s.Policy.OCI.Linux.Resources
	if s.Without.Has(cgroups.Memory) {
		r.Memory = nil
	}
	if s.Without.Has(cgroups.CPU) {
		r.CPU = nil
	}
	if l := Layers(s.Without) & driver.Called(s.Policy); l != 0 {
		if err := driver.Without(s.Policy, l, "driver "+s.Driver+" does not have it", ""); err != nil {
			return err
		}
		s.degraded |= l
	}
	switch {
	case s.Without.Has(cgroups.Pids):
		r.Pids = nil
	case policy.LimitsOf(&r).Pids > 0 && s.Overhead > 0:
		limit := *r.Pids.Limit + s.Overhead
		r.Pids = &specs.LinuxPids{Limit: &limit}
	}
	var err error
	s.group, s.limits, err = Group(s.Driver, &r, false, func(l policy.Layers, cause, fix string) error {
		s.degraded |= l
		return driver.Without(s.Policy, l, cause, fix)
	})
	s.layers |= GroupLayers(s.group, s.limits)
	return err
}

// programs writes what the stage and the program's process do.
func (s *starter) programs(fds []int) *reexec.Config {
	init, start, cmd, freeze := &sys.Program{}, &sys.Program{}, &sys.Program{}, &sys.Program{}
	cfg := &reexec.Config{Tree: true, Init: init, Start: start, Command: cmd, Freeze: freeze, Paths: s.Paths,
		Argv: s.Argv, Env: s.Env}
	if s.Tries {
		cfg.Else = reexec.OrElse(s.Stdio.Else, s.Env)
	}
	cfg.Keep = append(append(cfg.Keep, fds...), s.Hold...)
	if s.Init != nil {
		s.Init(init)
	}
	start.ReserveRegs(init)
	if s.group != nil {
		for _, slot := range s.group.Parents() {
			cfg.Keep = append(cfg.Keep, slot.ParentFD)
			if s.Nested != "" {
				cfg.Dirs = append(cfg.Dirs, reexec.Dir{ParentFD: slot.ParentFD, Name: slot.Name + "/" + s.Nested})
			}
			cfg.Dirs = append(cfg.Dirs, reexec.Dir{ParentFD: slot.ParentFD, Name: slot.Name})
			if slot.V2 && sys.HasClone3() {
				cfg.Cgroup = start.NewReg()
				start.Layer(uint32(policy.LayerCgroup))
				start.Call(cfg.Cgroup, sys.Step{Op: "openat", Object: "cgroup"}, unix.SYS_OPENAT,
					sys.Imm(slot.ParentFD), start.Str(slot.Name),
					sys.Imm(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC), sys.Imm(0))
			}
		}
	}
	cmd.ReserveRegs(start)
	fd := cmd.NewReg()
	cmd.Layer(uint32(policy.LayerCgroup))
	if s.group != nil {
		for _, slot := range s.group.Parents() {
			file := slot.Name + "/tasks"
			if slot.V2 {
				put(freeze, slot.ParentFD, slot.Name+"/cgroup.kill", "1")
				if cfg.Cgroup != 0 {
					continue
				}
				file = slot.Name + "/cgroup.procs" // what there is where clone3(2) is filtered
			}
			// "0" is the writer.
			step := sys.Step{Op: "join", Object: "cgroup"}
			cmd.Call(fd, step, unix.SYS_OPENAT, sys.Imm(slot.ParentFD), cmd.Str(file),
				sys.Imm(unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC), sys.Imm(0))
			cmd.Call(0, step, unix.SYS_WRITE, fd.Value(), cmd.Data("0"), sys.Imm(1))
			if !slot.V2 {
				// What forks faster than it is killed can fork no more. That is no limit
				// of the policy's, so what was refused before is noted.
				if s.events == nil {
					s.events = new([64]byte)
				}
				get(freeze, slot.ParentFD, slot.Name+"/pids.events", s.events)
				put(freeze, slot.ParentFD, slot.Name+"/pids.max", "0")
			}
		}
	}
	cmd.Layer(0)
	cmd.Call(0, sys.Step{Op: "setsid"}, unix.SYS_SETSID)
	if s.slave != nil {
		cmd.Call(0, sys.Step{Op: "ioctl", Object: "TIOCSCTTY"}, unix.SYS_IOCTL, sys.Imm(int(s.slave.Fd())),
			sys.Imm(unix.TIOCSCTTY), sys.Imm(0))
	}
	if s.Dir != "" {
		cmd.Call(0, sys.Step{Op: "chdir", Object: s.Dir}, unix.SYS_CHDIR, cmd.Str(s.Dir))
	}
	if os.Geteuid() == 0 {
		// Root's supplementary groups are none of the command's. EPERM: root of
		// a user namespace that may not.
		cmd.Call(0, sys.Step{Op: "setgroups"}, unix.SYS_SETGROUPS, sys.Imm(0), sys.Imm(0)).Allow(unix.EPERM)
	}
	// A session keyring of its own; see keyctl(2). ENOSYS: a kernel without
	// keys; EPERM: a container that filters the call.
	keyring := cmd.Call(0, sys.Step{Op: "keyctl", Object: "session keyring"}, unix.SYS_KEYCTL,
		sys.Imm(unix.KEYCTL_JOIN_SESSION_KEYRING), sys.Imm(0))
	if errno := keyctlFiltered(); errno != 0 {
		keyring.Allow(errno)
	} else {
		keyring.Allow(unix.ENOSYS)
	}
	own := map[uint64]string{}
	if s.HostNodes {
		own = ownNodes()
	}
	if len(own) != 0 || s.Stage != nil {
		step := sys.Step{Op: "unshare", Object: "mounts, to make device nodes read-only and to hold what is shown"}
		cmd.Call(0, step, unix.SYS_UNSHARE, sys.Imm(unix.CLONE_NEWNS))
		cmd.Call(0, step, unix.SYS_MOUNT, cmd.Str("none"), cmd.Str("/"), cmd.Str("none"),
			sys.Imm(unix.MS_REC|unix.MS_SLAVE), sys.Imm(0))
	}
	keepNodes(cmd, fds, own)
	if s.Stage != nil {
		s.Stage.append(cmd)
	}
	if s.Restrict != nil {
		s.Restrict(cmd)
	}
	cmd.Layer(0)
	sources := make([]sys.Value, len(fds))
	for i, fd := range fds {
		sources[i] = sys.Imm(fd)
	}
	Place(cmd, fds, sources)
	cmd.Layer(uint32(policy.LayerRlimits))
	if s.Rlimits {
		rlimit.Append(cmd, s.Policy.OCI.Process.Rlimits)
	}
	rlimit.Append(cmd, s.limits)
	cmd.Layer(0)
	// The stage has every signal blocked.
	cmd.Call(0, sys.Step{Op: "rt_sigprocmask"}, unix.SYS_RT_SIGPROCMASK, sys.Imm(unix.SIG_SETMASK),
		sys.Ptr(cmd, new(uint64)), sys.Imm(0), sys.Imm(8))
	if s.Last != nil {
		s.Last(cmd)
	}
	freeze.ReserveRegs(cmd)
	return cfg
}

// nodes are those of the host's /dev that every sandbox has.
var nodes = [...]string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// ownNodes are the nodes that belong to the caller, and so to the command, by number.
func ownNodes() map[uint64]string {
	own := map[uint64]string{}
	for _, path := range nodes {
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && int(st.Uid) == os.Geteuid() {
			own[st.Rdev] = path
		}
	}
	return own
}

// keepNodes makes nodes read-only in the program's own mount namespace: a mount that is
// made of such a one is read-only too. A descriptor of a node is replaced by one that
// is opened anew there, for through the old one fchmod(2) would change the host's.
func keepNodes(p *sys.Program, fds []int, own map[uint64]string) {
	tree := p.NewReg()
	for _, path := range own {
		step := sys.Step{Op: "make read-only", Object: path}
		p.Call(tree, step, unix.SYS_OPEN_TREE, sys.Imm(unix.AT_FDCWD), p.Str(path),
			sys.Imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW))
		p.Call(0, step, unix.SYS_MOUNT_SETATTR, tree.Value(), p.Str(""), sys.Imm(unix.AT_EMPTY_PATH),
			sys.Ptr(p, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}), sys.Imm(unix.MOUNT_ATTR_SIZE_VER0))
		p.Call(0, step, unix.SYS_MOVE_MOUNT, tree.Value(), p.Str(""), sys.Imm(unix.AT_FDCWD), p.Str(path),
			sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH))
		p.Call(0, step, unix.SYS_CLOSE, tree.Value())
	}
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || own[st.Rdev] == "" ||
			st.Rdev == unix.Mkdev(5, 0) {
			continue // a terminal may be open as /dev/tty, which is another's by now
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			continue // closed: its use fails below
		}
		step := sys.Step{Op: "open", Object: own[st.Rdev]}
		p.Call(tree, step, unix.SYS_OPENAT, sys.Imm(unix.AT_FDCWD), p.Str(own[st.Rdev]),
			sys.Imm(flags&unix.O_ACCMODE|unix.O_CLOEXEC), sys.Imm(0))
		p.Call(0, step, unix.SYS_DUP3, tree.Value(), sys.Imm(fd), sys.Imm(unix.O_CLOEXEC))
		p.Call(0, step, unix.SYS_CLOSE, tree.Value())
	}
}

// keyctlFiltered is the errno that a container's filter has for keyctl(2), 0 if
// it lets it through.
func keyctlFiltered() syscall.Errno {
	_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err == unix.EPERM || err == unix.EACCES {
		return unix.EPERM
	}
	return 0
}

// put writes a file of a cgroup; that it is not there changes nothing.
func put(p *sys.Program, parent int, name, value string) {
	fd := p.NewReg()
	step := sys.Step{Op: "write", Object: name}
	open := p.Call(fd, step, unix.SYS_OPENAT, sys.Imm(parent), p.Str(name),
		sys.Imm(unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC), sys.Imm(0))
	open.AllowSkip(unix.ENOENT, 2)
	p.Call(0, step, unix.SYS_WRITE, fd.Value(), p.Data(value), sys.Imm(len(value)))
	p.Call(0, step, unix.SYS_CLOSE, fd.Value())
}

// get reads a file of a cgroup; that it cannot be read changes nothing.
func get(p *sys.Program, parent int, name string, into *[64]byte) {
	fd := p.NewReg()
	step := sys.Step{Op: "read", Object: name}
	p.Call(fd, step, unix.SYS_OPENAT, sys.Imm(parent), p.Str(name), sys.Imm(unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC),
		sys.Imm(0)).AllowAny(2)
	p.Call(0, step, unix.SYS_READ, fd.Value(), sys.Ptr(p, into), sys.Imm(len(into))).AllowAny(0)
	p.Call(0, step, unix.SYS_CLOSE, fd.Value())
}

func (s *starter) explain(err error) error {
	var step *reexec.StepError
	if errors.As(err, &step) && s.Explain != nil {
		if e := s.Explain(step); e != nil {
			return e
		}
	}
	if step != nil && step.Op == "keyctl" && step.Errno == unix.EDQUOT {
		return &driver.SetupError{Driver: s.Driver, Err: err, Fix: driver.FixKeys}
	}
	return s.setup(err)
}

// process is a running program.
type process struct {
	driver.Fixed
	*starter
	child *reexec.Child
	over  atomic.Bool  // everything is gone: a pid may be another's
	since atomic.Int64 // monotonic: when Terminate was called first
}

func (p *process) Pty() *os.File { return p.pty }

func (p *process) Signal(sig syscall.Signal) error {
	if p.starter.Signal == nil {
		return p.child.Signal(sig)
	}
	if p.over.Load() {
		return syscall.ESRCH
	}
	return p.starter.Signal(p.child.Pid(), sig)
}

// Halted has a stage continue that somebody stopped.
func (p *process) Halted() time.Duration { return p.child.Halted() }

func (p *process) Terminate() error {
	if p.over.Load() {
		return syscall.ESRCH
	}
	p.since.CompareAndSwap(0, Monotonic())
	if p.starter.Terminate != nil {
		return p.starter.Terminate(p.child.Pid())
	}
	return SignalBelow(p.child.Pid(), syscall.SIGTERM, syscall.SIGCONT)
}

func (p *process) Kill() error { return p.child.Kill() }

func (p *process) Wait() (*driver.Status, error) {
	exit, err := p.child.Wait()
	p.over.Store(true)
	p.endFeeds()
	var protocol *reexec.ProtocolError
	if errors.As(err, &protocol) && p.group != nil {
		// The stage was killed, by who may do that, and cannot end what it
		// watched over.
		p.group.Kill()
	}
	var stats cgroups.Stats // zero where it cannot be read
	if p.group != nil {
		if p.events != nil && p.events[0] != 0 {
			p.group.ForksClosed(p.events[:])
		}
		stats, _ = p.group.Stats()
	}
	status := Counted(stats)
	status.Layers, status.Degraded, status.Unwatched = p.layers, p.degraded, driver.Unwatched(p.layers, p.Unwatched...)
	if p.Gone != nil {
		p.Gone(status)
	}
	removed := true
	if p.group != nil {
		removed = p.group.Remove() == nil
		p.group.Close()
		p.group = nil
	}
	p.child.Close(removed)
	if p.pty != nil {
		p.pty.Close()
	}
	if err != nil && p.child.Begun() {
		if left := p.child.Left(); left != nil {
			exit, err = left, nil
		} else {
			err = &driver.LostError{Err: fmt.Errorf("driver %s: the process that watches the command: %w",
				p.starter.Driver, err)}
		}
	}
	if err == nil {
		Exited(status, exit, p.begin)
		since := p.since.Load()
		status.EndedFirst = exit.First && (since == 0 || int64(exit.EndNS) < since)
	} else {
		var exec *reexec.ExecError
		switch {
		case errors.As(err, &exec):
			err = &driver.CommandError{Command: exec.Of(p.Argv[0], p.Stdio.Else), Err: exec.Errno}
		default:
			err = p.explain(err)
		}
	}
	if p.Ended != nil {
		status, err = p.Ended(status, err)
	}
	if p.Clean != nil {
		p.Clean()
	}
	if err != nil {
		return nil, err
	}
	return status, nil
}
