package native

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/rlimit"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/namespaces"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

// config writes the programs of the second stage. Their order is the order of
// the package comment.
func (s *starter) config() (*reexec.Config, error) {
	oci := s.p.OCI
	cfg, tree, err := s.begin()
	if err != nil {
		return nil, err
	}
	init := cfg.Init
	if s.root, err = tree.Finish(init, nil); err != nil {
		return nil, err
	}
	s.sendLayer(init, tree)
	s.rules(init)
	init.Layer(0)
	root, ruleset, proc, cgroupNS := s.root, s.ruleset, s.proc, s.cgroupNS
	var slave sys.Reg
	if oci.Process.Terminal {
		slave = terminal(init, root, oci.Process.ConsoleSize, func(master sys.Value) { reexec.SendTerminal(init, master) })
	}
	sources := make([]sys.Value, len(s.stdio))
	for i := range s.stdio {
		st := &s.stdio[i]
		if st.node == "" {
			sources[i] = sys.Imm(st.fd)
			continue
		}
		sources[i] = openNode(init, root, st)
	}
	start := &sys.Program{}
	start.ReserveRegs(init)
	cmd := &sys.Program{}
	cmd.Grow(128, 4<<10)

	cfg.Start, cfg.Command = start, cmd
	if s.guard != nil {
		cfg.Keep = append(cfg.Keep, s.guard.FD())
	}
	for i := range s.stdio {
		if s.stdio[i].node == "" {
			cfg.Keep = append(cfg.Keep, s.stdio[i].fd)
		}
	}
	cfg.Cgroup = openGroup(start, s.group)
	cmd.ReserveRegs(start)
	c := command{p: cmd, process: oci.Process, stdio: s.stdio, sources: sources, slave: slave, root: root, proc: proc,
		ruleset: ruleset, cgroupNS: cgroupNS, guard: s.guard, rlimits: s.limits}
	if s.guard != nil {
		c.guardFD = sys.Imm(s.guard.FD())
	}
	if s.group != nil {
		for _, slot := range s.group.Parents() {
			if !slot.V2 {
				c.join = append(c.join, slot)
			}
		}
	}
	s.append(&c)

	cfg.Argv = oci.Process.Args
	cfg.Env = s.net.environ(oci.Process.Env)
	cfg.Paths, cfg.Else = reexec.Candidates(oci.Process.Args[0], oci.Process.Env), reexec.OrElse(s.orElse, oci.Process.Env)
	s.breakLayer(cfg)
	return cfg, nil
}

// begin writes what PID 1 does before it builds the rest of the file system, enters
// that, and knows the rules for files.
func (s *starter) begin() (*reexec.Config, *mounts.Building, error) {
	oci := s.p.OCI
	flags, cgroupNS, err := namespaces.Flags(oci.Linux.Namespaces)
	if err != nil {
		return nil, nil, err
	}
	uidMap, err := namespaces.IDMap(oci.Linux.UIDMappings)
	if err != nil {
		return nil, nil, err
	}
	gidMap, err := namespaces.IDMap(oci.Linux.GIDMappings)
	if err != nil {
		return nil, nil, err
	}
	s.cgroupNS = cgroupNS
	init := &sys.Program{}
	init.Grow(640, 12<<10)
	init.Layer(uint32(policy.LayerUser))
	namespaces.AppendIDMaps(init, uidMap, gidMap)
	init.Layer(uint32(policy.LayerMount)) // they are files of /proc
	namespaces.AppendLimits(init)
	init.Layer(0)
	init.Call(0, sys.Step{Op: "prctl", Object: "name"}, unix.SYS_PRCTL, sys.Imm(unix.PR_SET_NAME), init.Str("sbxrun-init"))
	// A session keyring for all commands, not the caller's; see keyctl(2). One for each
	// would soon be too many: a user may have 200 keys. ENOSYS: a kernel without keys.
	init.Call(0, sys.Step{Op: "keyctl", Object: "session keyring"}, unix.SYS_KEYCTL,
		sys.Imm(unix.KEYCTL_JOIN_SESSION_KEYRING), sys.Imm(0)).Allow(unix.ENOSYS)
	if flags&namespaces.CloneNewUTS != 0 && oci.Hostname != "" {
		init.Layer(uint32(policy.LayerUTS))
		namespaces.AppendHostname(init, oci.Hostname)
	}
	if flags&namespaces.CloneNewNet != 0 {
		init.Layer(uint32(policy.LayerNet))
		namespaces.AppendLoopback(init)
	}
	init.Layer(uint32(policy.LayerMount))
	tree, err := mounts.Begin(init, &s.low.Tree)
	if err != nil {
		return nil, nil, err
	}
	cfg := &reexec.Config{CloneFlags: flags, CloneLayer: uint32(policy.LayerUser), Sockets: s.net != nil, Storage: "/",
		Init: init, Finish: &sys.Program{}}
	// Taking the mounts down takes a while, and the supervisor need not wait.
	cfg.Finish.Call(0, sys.Step{Op: "umount2", Object: "/"}, unix.SYS_UMOUNT2, cfg.Finish.Str("/"),
		sys.Imm(unix.MNT_DETACH))
	if s.layer != nil {
		cfg.Keep = append(cfg.Keep, s.layer.inner)
	}
	if s.group != nil {
		for _, slot := range s.group.Parents() {
			cfg.Keep = append(cfg.Keep, slot.ParentFD)
			cfg.Dirs = append(cfg.Dirs, reexec.Dir{ParentFD: slot.ParentFD, Name: slot.Name})
		}
	}
	return cfg, tree, nil
}

