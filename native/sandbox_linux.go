package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/namespaces"
	"github.com/sbxrun/sbxrun/policy"
)

// maxCommands is how many commands may run in one sandbox at a time. As many may
// have ended and left processes behind.
const maxCommands = 1024

// maxStreamsBesideTasks is how many streams leave room for the files of [sandbox.tasks]
// in one message.
const maxStreamsBesideTasks = 8

// closePatience is how long a sandbox may take to end what is in it before its
// init is killed: a process in an uninterruptible wait takes time to die.
const closePatience = 5 * time.Second

// Open builds a sandbox that stays.
func (d Driver) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	s, err := d.prepare(ctx, withoutCommand(p))
	if err != nil {
		return nil, err
	}
	defer s.release()
	cfg, cgroup, err := s.openConfig()
	if err != nil {
		return nil, err
	}
	b, err := s.stay(cfg, cgroup)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// openConfig writes the programs of a sandbox that stays. Its cgroup will be in
// the register.
func (s *starter) openConfig() (*reexec.Config, sys.Reg, error) {
	cfg, tree, err := s.beginToStay()
	if err != nil {
		return nil, 0, err
	}
	if err := s.complete(cfg.Init, tree, nil); err != nil {
		return nil, 0, err
	}
	cfg.Start = &sys.Program{}
	cfg.Start.ReserveRegs(cfg.Init)
	cgroup := openGroup(cfg.Start, s.group)
	cfg.Hold, cfg.Command = s.hold(cgroup), &sys.Program{}
	s.breakLayer(cfg)
	return cfg, cgroup, nil
}

// beginToStay is begin for a sandbox of many commands: what each process gives up for
// all that it starts, PID 1 gives up once, and it enters the root as soon as there is
// one.
func (s *starter) beginToStay() (*reexec.Config, *mounts.Building, error) {
	cfg, tree, err := s.begin()
	if err != nil {
		return nil, nil, err
	}
	cfg.Init.Layer(0)
	namespaces.AppendDropBounding(cfg.Init)
	cfg.Init.Layer(uint32(policy.LayerMount))
	tree.Enter(cfg.Init)
	return cfg, tree, nil
}

// stay opens a sandbox and waits until its PID 1 serves.
func (s *starter) stay(cfg *reexec.Config, cgroup sys.Reg) (*sandbox, error) {
	b, err := s.open(cfg)
	if err != nil {
		return nil, err
	}
	b.cgroup = cgroup
	if err = b.child.Go(); err == nil {
		err = b.answers()
	}
	if err != nil {
		b.Close()
		return nil, b.gone(err)
	}
	b.layer.receive()
	return b, nil
}

// complete writes what PID 1 does from the end of begin on, up to the first
// command, but for opening the cgroup.
func (s *starter) complete(p *sys.Program, tree *mounts.Building, rest []mounts.Entry) (err error) {
	p.Layer(uint32(policy.LayerMount))
	if s.root, err = tree.Finish(p, rest); err != nil {
		return err
	}
	s.sendLayer(p, tree)
	// One scope for all commands, by way of their parent.
	s.low.Ruleset.Unscoped = true
	if s.protected != nil {
		s.protected.Shared = &sync.Mutex{}
		if s.protected.Rules == nil {
			if s.protected.Rules, err = guard.NewRules(s.protected.Patterns); err != nil {
				return err
			}
		}
	}
	s.rules(p)
	if s.abi > 0 {
		p.Layer(uint32(policy.LayerLandlock))
		landlock.AppendScope(p, s.root, s.abi, s.low.Ruleset.Rules)
	}
	return nil
}

// hold are the registers that commands need.
func (s *starter) hold(cgroup sys.Reg) (list []sys.Reg) {
	for _, r := range []sys.Reg{s.root, s.ruleset, s.proc, cgroup} {
		if r != 0 {
			list = append(list, r)
		}
	}
	return list
}

