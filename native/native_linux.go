package native

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

var _ driver.Driver = Driver{}

// Available builds an empty sandbox and runs nothing in it.
func (d Driver) Available(ctx context.Context) error {
	id := func(host int) []specs.LinuxIDMapping {
		return []specs.LinuxIDMapping{{ContainerID: 1000, HostID: uint32(host), Size: 1}}
	}
	p := &policy.Policy{
		OCI: &specs.Spec{
			Process: &specs.Process{Args: []string{"/"}, Cwd: "/", NoNewPrivileges: true},
			Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Options: []string{"ro"}},
				{Destination: "/dev", Type: "tmpfs"}},
			Linux: &specs.Linux{
				UIDMappings: id(os.Geteuid()), GIDMappings: id(os.Getegid()),
			},
		},
		Seccomp: "strict",
	}
	for _, n := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace,
		specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.CgroupNamespace} {
		p.OCI.Linux.Namespaces = append(p.OCI.Linux.Namespaces, specs.LinuxNamespace{Type: n})
	}
	proc, err := d.Start(ctx, p, driver.Stdio{})
	if err != nil {
		return err
	}
	// "/" cannot be executed: that execve(2) was reached is the proof.
	_, err = proc.Wait()
	var c *driver.CommandError
	if errors.As(err, &c) {
		return nil
	}
	return err
}

// Check lowers the policy against the host's files and reports what cannot be
// enforced.
func (Driver) Check(p *policy.Policy) error {
	if err := check(p); err != nil {
		return err
	}
	_, err := rootfs.Lower(Name, p, rootfs.HostFS{})
	return err
}

// Start builds the sandbox and starts the command.
func (d Driver) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	begin := supervisor.Monotonic()
	s, err := d.prepare(ctx, p)
	if err != nil {
		return nil, err
	}
	defer s.release()
	cfg, err := s.runConfig(stdio)
	if err != nil {
		return nil, err
	}
	proc, err := s.run(cfg, stdio, begin)
	if err != nil {
		return nil, err
	}
	proc.frugal = d.Frugal
	return proc, nil
}

// runConfig writes the programs of a run of one command.
func (s *starter) runConfig(stdio driver.Stdio) (cfg *reexec.Config, err error) {
	if s.stdio, err = streams(stdio, s.low.Devices); err != nil {
		return nil, err
	}
	s.orElse = stdio.Else
	if s.net != nil {
		s.net.journal.Told = stdio.Refused
	}
	if s.guard, err = s.newGuard(s.stdio, stdio); err != nil {
		return nil, err
	}
	return s.config()
}