// rules writes what makes the rules for files, once the root is the sandbox's.
func (s *starter) rules(p *sys.Program) {
	if s.abi > 0 {
		p.Layer(uint32(policy.LayerLandlock))
		handled, _ := landlock.Handled(s.abi)
		for i := range s.stdio {
			if st := &s.stdio[i]; st.rights != 0 {
				s.low.Ruleset.FDs = append(s.low.Ruleset.FDs, landlock.FDRule{FD: st.fd, Access: st.rights & handled})
			}
		}
		if s.ruleset == 0 {
			s.ruleset = landlock.Append(p, s.root, s.abi, &s.low.Ruleset)
		} else {
			s.low.Ruleset.AppendRules(p, s.root, s.ruleset, s.abi, s.granted)
		}
	}
	if s.label != "" {
		p.Layer(uint32(policy.LayerMount))
		s.proc = writableProc(p, s.root)
	}
}

// openGroup writes what opens the cgroup of version 2 for commands to be cloned
// into; the register is 0 if there is none.
func openGroup(p *sys.Program, group *cgroups.Group) (cgroup sys.Reg) {
	if group == nil {
		return 0
	}
	for _, slot := range group.Parents() {
		if slot.V2 {
			cgroup = p.NewReg()
			p.Layer(uint32(policy.LayerCgroup))
			p.Call(cgroup, sys.Step{Op: "openat", Object: "cgroup"}, unix.SYS_OPENAT, sys.Imm(slot.ParentFD), p.Str(slot.Name),
				sys.Imm(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC), sys.Imm(0))
		}
	}
	return cgroup
}

// command is what the process that becomes a command is made of. Registers are
// those of its program; 0 is none.
type command struct {
	p       *sys.Program
	process *specs.Process

	stdio   []stream
	sources []sys.Value // where each of stdio is to be found
	slave   sys.Reg     // terminal, takes the place of the first three

	join     []cgroups.Slot      // version 1 groups
	tasks    []sys.Value         // their files, nil to open them
	rlimits  []specs.POSIXRlimit // in place of limits that no cgroup holds
	cgroupNS bool
	proc     sys.Reg // where a label is written
	ruleset  sys.Reg // of Landlock
	root     sys.Reg // the sandbox's directory
	bounded  bool    // PID 1 has left no capability in the bounding set, and there are other commands

	guard   *guard.Guard // nil for none
	guardFD sys.Value    // what it sends on
}