// open starts the stage of a sandbox that stays, and gives it its cgroup and its
// network. It has what the starter held.
func (s *starter) open(cfg *reexec.Config) (*sandbox, error) {
	cfg.Finish = nil // in the scope no mount can be taken down; they end with PID 1
	cfg.MaxJobs = maxCommands
	if s.group != nil {
		// Those of commands are within the sandbox's, so they go first.
		var dirs []reexec.Dir
		if slot, ok := s.group.SubParent(groupPrefix); ok {
			dirs = append(dirs, reexec.Dir{ParentFD: slot.ParentFD, Name: slot.Name, N: maxCommands})
		}
		for _, slot := range s.group.Parents() {
			dirs = append(dirs, reexec.Dir{ParentFD: slot.ParentFD, Name: slot.Name + "/" + groupPrefix,
				From: maxCommands, N: maxLimited})
		}
		cfg.Dirs = append(dirs, cfg.Dirs...)
	}
	child, err := s.clone(cfg)
	if err != nil {
		return nil, explain(err)
	}
	driver.ReserveThreads()
	b := &sandbox{s: s, child: child, done: make(chan struct{})}
	if s.group != nil {
		if err := s.group.Create(); err != nil {
			child.Close(false) // release removes the cgroup
			return nil, &driver.SetupError{Driver: Name, Err: err}
		}
		b.group = s.group
		b.subs = make([]*cgroups.Group, maxCommands+maxLimited)
	}
	s.layer.started()
	b.net, b.layer = s.net, s.layer
	b.hoard = s.newHoard(child, func() { child.Kill() },
		func() bool { return child.Quiet() == uint64(b.starts.Load()) })
	s.group, s.net, s.layer = nil, nil, nil
	err = b.net.open(child)
	go b.watch() // which closes the network
	if err != nil {
		b.Close()
		return nil, b.gone(err)
	}
	return b, nil
}

// Completed waits until the sandbox is complete.
func (b *sandbox) Completed() error {
	if !b.unproven.Load() {
		return nil
	}
	err := b.answers()
	if err == nil {
		b.unproven.Store(false)
		return nil
	}
	return b.refused(err)
}

// answers asks PID 1 to do nothing. That it does as it is told is the proof that
// its set-up is complete.
func (b *sandbox) answers() error {
	j, err := b.child.NewJob()
	if err != nil {
		return err
	}
	return j.Call()
}

// withoutCommand is a policy with what every policy needs in the place of a
// command of its own.
func withoutCommand(p *policy.Policy) *policy.Policy {
	if p.OCI == nil || p.OCI.Process == nil {
		return p // refused by check
	}
	q, oci, pr := *p, *p.OCI, *p.OCI.Process
	pr.Args, pr.Terminal, pr.ConsoleSize = []string{"/"}, false, nil
	oci.Process, q.OCI = &pr, &oci
	return &q
}

// groupOf names the cgroup of the command in a place.
func groupOf(place int) string { return groupPrefix + strconv.Itoa(place) }

const groupPrefix = "c"

// sandbox is one that stays.
type sandbox struct {
	s      *starter // how it was set up; not written to
	child  *reexec.Child
	cgroup sys.Reg // version 2, 0 for none
	net    *network
	layer  *layer
	hoard  *hoard

	mu    sync.Mutex
	group *cgroups.Group   // nil for none, and after the end
	subs  []*cgroups.Group // of commands, by place; nil is free
	next  [2]int           // of those without limits of their own, and with

	// spare is a group without limits of its own in which no process is, for the
	// next command; nil for none. It has its place in subs.
	spare      *cgroups.Group
	sparePlace int
	spareUsed  bool  // by a command before
	tasks      []int // files by which it is entered, open already; as joins has them

	unproven atomic.Bool // handed out while it is being completed, until PID 1 has done anything after that

	starts atomic.Int64 // commands that were to start
	alone  atomic.Int64 // which of them, the first being 1, was the last to leave PID 1 alone

	// pidsDenied and oomKills are what the groups of commands counted
	// themselves: version 1 counts where a process is, not where the limit is.
	pidsDenied, oomKills uint64

	patience time.Duration // with a command that is to start, see reexec.Job; 0 is the default

	done    chan struct{}
	err     error // the init's last word, once done is closed
	hoarded bool  // and whether hoard ended it
}