// run clones the second stage and starts the command. The caller calls release
// in any case: what the process needs is not the starter's any more.
func (s *starter) run(cfg *reexec.Config, stdio driver.Stdio, begin int64) (*process, error) {
	cfg.Gate = true
	child, err := s.clone(cfg)
	if err != nil {
		return nil, explain(err)
	}
	// The second stage is at work by now. Meanwhile the cgroup is made.
	if s.group != nil {
		if err := s.group.Create(); err != nil {
			child.Close(false)
			return nil, &driver.SetupError{Driver: Name, Err: err}
		}
	}
	if err := s.net.open(child); err != nil {
		if errors.Is(err, syscall.ESRCH) {
			// The stage failed while its network was made, and says why.
			if _, werr := child.Wait(); werr != nil {
				err = explain(werr)
			}
		}
		child.Close(false)
		return nil, err
	}
	if err := child.Go(); err != nil && !errors.Is(err, syscall.ESRCH) {
		child.Close(false) // release removes the cgroup
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	// It mounts, which takes longest. Meanwhile the guard gets its thread, and the caller
	// what it wants in place before the command runs.
	if stdio.Starting != nil {
		stdio.Starting()
	}
	if s.guard != nil {
		s.guard.Start() // after what makes threads: it waits in a system call, on one processor
	}
	if err := child.Go(); err != nil && !errors.Is(err, syscall.ESRCH) {
		child.Close(false)
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	s.layer.started()
	proc := &process{layer: s.layer, child: child, group: s.group, driver: s.d, policy: s.p, layers: s.layers,
		degraded: s.degraded, begin: begin, command: s.p.OCI.Process.Args[0], orElse: s.orElse, net: s.net, guard: s.guard}
	proc.hoard = s.newHoard(child, func() { proc.Kill() }, nil)
	proc.hoard.start()
	s.group, s.net, s.guard, s.layer = nil, nil, nil, nil
	if s.p.OCI.Process.Terminal {
		if stdio.Made != nil {
			stdio.Made(proc)
		}
		if proc.pty, err = child.Terminal(); err != nil {
			if proc.early, err = proc.end(nil, err); err != nil {
				return nil, err
			}
		}
	}
	return proc, nil
}

// prepare does what needs no process yet. The caller calls release unless
// there is an error.
func (d Driver) prepare(ctx context.Context, p *policy.Policy) (*starter, error) {
	s, err := d.plan(ctx, p, rootfs.HostFS{})
	if err != nil {
		return nil, err
	}
	if err := s.prepareCgroup(); err != nil {
		return nil, err
	}
	if s.net, err = newNetwork(d, p); err != nil {
		s.release()
		return nil, err
	}
	if overlaid(&s.low.Tree) {
		if s.layer, err = newLayer(); err != nil {
			s.release()
			return nil, err
		}
	}
	s.onDemand()
	return s, nil
}

// onDemand has the guard tell of connections. For a rule that names every port
// listeners are made when a port is connected to, and what no rule names is
// recorded: the kernel refuses it.
func (s *starter) onDemand() {
	if s.net != nil && s.net.gateway != nil && guard.Supported() {
		s.net.onDemand = true
		s.connect = s.net.connect
	}
}

// plan decides what can be decided without holding anything.
func (d Driver) plan(ctx context.Context, p *policy.Policy, host rootfs.Host) (*starter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := check(p); err != nil {
		return nil, err
	}
	low, err := rootfs.Lower(Name, p, host)
	if err != nil {
		return nil, err
	}
	// Times of files lag behind by a tick of the kernel's.
	s := &starter{d: d, p: p, low: low, layers: planned(p), since: time.Now().Add(-50 * time.Millisecond)}
	if err := s.filter(ctx, d); err != nil {
		return nil, err
	}
	if err := s.landlock(); err != nil {
		return nil, err
	}
	if err := s.labels(); err != nil {
		return nil, err
	}
	if err := s.protect(); err != nil {
		return nil, err
	}
	return s, nil
}

// starter is a run that is being set up.
type starter struct {
	d        Driver
	p        *policy.Policy
	low      *rootfs.Root
	layers   policy.Layers
	degraded policy.Layers
	since    time.Time // nothing inside is older
	copies   guard.Copies

	stdio     []stream // what becomes descriptors 0, 1, 2, … of the command
	bpf       seccomp.Program
	abi       int
	label     string // what is written to attr/exec, with the file below attr
	attr      string
	module    policy.Layers // whose label it is
	group     *cgroups.Group
	guard     *guard.Guard                                            // of the one command, nil for none
	limits    []specs.POSIXRlimit                                     // beside the policy's own
	connect   func(netip.AddrPort, func() bool, func() (int, string)) // for the guard; see network.connect
	orElse    string                                                  // as in driver.Stdio
	protected *guard.Config                                           // nil without protected paths
	net       *network                                                // nil if the supervisor has no part in it
	layer     *layer                                                  // nil without an overlay

	// What config leaves in the stage's registers for commands; 0 is none.
	root, ruleset, proc sys.Reg
	granted             int // rules that a ruleset which was made in advance has
	cgroupNS            bool
}

// release gives up what a run that did not come about held. Nothing of the
// sandbox is left by then.
func (s *starter) release() {
	s.net.close()
	s.layer.close()
	if s.guard != nil {
		s.guard.Close()
	}
	if s.group != nil {
		s.group.Remove()
		s.group.Close()
	}
}

// A stream is what one of the command's first descriptors is: a descriptor of
// this process, or a device that is opened in the sandbox.
type stream struct {
	fd     int
	node   string          // below the sandbox's root, "" for fd
	flags  int             // to open node with
	rights landlock.Access // what fd may be opened for again, by its path in /proc
}

// streams collects the descriptors that a command gets. If the sandbox has a
// /dev, its devices stand for the host's.
func streams(stdio driver.Stdio, dev bool) ([]stream, error) {
	if n := len(stdio.Extra); n > driver.MaxExtra {
		return nil, &policy.InvalidError{Field: "stdio.extra", Value: itoa(n) + " files",
			Want: "no more than " + itoa(driver.MaxExtra)}
	}
	list := make([]stream, 0, 3+len(stdio.Extra))
	add := func(f *os.File) error {
		if f == nil && !dev {
			return &driver.SetupError{Driver: Name, Err: &os.PathError{Op: "open", Path: "/dev/null", Err: syscall.ENOENT},
				Fix: "a sandbox without /dev needs all three standard streams"}
		}
		if f == nil {
			list = append(list, stream{node: "dev/null", flags: unix.O_RDWR})
			return nil
		}
		fd := int(f.Fd())
		st, err := supervisor.CheckStream(Name, f, len(list))
		if err != nil {
			return err
		}
		s := stream{fd: fd}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR:
			if node := ownNode(st.Rdev); dev && node != "" {
				// The sandbox's own: through the host's descriptor fchmod(2)
				// would change the host's device.
				flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
				if err != nil {
					return &driver.SetupError{Driver: Name, Err: err}
				}
				s = stream{node: node, flags: flags & unix.O_ACCMODE}
			} else {
				s.rights = landlock.Reopen(fd)
			}
		case unix.S_IFREG, unix.S_IFBLK:
			s.rights = landlock.Reopen(fd)
		}
		list = append(list, s)
		return nil
	}
	for _, f := range [...]*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr} {
		if err := add(f); err != nil {
			return nil, err
		}
	}
	for _, f := range stdio.Extra {
		if err := add(f); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ownNode is the path of the sandbox's own node for a device that every sandbox
// has and that is the same for all who open it, "" for another.
func ownNode(rdev uint64) string {
	switch rdev {
	case unix.Mkdev(1, 3):
		return "dev/null"
	case unix.Mkdev(1, 5):
		return "dev/zero"
	case unix.Mkdev(1, 7):
		return "dev/full"
	}
	return ""
}

// filter finds the seccomp program.
func (s *starter) filter(ctx context.Context, d Driver) error {
	var err error
	s.bpf, err = supervisor.Filter(ctx, Name, s.p, d.CacheDir, d.SeccompCompiler)
	return err
}

// landlock finds out which ABI the kernel has.
func (s *starter) landlock() error {
	if s.abi = sys.LandlockABI(); s.abi > 0 {
		return nil
	}
	cause, fix := sys.NoLandlock()
	return s.without(policy.LayerLandlock, cause, fix)
}

// protect finds out whether protected paths can be had, and what a guard of them
// needs to know.
func (s *starter) protect() error {
	if len(s.p.Protect) == 0 {
		return nil
	}
	cfg := s.guardConfig()
	if !cfg.Needed() {
		return nil // nothing of the host is writable
	}
	if !guard.Supported() {
		return s.without(policy.LayerProtect,
			"this kernel cannot hand system calls to a supervisor so that each is made once (seccomp, WAIT_KILLABLE_RECV)",
			"run on Linux 5.19 or later")
	}
	s.protected = cfg
	return nil
}

func (s *starter) guardConfig() *guard.Config {
	cfg := &guard.Config{Patterns: s.p.Protect, Grants: grants(s.low, s.p.Unprotected), Lock: rundir.Lock}
	if landlock.HandledUnix(s.abi) {
		cfg.Sockets = &guard.Sockets{Since: s.since}
		for i := range s.low.Ruleset.Rules {
			if r := &s.low.Ruleset.Rules[i]; r.Access&landlock.ResolveUnix != 0 {
				cfg.Sockets.Paths = append(cfg.Sockets.Paths, r.Path)
			}
		}
	}
	if s.d.Ask != nil {
		cfg.Ask = func(ctx context.Context, g guard.Denial) guard.Answer {
			d, ok := s.d.doubt(s.p, g)
			if !ok {
				return guard.Refuse
			}
			return guardAnswers[s.d.Ask(ctx, d, nil)]
		}
		cfg.Copies = &s.copies
	}
	return cfg
}

// guardAnswers are the guard's words for answers.
var guardAnswers = map[driver.Answer]guard.Answer{driver.GrantOnce: guard.Once, driver.GrantAlways: guard.Always}

// newGuard prepares the guard of a command with these streams; nil if it needs
// none.
func (s *starter) newGuard(list []stream, stdio driver.Stdio) (*guard.Guard, error) {
	explain := stdio.Explain || stdio.Seen != nil
	if s.protected == nil && s.connect == nil && !explain {
		return nil, nil
	}
	var cfg guard.Config
	if s.protected != nil {
		cfg = *s.protected
	}
	if explain {
		if !guard.Supported() {
			return nil, &driver.UnavailableError{What: "--explain",
				Cause: "this kernel cannot hand system calls to a supervisor so that each is made once (seccomp, WAIT_KILLABLE_RECV)", Fix: "run on Linux 5.19 or later"}
		}
		if s.protected == nil {
			cfg = *s.guardConfig()
		}
		cfg.Explain = true
		for i := range s.p.Files {
			if s.p.Files[i].Access == policy.Hide {
				cfg.Hidden = append(cfg.Hidden, s.p.Files[i].Path)
			}
		}
	}
	if stdio.Seen != nil {
		cfg.Seen = seen(stdio.Seen)
	}
	cfg.Connect = s.connect
	if stdio.Unasked {
		cfg.Ask = nil
	}
	if stdio.Refused != nil {
		cfg.Refused = s.d.refused(s.p, stdio.Refused)
	}
	for i := range list {
		var stat unix.Stat_t
		if st := &list[i]; st.node == "" && st.fd >= 0 && unix.Fstat(st.fd, &stat) == nil {
			rights := landlock.Reopen(st.fd)
			cfg.Streams = append(cfg.Streams, guard.Stream{File: guard.File{Dev: stat.Dev, Ino: stat.Ino},
				Read: rights&landlock.ReadFile != 0, Write: rights&landlock.WriteFile != 0})
		}
	}
	g, err := guard.New(cfg)
	if err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	return g, nil
}

// labels finds out whether the host has the security module that a label of the
// policy is for, and how it is set.
func (s *starter) labels() error {
	pr := s.p.OCI.Process
	if pr.ApparmorProfile != "" {
		if sysfs("/sys/module/apparmor/parameters/enabled") != "Y" {
			return s.without(policy.LayerAppArmor, "AppArmor is not enabled on this host",
				"boot with lsm=apparmor,…, or leave out the profile")
		}
		s.label = "exec " + pr.ApparmorProfile
		s.attr = "attr/apparmor/exec" // Linux 5.8; attr/exec may be another module's
		s.module = policy.LayerAppArmor
		s.layers |= s.module
		// Only root may read the global mode.
		mode, err := profileMode(os.DirFS("/sys/kernel/security/apparmor/policy"), pr.ApparmorProfile)
		if cause, fix := unenforced(pr.ApparmorProfile, mode, sysfs("/sys/module/apparmor/parameters/mode"),
			err); cause != "" {
			if err := s.without(policy.LayerAppArmor, cause, fix); err != nil {
				return err
			}
		}
	}
	if pr.SelinuxLabel != "" || s.p.OCI.Linux.MountLabel != "" {
		if sysfs("/sys/fs/selinux/enforce") == "" {
			return s.without(policy.LayerSELinux, "SELinux is not enabled on this host",
				"boot with lsm=selinux,…, or leave out the label")
		}
		if sysfs("/sys/fs/selinux/enforce") != "1" {
			return s.without(policy.LayerSELinux,
				"SELinux is permissive on this host: it would log what the label forbids, and allow it",
				"setenforce 1 (as root), or leave out the label")
		}
		if s.label != "" {
			return &driver.UnsupportedError{Driver: Name, Rules: []string{"an AppArmor profile together with an SELinux label"}}
		}
		if pr.SelinuxLabel != "" {
			s.label, s.attr, s.module = pr.SelinuxLabel, "attr/exec", policy.LayerSELinux
		}
		s.low.Tree.Label = s.p.OCI.Linux.MountLabel
		s.layers |= policy.LayerSELinux
	}
	return nil
}

func sysfs(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// without notes that a layer cannot be had, or reports that it may not be
// missing.
func (s *starter) without(l policy.Layers, cause, fix string) error {
	err := driver.Without(s.p, l, cause, fix)
	if err != nil {
		// Whatever is agreed to, the next refusal would come.
		if cause, fix := sys.TooOld(); cause != "" {
			return &driver.UnavailableError{What: "driver " + Name, Cause: cause, Fix: fix}
		}
		return err
	}
	s.degraded |= l
	s.layers &^= l
	return nil
}

// prepareCgroup opens the directories above the run's cgroup.
func (s *starter) prepareCgroup() (err error) {
	s.group, s.limits, err = supervisor.Group(Name, s.p.OCI.Linux.Resources, true, s.without)
	s.layers |= supervisor.GroupLayers(s.group, s.limits)
	return err
}

// clone starts the second stage.
func (s *starter) clone(cfg *reexec.Config) (*reexec.Child, error) {
	if os.Geteuid() != 0 {
		return reexec.Start(cfg)
	}
	// Supplementary groups would stay with the command, unmapped but effective.
	// Only root can leave them, and only before the user namespace exists: the
	// map that the stage may write itself gives up setgroups(2). Credentials
	// are the thread's own in Linux, so the rest of this process keeps its.
	groups, err := unix.Getgroups()
	gid := os.Getegid()
	if err != nil || !slices.ContainsFunc(groups, func(g int) bool { return g != gid }) {
		return reexec.Start(cfg)
	}
	runtime.LockOSThread()
	switch err := sys.SetThreadGroups(nil); err {
	case nil:
	case unix.EPERM:
		// Root of a user namespace or container that may not: as for an
		// ordinary user, they stay.
		runtime.UnlockOSThread()
		return reexec.Start(cfg)
	default:
		runtime.UnlockOSThread()
		return nil, &reexec.StepError{Stage: "clone", Op: "setgroups", Errno: unix.EINVAL}
	}
	child, err := reexec.Start(cfg)
	if e := sys.SetThreadGroups(groups); e != nil {
		// The thread stays locked, and ends with this goroutine: nobody else
		// is to run without the groups.
		if err == nil {
			child.Close(false)
		}
		return nil, e
	}
	runtime.UnlockOSThread()
	return child, err
}

// process is a running sandbox.
type process struct {
	child    *reexec.Child
	group    *cgroups.Group
	driver   Driver
	policy   *policy.Policy
	layers   policy.Layers
	degraded policy.Layers
	begin    int64
	command  string
	orElse   string // as in driver.Stdio
	frugal   bool
	pty      *os.File
	net      *network
	guard    *guard.Guard
	layer    *layer
	hoard    *hoard

	killed atomic.Bool    // by Kill
	early  *driver.Status // of one that was ended before it had its terminal
}

func (p *process) Signal(sig syscall.Signal) error { return p.child.Signal(sig) }
func (p *process) Terminate() error                { return p.child.Terminate() }
func (p *process) Halted() time.Duration           { return p.child.Halted() }
func (p *process) Pty() *os.File                   { return p.pty }

// Kill ends PID 1 of the sandbox, and so everything in it.
func (p *process) Kill() error {
	// Before the signal: Wait may see the end at once.
	p.killed.Store(true)
	return p.child.Kill()
}

// Reload changes the network's rules.
func (p *process) Reload(e policy.Egress) error { return p.net.reload(e) }

// Wait returns once nothing of the sandbox is left.
func (p *process) Wait() (*driver.Status, error) {
	if p.early != nil {
		return p.early, nil
	}
	exit, err := p.child.Wait()
	return p.end(exit, err)
}

// end takes down what is left and makes the status of what was recorded.
func (p *process) end(exit *reexec.Exit, err error) (*driver.Status, error) {
	var stats cgroups.Stats
	hoarded := p.hoard.stop() // before the group is closed
	removed := true
	var protocol *reexec.ProtocolError
	gone := errors.As(err, &protocol)
	if gone {
		// The stage ended without a report. Its processes die with it, but
		// only its own end proves that they have.
		p.child.Close(true)
	}
	if p.group != nil {
		// A stage that was killed reports nothing, but its processes die with
		// it; what the cgroup counted is there as long as the cgroup is.
		if !p.frugal || exit == nil || exit.Status != 0 || supervisor.Monotonic()-p.begin > longRun {
			if st, err := p.group.Stats(); err == nil {
				stats = st
			}
		}
		removed = p.group.Remove() == nil
		p.group.Close()
	}
	tried := !gone && exit != nil && exit.Status != 0 && p.net == nil && p.layers.Has(policy.LayerNet) &&
		networkTried(p.child.Pid()) > 0
	if !gone {
		p.child.Close(removed)
	}
	if p.pty != nil {
		p.pty.Close()
	}
	p.net.close()
	p.layer.receive()
	status := statusOf(p.policy, p.layers, p.degraded, stats)
	status.OOMKilled = status.OOMKilled || hoarded
	status.StorageFull, status.NetworkTried = p.hoard.scratchFull(), tried
	p.net.report(status)
	if p.guard != nil {
		list, untold := p.guard.Close()
		status.Denials = append(status.Denials, p.driver.denials(p.policy, list, untold)...)
	}
	if err != nil {
		if left := p.child.Left(); gone && (left != nil || p.killed.Load() || status.OOMKilled && p.child.Begun()) {
			if left != nil {
				supervisor.Exited(status, left, p.begin)
			} else {
				// Killed on purpose, or for its memory: the command ended with its init.
				status.Signal = syscall.SIGKILL
			}
			status.Usage.CPUUserMS, status.Usage.CPUSystemMS = supervisor.CPU(stats)
			return status, nil
		}
		if p.child.Begun() {
			return nil, &driver.LostError{Err: explain(err)}
		}
		if !gone {
			p.layer.close() // nothing ran
		}
		var exec *reexec.ExecError
		if errors.As(err, &exec) {
			return nil, &driver.CommandError{Command: exec.Of(p.command, p.orElse), Err: exec.Errno}
		}
		return nil, explain(err)
	}
	supervisor.Exited(status, exit, p.begin)
	return status, nil
}

// longRun is from when on, in nanoseconds, the counts of a command that succeeded are
// read as well: whether a limit held it back, and reading takes nothing beside.
const longRun = 5e9

// unwatched is what no hoard of a sandbox sees.
func unwatched(p *policy.Policy, layers policy.Layers) (kinds []string) {
	if !layers.Has(policy.LayerNet) { // see hoard.net
		kinds = append(kinds, driver.Netlink)
	}
	if p.Seccomp != "strict" && p.Seccomp != "production" { // see locksIn
		kinds = append(kinds, driver.FileLocks)
	}
	return driver.Unwatched(layers, kinds...)
}

// statusOf is the part of a status that the cgroup counted.
func statusOf(p *policy.Policy, layers, degraded policy.Layers, stats cgroups.Stats) *driver.Status {
	st := supervisor.Counted(stats)
	st.Layers, st.Degraded, st.Unwatched = layers, degraded, unwatched(p, layers)
	return st
}