// append writes the steps up to execve: what a process gives up, and what it
// keeps.
func (s *starter) append(c *command) {
	p := c.p
	p.Layer(uint32(policy.LayerCgroup))
	for i, slot := range c.join {
		if c.tasks != nil {
			enterV1(p, c.tasks[i])
		} else {
			joinV1(p, slot.ParentFD, slot.Name)
		}
	}
	if c.cgroupNS {
		p.Layer(uint32(policy.LayerCgroupNS))
		namespaces.AppendCgroup(p)
	}
	p.Layer(0)
	// A session of its own: no controlling terminal but the one it is given.
	p.Call(0, sys.Step{Op: "setsid"}, unix.SYS_SETSID)
	if c.slave != 0 {
		p.Call(0, sys.Step{Op: "ioctl", Object: "TIOCSCTTY"}, unix.SYS_IOCTL, c.slave.Value(), sys.Imm(unix.TIOCSCTTY),
			sys.Imm(0))
	}
	p.Call(0, sys.Step{Op: "chdir", Object: c.process.Cwd}, unix.SYS_CHDIR, p.Str(c.process.Cwd))
	if c.bounded {
		namespaces.AppendShield(p)
	} else {
		namespaces.AppendDropCapabilities(p)
	}
	if s.label != "" {
		p.Layer(uint32(s.module))
		setLabel(p, c.proc, s.attr, s.label)
	}
	p.Layer(uint32(policy.LayerNoNewPrivs))
	p.Call(0, sys.Step{Op: "prctl", Object: "no_new_privs"}, unix.SYS_PRCTL, sys.Imm(unix.PR_SET_NO_NEW_PRIVS), sys.Imm(1),
		sys.Imm(0), sys.Imm(0), sys.Imm(0))
	if c.ruleset != 0 {
		p.Layer(uint32(policy.LayerLandlock))
		landlock.AppendRestrict(p, c.ruleset)
	}
	joint := s.join(c.guard)
	switch {
	case joint != "":
		p.Layer(uint32(policy.LayerSeccomp))
		c.guard.Append(p, c.root, c.guardFD, filterStep, joint)
	case c.guard != nil:
		p.Layer(uint32(policy.LayerProtect))
		c.guard.Append(p, c.root, c.guardFD, sys.Step{Op: "seccomp", Object: "guard"}, c.guard.Filter())
	}
	p.Layer(0)
	descriptors(p, c.stdio, c.sources, c.slave)
	p.Layer(uint32(policy.LayerRlimits))
	rlimit.Append(p, c.process.Rlimits)
	rlimit.Append(p, c.rlimits)
	// The stage has every signal blocked; dispositions are the defaults
	// (CLONE_CLEAR_SIGHAND).
	p.Layer(0)
	p.Call(0, sys.Step{Op: "rt_sigprocmask"}, unix.SYS_RT_SIGPROCMASK, sys.Imm(unix.SIG_SETMASK), sys.Ptr(p, new(uint64)),
		sys.Imm(0), sys.Imm(8))
	if s.bpf.Len() > 0 && joint == "" {
		p.Layer(uint32(policy.LayerSeccomp))
		filter(p, s.bpf)
	}
}

// join makes one filter of the guard's and the policy's, "" if they stay two. To
// install a program takes the kernel some 50 us whatever is in it. Profiles of the
// user's own are the last step: what they deny may include any of the others.
func (s *starter) join(g *guard.Guard) string {
	if g == nil || s.p.Seccomp == "" || s.bpf.Flags != 0 || breaking() {
		return ""
	}
	var ask []seccomp.Ask
	if g.Paths() { // a guard of connections alone refuses no other calls
		guard.Refused(func(errno uint16, calls []uint32) { ask = append(ask, seccomp.Ask{Errno: errno, Calls: calls}) })
	}
	joint, err := seccomp.Join(s.bpf.Filter, g.Filter(), ask...)
	if err != nil {
		return ""
	}
	return joint
}

// writableProc leaves a mount of the sandbox's proc that is attached nowhere, and
// not read-only, in the result: labels are set by writing to it.
func writableProc(p *sys.Program, root sys.Reg) sys.Reg {
	fd := p.NewReg()
	step := sys.Step{Op: "open_tree", Object: "label"}
	p.Call(fd, step, unix.SYS_OPEN_TREE, root.Value(), p.Str("proc"),
		sys.Imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW))
	p.Call(0, step, unix.SYS_MOUNT_SETATTR, fd.Value(), p.Str(""), sys.Imm(unix.AT_EMPTY_PATH),
		sys.Ptr(p, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}), sys.Imm(unix.MOUNT_ATTR_SIZE_VER0))
	return fd
}

// setLabel makes the next execve(2) change to an SELinux label or an AppArmor
// profile; see proc_pid_attr(5). It comes before no_new_privs, under which some
// changes are refused, and before Landlock, which has no rule for this mount.
func setLabel(p *sys.Program, proc sys.Reg, attr, label string) {
	fd := p.NewReg()
	step := sys.Step{Op: "setexeccon", Object: label}
	p.Call(fd, step, unix.SYS_OPENAT, proc.Value(), p.Str("thread-self/"+attr), sys.Imm(unix.O_WRONLY|unix.O_CLOEXEC),
		sys.Imm(0))
	p.Call(0, step, unix.SYS_WRITE, fd.Value(), p.Data(label), sys.Imm(len(label)))
	p.Call(0, step, unix.SYS_CLOSE, fd.Value())
}