// watch waits for the sandbox's end, and removes what is left.
func (b *sandbox) watch() {
	_, err := b.child.Wait()
	b.hoarded = b.hoard.stop()
	var protocol *reexec.ProtocolError
	if errors.As(err, &protocol) {
		// PID 1 is dead, or will be: its end is the end of everything inside.
		b.child.Kill()
	}
	b.mu.Lock()
	removed := true
	if b.group != nil {
		// A busy machine takes its time over the end of a process.
		for range 3 {
			if removed = b.group.Remove() == nil; removed {
				break
			}
		}
		b.group.Close()
		b.group = nil
	}
	closeAll(b.tasks)
	b.tasks = nil
	b.mu.Unlock()
	b.child.Close(removed)
	b.net.close()
	b.layer.close()
	b.err = err
	close(b.done)
}

// gone makes an error of what the sandbox's init said, if it has ended.
func (b *sandbox) gone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		<-b.done
		if b.err != nil {
			return explain(b.err)
		}
		return &driver.SetupError{Driver: Name, Err: driver.ErrSandboxGone}
	}
	return explain(err)
}

// Done is closed when nothing of the sandbox is left.
func (b *sandbox) Done() <-chan struct{} { return b.done }

// Close ends everything in the sandbox and waits until it is gone.
func (b *sandbox) Close() error {
	b.unproven.Store(false) // it ends because it is to
	if err := b.child.End(); err != nil {
		b.child.Kill() // it does not listen, or is gone
	}
	select {
	case <-b.child.Over():
		// What is left is to take it down, which takes its time on a busy
		// machine. PID 1 lives on until then, to do what here cannot be done.
	case <-time.After(closePatience):
		b.child.Kill()
	}
	<-b.done
	return nil
}

// End ends everything in the sandbox.
func (b *sandbox) End() error {
	if n := b.starts.Load(); n > 0 && b.alone.Load() == n {
		return nil // nothing is left, and nothing was started since
	}
	b.unproven.Store(false)
	if err := b.child.End(); err != nil {
		return b.Close()
	}
	select {
	case <-b.child.Over():
		return nil
	case <-time.After(closePatience):
		return b.Close()
	}
}

// Reload changes the network's rules.
func (b *sandbox) Reload(e policy.Egress) error { return b.net.reload(e) }

// Idle reports whether nothing runs in the sandbox. All that does is a child of its
// PID 1, or a child of such a one: what loses its parent becomes PID 1's. A kernel
// without CONFIG_PROC_CHILDREN cannot tell; see proc_pid_task_children(5).
func (b *sandbox) Idle() bool {
	dir := "/proc/" + strconv.Itoa(b.child.Pid()) + "/task"
	tasks, err := os.ReadDir(dir)
	for _, t := range tasks {
		var list []byte
		if list, err = os.ReadFile(dir + "/" + t.Name() + "/children"); err != nil || len(list) > 0 {
			return false
		}
	}
	return err == nil && len(tasks) > 0
}

// Status tells what was counted so far.
func (b *sandbox) Status() (*driver.Status, error) {
	stats, err := b.stats()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	stats.PidsDenied = max(stats.PidsDenied, b.pidsDenied)
	stats.OOMKills += b.oomKills
	if stats.PidsDenied > 0 && b.group != nil {
		stats.PidsBy = b.group.PidsBy(stats.PidsPeak)
	}
	b.mu.Unlock()
	st := statusOf(b.s.p, b.s.layers, b.s.degraded, stats)
	st.Usage.CPUUserMS, st.Usage.CPUSystemMS = supervisor.CPU(stats)
	b.net.report(st)
	select {
	case <-b.done:
		if b.hoarded {
			st.Signal, st.OOMKilled = syscall.SIGKILL, true
		}
	default:
	}
	return st, nil
}

func (b *sandbox) stats() (cgroups.Stats, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group == nil {
		return cgroups.Stats{}, nil
	}
	return b.group.Stats()
}

// tried counts what asked for the network that the sandbox has not.
func (b *sandbox) tried() uint64 {
	if b.net != nil || !b.s.layers.Has(policy.LayerNet) {
		return 0
	}
	return networkTried(b.child.Pid())
}

// counts is stats, but no usage.
func (b *sandbox) counts() (cgroups.Stats, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group == nil {
		return cgroups.Stats{}, nil
	}
	return b.group.Counts()
}

// process completes what Exec was given by what the policy says.
func (b *sandbox) process(want *specs.Process) (*specs.Process, error) {
	if want == nil || len(want.Args) == 0 {
		return nil, &policy.InvalidError{Field: "process.args", Want: "a command"}
	}
	own := b.s.p.OCI.Process
	pr := *own
	pr.Args, pr.Terminal, pr.ConsoleSize = want.Args, want.Terminal, want.ConsoleSize
	if want.Env != nil {
		pr.Env = want.Env
	}
	if want.Cwd != "" {
		pr.Cwd = want.Cwd
	}
	if want.Rlimits != nil {
		pr.Rlimits = want.Rlimits
	}
	rest := *want
	rest.Args, rest.Env, rest.Cwd, rest.Rlimits, rest.Terminal, rest.ConsoleSize = nil, nil, "", nil, false, nil
	if !emptyProcess(&rest) {
		return nil, &policy.InvalidError{Field: "process",
			Want: "no more than args, env, cwd, rlimits and terminal: the rest is the sandbox's"}
	}
	// What the policy says besides was checked with the sandbox; a layer that it
	// requires must not go with the command's own limits.
	if want.Rlimits == nil {
		return &pr, policy.CheckProcess(&pr)
	}
	p := *b.s.p
	oci := *p.OCI
	oci.Process = &pr
	p.OCI = &oci
	return &pr, check(&p)
}

// emptyProcess reports whether nothing is set that Exec does not take.
func emptyProcess(pr *specs.Process) bool {
	return pr.User.UID == 0 && pr.User.GID == 0 && pr.User.Umask == nil && len(pr.User.AdditionalGids) == 0 &&
		pr.User.Username == "" &&
		pr.CommandLine == "" && pr.Capabilities == nil && !pr.NoNewPrivileges && pr.ApparmorProfile == "" &&
		pr.OOMScoreAdj == nil &&
		pr.Scheduler == nil && pr.SelinuxLabel == "" && pr.IOPriority == nil && pr.ExecCPUAffinity == nil
}

// Exec starts a command beside those that run.
func (b *sandbox) Exec(ctx context.Context, want *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	return b.ExecWithin(ctx, want, nil, stdio)
}

// ExecWithin starts a command with limits of its own.
func (b *sandbox) ExecWithin(ctx context.Context, want *specs.Process, limits *specs.LinuxResources,
	stdio driver.Stdio) (driver.Process, error) {
	begin := supervisor.Monotonic()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, err := b.within(limits)
	if err != nil {
		return nil, err
	}
	in, err := b.job(want, w, stdio, begin)
	if err != nil {
		return nil, err
	}
	if stdio.Starting != nil {
		stdio.Starting()
	}
	if err := in.start(); err != nil {
		return nil, err
	}
	return in, nil
}