// openNode opens a device of the sandbox's own.
func openNode(p *sys.Program, root sys.Reg, st *stream) sys.Value {
	fd := p.NewReg()
	p.Call(fd, sys.Step{Op: "openat", Object: "/" + st.node}, unix.SYS_OPENAT, root.Value(), p.Str(st.node),
		sys.Imm(st.flags|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC), sys.Imm(0))
	return fd.Value()
}

// terminal opens a pseudo-terminal of the sandbox's own devpts, passes its
// master to the supervisor and leaves the slave in the result; see
// ioctl_tty(2).
func terminal(p *sys.Program, root sys.Reg, size *specs.Box, send func(master sys.Value)) sys.Reg {
	master, slave := p.NewReg(), p.NewReg()
	step := sys.Step{Op: "terminal", Object: "/dev/pts/ptmx"}
	p.Call(master, step, unix.SYS_OPENAT, root.Value(), p.Str("dev/pts/ptmx"),
		sys.Imm(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC), sys.Imm(0))
	p.Call(0, step, unix.SYS_IOCTL, master.Value(), sys.Imm(unix.TIOCSPTLCK), sys.Ptr(p, new(int32)))
	p.Call(slave, step, unix.SYS_IOCTL, master.Value(), sys.Imm(unix.TIOCGPTPEER),
		sys.Imm(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC))
	if size != nil {
		p.Call(0, step, unix.SYS_IOCTL, master.Value(), sys.Imm(unix.TIOCSWINSZ),
			sys.Ptr(p, &unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)}))
	}
	send(master.Value())
	p.Call(0, step, unix.SYS_CLOSE, master.Value())
	return slave
}

var joinStep = sys.Step{Op: "join", Object: "cgroup"}

// tasksFlags open the file of a version 1 cgroup that a thread is moved by.
const tasksFlags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// joinV1 moves the process into a version 1 cgroup.
func joinV1(p *sys.Program, parent int, name string) {
	fd := p.NewReg()
	p.Call(fd, joinStep, unix.SYS_OPENAT, sys.Imm(parent), p.Str(name+"/tasks"), sys.Imm(tasksFlags), sys.Imm(0))
	enterV1(p, fd.Value())
}

// enterV1 does so by the open file. "0" is the writer; that it goes into tasks, not
// cgroup.procs, spares the global lock that moving a whole process takes.
func enterV1(p *sys.Program, tasks sys.Value) {
	p.Call(0, joinStep, unix.SYS_WRITE, tasks, p.Data("0"), sys.Imm(1))
}

// descriptors makes the given streams 0, 1, 2, … and closes every other
// descriptor. A slave takes the place of the first three.
func descriptors(p *sys.Program, streams []stream, sources []sys.Value, slave sys.Reg) {
	fds, src := make([]int, len(streams)), slices.Clone(sources)
	for i := range streams {
		if fds[i] = streams[i].fd; streams[i].node != "" {
			fds[i] = -1
		}
	}
	if slave != 0 {
		high := p.NewReg()
		p.Call(high, sys.Step{Op: "fcntl", Object: "F_DUPFD"}, unix.SYS_FCNTL, slave.Value(), sys.Imm(unix.F_DUPFD_CLOEXEC),
			sys.Imm(len(streams)))
		for i := range min(3, len(streams)) {
			fds[i], src[i] = len(streams), high.Value() // or above
		}
	}
	supervisor.Place(p, fds, src)
}

var filterStep = sys.Step{Op: "seccomp", Object: "filter"}

// filter installs a system call filter that is not joined to the guard's, as the
// last step before execve: what it denies includes most of the steps above.
//
//	int seccomp(SECCOMP_SET_MODE_FILTER, unsigned int flags, struct sock_fprog *prog);
func filter(p *sys.Program, f seccomp.Program) {
	p.Call(0, filterStep, unix.SYS_SECCOMP, sys.Imm(unix.SECCOMP_SET_MODE_FILTER), sys.Imm(f.Flags), p.Fprog(f.Filter))
}