// job lays out a command. What it returns is started, or dropped.
func (b *sandbox) job(want *specs.Process, w *within, stdio driver.Stdio, begin int64) (in *inside, err error) {
	pr, err := b.process(want)
	if err != nil {
		return nil, err
	}
	list, err := streams(stdio, b.s.low.Devices)
	if err != nil {
		return nil, err
	}
	j, err := b.child.NewJob()
	if err != nil {
		return nil, b.refused(err)
	}
	in = &inside{box: b, job: j, place: -1, begin: begin, command: pr.Args[0], orElse: stdio.Else, cgroup: -1, within: w}
	defer func() {
		if err != nil {
			in.drop()
			select {
			case <-b.child.Over():
				err = b.refused(syscall.ESRCH) // what else failed, failed for that
			default:
			}
			in, err = nil, setupError(err)
		}
	}()
	if err = in.takeGroup(); err != nil {
		return in, err
	}
	if len(list) > maxStreamsBesideTasks {
		closeAll(in.tasks)
		in.tasks = nil
	}

	c := command{p: j.Steps, process: pr, stdio: list, sources: make([]sys.Value, len(list)), root: b.s.root,
		proc: b.s.proc, ruleset: b.s.ruleset, cgroupNS: b.s.cgroupNS, bounded: true}
	if in.guard, err = b.s.newGuard(list, stdio); err != nil {
		return in, err
	}
	rights := false
	for i := range list {
		if list[i].node == "" {
			c.sources[i] = j.Pass(list[i].fd).Value()
			list[i].fd = -1 // it will be another in there
			rights = rights || list[i].rights != 0
		}
	}
	j.Cgroup = b.cgroup
	if in.cgroup >= 0 {
		j.Cgroup = j.Pass(in.cgroup)
	}
	for _, fd := range in.tasks {
		c.tasks = append(c.tasks, j.Pass(fd).Value())
	}
	if in.guard != nil {
		c.guard, c.guardFD = in.guard, j.Pass(in.guard.FD()).Value()
	}
	for i := range list {
		if list[i].node != "" {
			c.sources[i] = openNode(j.Steps, b.s.root, &list[i])
		}
	}
	if rights && c.ruleset != 0 {
		// A ruleset of its own: what is granted in the common one is granted
		// to every later command.
		j.Steps.Layer(uint32(policy.LayerLandlock))
		rs := b.s.low.Ruleset
		rs.Late = true
		c.ruleset = landlock.Append(j.Steps, b.s.root, b.s.abi, &rs)
		handled, _ := landlock.Handled(b.s.abi)
		for i := range list {
			if list[i].rights != 0 {
				landlock.AppendStream(j.Steps, c.ruleset, c.sources[i], list[i].rights&handled)
			}
		}
	}
	if pr.Terminal {
		j.Steps.Layer(0)
		c.slave = terminal(j.Steps, b.s.root, pr.ConsoleSize, j.SendTerminal)
	}
	c.join, c.rlimits = in.join, b.rlimitsOf(w)
	b.s.append(&c)
	j.Paths, j.Argv, j.Env = reexec.Candidates(pr.Args[0], pr.Env), pr.Args, b.net.environ(pr.Env)
	j.Else = reexec.OrElse(stdio.Else, pr.Env)
	return in, nil
}

// setupError makes an error of a part of the set-up one of the driver's.
func setupError(err error) error {
	var setup *driver.SetupError
	if errors.As(err, &setup) {
		return err
	}
	return &driver.SetupError{Driver: Name, Err: err}
}

// start has the init run the command.
func (in *inside) start() error {
	b := in.box
	in.nth, in.refused = b.starts.Add(1), b.net.refused()
	b.hoard.start()
	if in.nth > 1 { // of the first, nothing was counted before
		var err error
		in.before, err = b.counts()
		in.uncounted = err != nil
		in.tried = b.tried()
	}
	in.job.Patience = b.patience
	if in.guard != nil {
		in.guard.Early()
	}
	err := in.job.Exec()
	if err != nil {
		select {
		case <-b.child.Over():
			<-b.done // what Taken and Begun say is final then
		default:
		}
	}
	if err == nil || in.job.Taken() {
		b.unproven.Store(false)
	}
	if in.cgroup >= 0 {
		unix.Close(in.cgroup)
		in.cgroup = -1
	}
	closeAll(in.tasks)
	in.tasks = nil
	if in.guard != nil {
		if err == nil {
			// It goes on for what the command leaves behind, and ends by itself.
			in.guard.Start()
		} else {
			in.guard.Close()
		}
	}
	if err != nil {
		in.giveGroup()
		var exec *reexec.ExecError
		if errors.As(err, &exec) {
			return &driver.CommandError{Command: exec.Of(in.command, in.orElse), Err: exec.Errno}
		}
		if err = b.refused(err); in.job.Begun() {
			return &driver.LostError{Err: err}
		}
		return err
	}
	in.pty = in.job.Terminal()
	return nil
}

// drop gives up a command that is not to be started.
func (in *inside) drop() {
	in.job.Drop()
	if in.cgroup >= 0 {
		unix.Close(in.cgroup)
	}
	closeAll(in.tasks)
	if in.guard != nil {
		in.guard.Close()
	}
	in.giveGroup()
}

// refused is why a command could not start.
func (b *sandbox) refused(err error) error {
	if errors.Is(err, syscall.EAGAIN) {
		return &driver.SetupError{Driver: Name, Err: err,
			Fix: "no more than " + itoa(maxCommands) + " commands can run in one sandbox at a time"}
	}
	if errors.Is(err, reexec.ErrStuck) || errors.Is(err, syscall.ETIMEDOUT) {
		return &driver.SetupError{Driver: Name, Err: err,
			Fix: "something that runs in the sandbox hinders it: end that, or the sandbox"}
	}
	if errors.Is(err, reexec.ErrHalted) {
		return &driver.SetupError{Driver: Name, Err: err}
	}
	err = b.gone(err)
	if b.unproven.Load() {
		select {
		case <-b.done:
			return fmt.Errorf("%w: %w", driver.ErrIncomplete, err)
		default:
		}
	}
	return err
}

// inside is a command in a sandbox that stays.
type inside struct {
	driver.Fixed
	box     *sandbox
	job     *reexec.Job
	pty     *os.File
	begin   int64
	nth     int64  // command of the sandbox
	refused uint64 // by the gateway, before
	tried   uint64 // the network that there is not, before
	command string
	orElse  string        // as in driver.Stdio
	before  cgroups.Stats // of the sandbox
	counts  cgroups.Stats // of the command's own cgroup, from commands before

	guard  *guard.Guard   // nil without protected paths
	group  *cgroups.Group // of what it starts; nil without cgroups
	place  int
	within *within        // limits of its own, nil for none
	join   []cgroups.Slot // version 1 groups that it enters
	tasks  []int          // the files for that, if they are open, until it has started
	cgroup int            // group, version 2, until it has started; -1 for none

	ended     atomic.Bool  // by Terminate or Kill
	told      atomic.Int64 // signals that Signal sent and that end a command, by number
	since     atomic.Int64 // monotonic: when the first of them was called
	killed    atomic.Bool
	uncounted bool // before could not be read: a difference would say nothing
	over      bool // Wait has returned: what is left is nobody's; guarded by box.mu
}

// takeGroup makes the command's own cgroup, and opens it.
func (in *inside) takeGroup() error {
	b := in.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group == nil {
		return nil
	}
	err := in.makeGroup()
	if err == nil && in.group != nil {
		in.cgroup, err = in.group.Open()
	}
	return err
}

// makeGroup makes the command's own cgroup.
//
// Preconditions: mu of the sandbox is held, and it has a cgroup.
func (in *inside) makeGroup() error {
	b := in.box
	if spare := b.spare; spare != nil && in.within == nil {
		b.spare = nil
		var err error
		if b.spareUsed {
			in.counts, err = spare.Counts()
		}
		if err == nil {
			in.have(spare, b.sparePlace)
			in.tasks, b.tasks = b.tasks, nil
			return nil
		}
	}
	class, first, n := 0, 0, maxCommands
	var limits cgroups.Limits
	if in.within != nil {
		class, first, n, limits = 1, maxCommands, maxLimited, in.within.cgroup
	}
	for range n {
		i := first + b.next[class]
		b.next[class] = (b.next[class] + 1) % n
		// A place whose command left processes behind is free when they are
		// gone.
		if b.subs[i] != nil && !b.group.DropSub(b.subs[i]) {
			continue
		}
		sub, err := b.group.SubWithin(groupOf(i), limits)
		if err != nil {
			return err
		}
		b.subs[i] = sub
		in.have(sub, i)
		return nil
	}
	if in.within != nil {
		return &driver.SetupError{Driver: Name, Err: syscall.EAGAIN, Fix: "no more than " + itoa(maxLimited) +
			" commands with limits of their own can run in one sandbox at a time, nor be survived by what they started"}
	}
	return syscall.EAGAIN
}

// have gives the command a cgroup, and its place.
//
// Preconditions: mu of the sandbox is held.
func (in *inside) have(sub *cgroups.Group, place int) {
	in.group, in.place, in.join = sub, place, in.box.joins(sub)
}

// joins are the version 1 groups that a command with this one enters.
//
// Preconditions: mu is held.
func (b *sandbox) joins(sub *cgroups.Group) (list []cgroups.Slot) {
	subs := sub.Parents()
	for _, slot := range b.group.Parents() {
		if slot.V2 {
			continue
		}
		for _, s := range subs {
			if s.ParentFD == slot.ParentFD {
				slot = s
			}
		}
		list = append(list, slot)
	}
	return list
}

// makeSpare makes the first command's cgroup in advance. Without one it is made
// then.
func (b *sandbox) makeSpare() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group == nil {
		return
	}
	sub, err := b.group.Sub(groupOf(b.next[0]))
	if err != nil || sub == nil {
		return
	}
	b.spare, b.sparePlace, b.subs[b.next[0]] = sub, b.next[0], sub
	b.next[0]++
	// To open a file of a new group takes the kernel longest.
	for _, slot := range b.joins(sub) {
		fd, err := unix.Openat(slot.ParentFD, slot.Name+"/tasks", tasksFlags, 0)
		if err != nil {
			closeAll(b.tasks)
			b.tasks = nil
			return
		}
		b.tasks = append(b.tasks, fd)
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// keepGroup leaves the command's cgroup, in which nothing is, to the next one.
func (in *inside) keepGroup() {
	b := in.box
	b.mu.Lock()
	kept := b.spare == nil && b.group != nil && in.group != nil
	if kept {
		b.spare, b.sparePlace, b.spareUsed = in.group, in.place, true
	}
	b.mu.Unlock()
	if !kept {
		in.giveGroup()
	}
}

// giveGroup removes the command's cgroup, if nothing is in it any more.
func (in *inside) giveGroup() {
	b := in.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if in.group != nil && b.group != nil && b.group.DropSub(in.group) {
		b.subs[in.place] = nil
	}
}

// Signal sends a signal to the command. If it ends by that, all that it started ends, if it
// has a cgroup.
func (in *inside) Signal(sig syscall.Signal) error {
	if ending&(1<<sig) != 0 {
		in.told.Or(1 << sig)
		in.job.Ending(false)
	} else {
		in.job.Told()
	}
	return in.job.Signal(sig, false)
}

// ending are the signals by which a caller asks a command to end.
const ending = 1<<unix.SIGHUP | 1<<unix.SIGINT | 1<<unix.SIGQUIT | 1<<unix.SIGTERM

// obeyed reports whether a command ended by a signal that it was sent, as shells too tell
// it. SIGTERM means nothing else, however a command ends then.
func (in *inside) obeyed(status unix.WaitStatus) bool {
	told := in.told.Load()
	by := status.Signal()
	if status.Exited() {
		by = syscall.Signal(status.ExitStatus() - 128)
	}
	return told&(1<<unix.SIGTERM) != 0 || by > 0 && by < 64 && told&(1<<by) != 0
}

// Terminate sends SIGTERM to all that the command started. Without a cgroup
// that is its process group.
func (in *inside) Terminate() error { return in.end(unix.SIGTERM) }

// Kill ends all that the command started. Without a cgroup that is its process
// group.
func (in *inside) Kill() error { return in.end(unix.SIGKILL) }

func (in *inside) end(sig syscall.Signal) error {
	b := in.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if in.over {
		return syscall.ESRCH
	}
	in.job.Ending(true)
	if !in.ended.Load() && in.group != nil && b.group != nil && b.subs[in.place] == in.group && in.group.Empty() {
		return syscall.ESRCH // it has ended, and Wait has not noticed yet
	}
	in.since.CompareAndSwap(0, supervisor.Monotonic())
	in.ended.Store(true)
	if sig == unix.SIGKILL {
		in.killed.Store(true)
	}
	if in.group == nil {
		err := in.job.Signal(sig, true)
		if sig != unix.SIGKILL && err == nil {
			in.job.Signal(unix.SIGCONT, true) // whoever is gone by now was ended by the first
		}
		return err
	}
	if b.group == nil || b.subs[in.place] != in.group {
		return syscall.ESRCH
	}
	if sig == unix.SIGKILL {
		return in.group.Kill()
	}
	in.group.Signal(sig)
	in.group.Signal(unix.SIGCONT)
	return nil
}

// Pty is the master of the command's terminal.
func (in *inside) Pty() *os.File { return in.pty }

// Wait returns when the command has ended and, if it was to be ended with all
// that it started, that too.
func (in *inside) Wait() (*driver.Status, error) {
	exit, err := in.job.Wait()
	if err == nil && in.group != nil && in.obeyed(unix.WaitStatus(exit.Status)) {
		in.end(unix.SIGKILL) // what it started
	}
	for wait := time.Millisecond; !in.finish(); wait = min(2*wait, 20*time.Millisecond) {
		time.Sleep(wait)
	}
	if in.pty != nil {
		in.pty.Close()
	}
	b := in.box
	if err == nil && exit.Alone {
		b.alone.Store(in.nth)
	}
	if err != nil {
		// PID 1 is dead, and did not say how the command ended.
		<-b.done
		if !b.hoarded && !in.killed.Load() {
			return nil, &driver.LostError{Err: b.gone(syscall.ESRCH)}
		}
		st := statusOf(b.s.p, b.s.layers, b.s.degraded, cgroups.Stats{})
		st.Signal, st.OOMKilled = syscall.SIGKILL, b.hoarded
		return st, nil
	}
	var stats cgroups.Stats
	if in.group != nil && (exit.Status != 0 || in.within != nil) {
		// What the kernel counted while the command ran. It may have been
		// another command's doing: they share the limit.
		now, err := b.stats()
		known := err == nil && !in.uncounted
		if known && now.OOMKills > in.before.OOMKills {
			stats.OOMKills, stats.OOMBy = now.OOMKills-in.before.OOMKills, now.OOMBy
		}
		if known && now.PidsDenied > in.before.PidsDenied {
			stats.PidsDenied, stats.PidsBy = now.PidsDenied-in.before.PidsDenied, now.PidsBy
		}
		b.mu.Lock()
		if b.group != nil {
			in.counted(&stats)
		}
		b.mu.Unlock()
	}
	if exit.Alone && in.within == nil && !in.ended.Load() {
		// To end a group may have closed it for good; see cgroups.Group.Kill.
		in.keepGroup()
	} else {
		in.giveGroup()
	}
	layers := b.s.layers
	if in.within != nil && len(in.within.rlimits) > 0 {
		layers |= policy.LayerRlimits
	}
	st := statusOf(b.s.p, layers, b.s.degraded, stats)
	// It may have been another command's doing: they share the network.
	st.NetworkTried = exit.Status != 0 && b.tried() > in.tried
	supervisor.Exited(st, exit, in.begin)
	if since := in.since.Load(); since != 0 && int64(exit.EndNS) >= since {
		st.EndedFirst = false // what was signalled is the group, past the stage
	}
	if in.guard != nil {
		list, untold := in.guard.Denials()
		st.Denials = b.s.d.denials(b.s.p, list, untold)
	}
	// It may have been another command's doing: they share the network.
	st.Denials = append(st.Denials, b.net.since(in.refused)...)
	// What wait4(2) tells of a vforked child includes its parent's memory.
	st.Usage.MemoryPeakBytes = stats.MemoryPeak
	return st, nil
}

// finish makes the command over, unless it was to be ended and something of it
// is left.
func (in *inside) finish() bool {
	b := in.box
	b.mu.Lock()
	defer b.mu.Unlock()
	in.over = !in.ended.Load() || in.group == nil || b.group == nil || in.group.Empty()
	return in.over
}
