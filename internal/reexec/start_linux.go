package reexec

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// Config is what a second stage is to do.
type Config struct {
	// CloneFlags are the namespaces to create (CLONE_NEW…).
	CloneFlags uint64

	// CloneLayer is the layer in the error if they cannot be created.
	CloneLayer uint32

	// Tree runs the stage without a pid namespace, for commands that bring a
	// sandbox of their own or restrict themselves. Everything that descends from
	// the stage is then what it ends: it is their subreaper. Of processes that
	// fork as fast as they are killed, only what Freeze stops comes to an end.
	Tree bool

	// Freeze runs when a Tree is hard to kill: it keeps the tree from growing, by
	// the cgroup. Steps that fail change nothing. It may be nil.
	Freeze *sys.Program

	// Init runs as PID 1 right after the clone, while the supervisor goes on;
	// Start runs as PID 1 once the supervisor called Go (for a stage that serves
	// it may be nil: then [Child.Complete] brings it); Command runs in the
	// process that becomes the command; Finish runs as PID 1 when it has
	// reported the end, while the supervisor acts on that: a step that fails
	// there changes nothing any more. They share one set of registers. Finish
	// may be nil.
	Init, Start, Command, Finish *sys.Program

	// Gate has the command wait, after Start, for a second Go: the supervisor gets ready
	// for it while Start runs.
	Gate bool

	// Cgroup is the register that holds the descriptor of the cgroup that the
	// command is cloned into (CLONE_INTO_CGROUP, Linux 5.7); 0 is none.
	Cgroup sys.Reg

	// Paths are what execve(2) is tried with, in order. Argv and Env must not
	// contain NUL.
	Paths, Argv, Env []string

	// Else is another program, if none of Paths is there; the zero value is none.
	Else Else

	// Dirs are the cgroup directories to remove if the supervisor dies, in this
	// order. One that is not there is passed over.
	Dirs []Dir

	// MaxJobs makes the stage serve: it has no command of its own (Command,
	// Cgroup, Paths, Argv and Env are not used) but runs those that [Job.Exec]
	// brings, at most MaxJobs at a time, until End. Hold are the registers with
	// descriptors that Init or Start opened for jobs, or, without a Start, that
	// Init opened for that; others are closed.
	MaxJobs int
	Hold    []sys.Reg

	// Keep are the descriptors that the programs use, beside the control
	// socket; every other one is closed in PID 1.
	Keep []int

	// Storage is a path in the sandbox, on the file system of which [Exit].Full tells;
	// "" is none.
	Storage string

	// Sockets lets the supervisor have sockets of the stage's network
	// namespace; see [Child.Socket].
	Sockets bool
}

// Dir is a directory below an open one.
type Dir struct {
	ParentFD int
	Name     string

	// With N it is not Name but N directories, the names of which are Name and a
	// number of six digits at most: From, From+1, …
	From, N int
}

// Child is a running second stage.
type Child struct {
	pid   int
	pidfd int
	fd    int // control socket
	cfg   *Config

	// What a stage that serves says is the runtime's to wait for: who waits in
	// recvmsg(2) keeps a thread, and what it wakes has to find another. See inbox.
	ctl *os.File
	raw syscall.RawConn

	mu      sync.Mutex // guards what follows, and the descriptors that it speaks of
	closed  bool       // nothing is sent any more
	ended   bool       // the stage was waited for
	unsent  []message  // that post has
	killing sync.Once
	halted  time.Time // when the stage was seen stopped, and how often it had slept by then
	slept   string

	closing  sync.Once
	closeErr error

	stage *stage
	jobs  *jobs  // of a stage that serves
	late  *stage // of a stage that serves, to be completed; nil otherwise
	keep  []int  // what a stage that serves has open beside what it is to hold

	sockets *os.File   // where sockets of the sandbox's network come from, or nil
	asking  sync.Mutex // one request at a time
}

// Usage is what the processes of a sandbox used, as wait4(2) told.
type Usage struct {
	UserMicros, SystemMicros uint64
	MaxRSSKiB                uint64
}

// Exit is how the command ended.
type Exit struct {
	Status syscall.WaitStatus
	Usage  Usage
	ExecNS uint64 // CLOCK_MONOTONIC when the command was executed, ns
	EndNS  uint64 // CLOCK_MONOTONIC when its end was seen, ns

	// First says that the stage had done nothing to end the command before it ended.
	First bool

	// Alone says that a job's command left nothing, and no other job was there:
	// PID 1 was the only process when it ended.
	Alone bool

	// Full says that there was no room in Config.Storage when the command ended.
	Full bool
}

// Start clones the second stage. The command does not run before Go.
//
// Without Tree, a pid namespace is not optional: the stage ends a sandbox by
// signalling every process that it can see.
func Start(cfg *Config) (*Child, error) {
	const both = unix.CLONE_NEWPID | unix.CLONE_NEWUSER
	if have := cfg.CloneFlags & both; have != both && !(cfg.Tree && have == 0 && cfg.MaxJobs == 0) {
		return nil, errors.New("reexec: no pid and user namespace")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &StepError{Stage: "clone", Op: "socketpair", Errno: errnoOf(err)}
	}
	st := &stage{}
	st.bind()
	st.ctl = uintptr(pair[1])
	st.regs[sys.RegControl] = uintptr(pair[1])

	var mem sys.Program // only for the memory of what is handed to execve
	mem.Grow(8, argBytes(cfg.Paths, cfg.Argv, cfg.Env, cfg.Else.Paths))
	if cfg.Tree {
		st.tree = 1
		st.childrenPath = mem.Addr(childrenFile)
	}
	if cfg.Storage != "" {
		st.storage = mem.Addr(cfg.Storage)
	}
	var serving *jobs
	if cfg.MaxJobs > 0 {
		serving = newJobs(cfg.MaxJobs)
		st.serving, st.jobs, st.njobs = true, sys.Addr(&serving.table[0]), uintptr(cfg.MaxJobs)
		st.quiet = sys.Addr(&serving.quiet)
	} else {
		st.gate = cfg.Gate
		st.command.cgroup = cfg.Cgroup
		st.command.steps = cfg.Command.Runnable()
		st.command.arguments(&mem, cfg.Paths, cfg.Argv, cfg.Env, cfg.Else)
	}
	dirs := make([]dirEntry, len(cfg.Dirs))
	for i, d := range cfg.Dirs {
		dirs[i] = dirEntry{fd: uintptr(d.ParentFD)}
		if d.N == 0 {
			dirs[i].name = mem.Addr(d.Name)
		} else {
			dirs[i].name = mem.Addr(d.Name + maxNumber)
			dirs[i].number, dirs[i].from, dirs[i].n = dirs[i].name+uintptr(len(d.Name)), uintptr(d.From), uintptr(d.N)
		}
	}
	if len(dirs) > 0 {
		st.dirs, st.ndirs = sys.Addr(&dirs[0]), uintptr(len(dirs))
	}

	// What the command has is the command's: a pipe that PID 1 kept open would
	// never end.
	keep := []int{pair[1]}
	sockets := [2]int{-1, -1}
	var pass, refuse *sys.Program
	if cfg.Sockets {
		if sockets, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
			unix.Close(pair[0])
			unix.Close(pair[1])
			return nil, &StepError{Stage: "clone", Op: "socketpair", Errno: errnoOf(err)}
		}
		keep = append(keep, sockets[1])
		pass, refuse, st.socketReg = passSockets(cfg, sockets[1])
		st.pass, st.refuse = pass.Runnable(), refuse.Runnable()
	}
	var ctl *os.File
	if serving != nil {
		if ctl, err = inbox(pair[0]); err != nil {
			for _, fd := range append(pair[:], sockets[:]...) {
				unix.Close(fd)
			}
			return nil, &StepError{Stage: "clone", Op: "epoll_create1", Errno: errnoOf(err)}
		}
	}
	prologue := closeOthers(append(slices.Clone(cfg.Keep), keep...))
	// Without namespaces there is a way without clone3(2), which containers filter.
	old := cfg.CloneFlags == 0 && cfg.Cgroup == 0 && !sys.HasClone3()
	if old {
		st.old = true
	}
	appendResetSignals(prologue, old)
	st.prologue = prologue.Runnable()
	for _, d := range cfg.Dirs {
		keep = append(keep, d.ParentFD)
	}
	var epilogue *sys.Program
	st.init = cfg.Init.Runnable()
	if epilogue = afterStart(keep, cfg); cfg.Start != nil {
		st.epilogue, st.start = epilogue.Runnable(), cfg.Start.Runnable()
	} else {
		st.settle = epilogue.Runnable()
	}
	if cfg.Finish != nil {
		st.finish = cfg.Finish.Runnable()
	}
	if cfg.Freeze != nil {
		st.freeze = cfg.Freeze.Runnable()
	}

	var pidfd int32 = -1
	args := &sys.CloneArgs{
		Flags:      cfg.CloneFlags | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND,
		PidFD:      uint64(sys.Addr(&pidfd)),
		ExitSignal: uint64(unix.SIGCHLD),
	}
	task, err := sys.Clone(args, stageMain, sys.Addr(st), old)
	unix.Close(pair[1])
	if cfg.Sockets {
		unix.Close(sockets[1])
	}
	if err != nil {
		unix.Close(pair[0])
		if cfg.Sockets {
			unix.Close(sockets[0])
		}
		ctl.Close()
		return nil, &StepError{Stage: "clone", Op: "clone3", Layer: cfg.CloneLayer, Errno: errnoOf(err)}
	}
	// The stage runs in this memory until it has been waited for, whatever
	// becomes of the Child.
	c := &Child{pid: task.Pid, pidfd: int(pidfd), fd: pair[0], cfg: cfg, stage: st, jobs: serving}
	if cfg.Start == nil {
		c.late, c.keep = st, keep
	}
	stages.Store(c, []any{task, st, cfg, &mem, prologue, epilogue, serving, dirs, pass, refuse})
	if cfg.Sockets {
		c.sockets = os.NewFile(uintptr(sockets[0]), "sockets")
	}
	if serving != nil {
		c.ctl = ctl
		c.raw, _ = c.ctl.SyscallConn() // fails for a nil file only
		go c.dispatch()
	}
	return c, nil
}

// inbox is an epoll instance that can be read when fd can. The runtime's own would be
// told of room in the socket's buffer too: whenever the stage takes a message out, a
// thread would be woken for nothing, while the stage has work to do.
func inbox(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err == nil {
		err = unix.SetNonblock(ep, true)
	}
	if err != nil {
		unix.Close(ep)
		return nil, err
	}
	return os.NewFile(uintptr(ep), "control"), nil
}

// appendResetSignals ends an ignored SIGCHLD, with which the kernel keeps no status of a
// child; see waitpid(2). With handlers it does what CLONE_CLEAR_SIGHAND does: none of this
// program is left, for what runs in its memory has no use for one, and what else is
// ignored stays so.
//
//	int rt_sigaction(int signum, const struct sigaction *act, struct sigaction *oldact, size_t sigsetsize);
func appendResetSignals(p *sys.Program, handlers bool) {
	const SIG_DFL, SIG_IGN = 0, 1
	for sig := 1; sig <= 64; sig++ {
		if !handlers && sig != int(unix.SIGCHLD) {
			continue
		}
		was := new([4]uint64) // struct sigaction as the kernel has it; the handler is first
		if _, e := sys.Raw(unix.SYS_RT_SIGACTION, uintptr(sig), 0, sys.Addr(was), 8, 0, 0); e != 0 || was[0] == SIG_DFL ||
			was[0] == SIG_IGN && sig != int(unix.SIGCHLD) || was[0] != SIG_IGN && !handlers {
			continue
		}
		p.Call(0, sys.Step{Op: "rt_sigaction"}, unix.SYS_RT_SIGACTION, sys.Imm(sig), sys.Ptr(p, new([4]uint64)), sys.Imm(0),
			sys.Imm(8))
	}
}

// afterStart writes the program by which PID 1 closes what it needs no more: all
// but the given descriptors, and the registers to hold, which are moved to numbers
// that are known.
func afterStart(keep []int, cfg *Config) *sys.Program {
	p := &sys.Program{}
	keep = slices.Clone(keep)
	if cfg.MaxJobs > 0 {
		next := slices.Max(append(slices.Clone(cfg.Keep), keep...)) + 1
		// First out of the way, so that none takes the number of another.
		for _, r := range cfg.Hold {
			p.Call(r, sys.Step{Op: "fcntl", Object: "F_DUPFD"}, unix.SYS_FCNTL, r.Value(), sys.Imm(unix.F_DUPFD_CLOEXEC),
				sys.Imm(next+len(cfg.Hold)))
		}
		for i, r := range cfg.Hold {
			p.Call(r, sys.Step{Op: "dup3"}, unix.SYS_DUP3, r.Value(), sys.Imm(next+i), sys.Imm(unix.O_CLOEXEC))
			keep = append(keep, next+i)
		}
	}
	appendCloseOthers(p, keep)
	return p
}

// Complete brings what was left out of the configuration, Start and the registers
// to hold for jobs, and lets the stage run it. It is called once; an error of the
// program comes from the next job, as from Wait.
//
// Preconditions: Init has run, as a job that was called proves. Start was written
// after the stage was started, with the registers of Init reserved.
func (c *Child) Complete(start *sys.Program, hold []sys.Reg) error {
	c.jobs.mu.Lock()
	c.cfg.Start, c.cfg.Hold = start, hold
	c.jobs.mu.Unlock()
	epilogue := afterStart(c.keep, c.cfg)
	if v, ok := stages.Load(c); ok {
		stages.Store(c, append(v.([]any), start, epilogue))
	}
	// The stage reads them after it has received Go.
	c.late.start, c.late.epilogue = start.Runnable(), epilogue.Runnable()
	return c.Go()
}

// arguments lays out what execve is given, in the memory of mem.
func (j *job) arguments(mem *sys.Program, paths, argv, env []string, other Else) {
	paths = paths[:min(len(paths), maxExecPaths/2)]
	if more := other.Paths[:min(len(other.Paths), maxExecPaths/2)]; len(more) > 0 && len(paths) > 0 {
		j.other, j.otherName = uintptr(len(paths)), mem.Addr(other.Name)
		paths = slices.Concat(paths, more)
	}
	for i, p := range paths {
		j.paths[i] = mem.Addr(p)
	}
	a, e := mem.Vector(argv), mem.Vector(env)
	j.argv, j.envp = a, e
}

// passSockets writes the programs that answer a request for a socket, on fd: one
// passes the descriptor in the register and closes it, the other sends the errno
// in the register.
func passSockets(cfg *Config, fd int) (pass, refuse *sys.Program, reg sys.Reg) {
	pass, refuse = &sys.Program{}, &sys.Program{}
	for _, p := range [...]*sys.Program{cfg.Init, cfg.Start, cfg.Command} {
		if p != nil {
			pass.ReserveRegs(p)
		}
	}
	if reg = pass.NewReg(); cfg.Start == nil {
		reg = cfg.Init.NewReg() // one that the program of Complete cannot have
	}
	step := sys.Step{Op: "sendmsg", Object: "socket"}
	send := func(p *sys.Program, body, oob []byte) {
		iov := &unix.Iovec{Base: &body[0]}
		iov.SetLen(len(body))
		hdr := &unix.Msghdr{Iov: iov}
		hdr.Iovlen = 1
		if len(oob) > 0 {
			hdr.Control = &oob[0]
			hdr.SetControllen(len(oob))
		}
		p.Call(0, step, unix.SYS_SENDMSG, sys.Imm(fd), sys.Ptr(p, hdr), sys.Imm(unix.MSG_NOSIGNAL))
	}
	oob := unix.UnixRights(0)
	pass.Store32(oob, unix.CmsgLen(0), reg.Value())
	send(pass, make([]byte, 4), oob)
	pass.Call(0, step, unix.SYS_CLOSE, reg.Value())

	errno := make([]byte, 4)
	refuse.Store32(errno, 0, reg.Value())
	send(refuse, errno, nil)
	return pass, refuse, reg
}

// Socket returns a socket that lives in the sandbox's network namespace, and was
// made with the rights of its PID 1 there: unbound and not connected, for the
// caller to use from outside. It is close-on-exec. It may be called from before
// Go until Close, concurrently; after the command's end it reports ESRCH.
//
//	int socket(int domain, int type, int protocol);
func (c *Child) Socket(domain, typ, protocol int) (int, error) {
	if c.sockets == nil {
		return -1, errors.New("reexec: started without sockets")
	}
	begin := time.Now()
	c.asking.Lock()
	defer c.asking.Unlock()
	ask := message{Kind: msgSocket, A: uint32(domain), B: uint32(typ), C: uint32(protocol)}
	err := c.send(ask)
	for err == unix.EAGAIN && (c.Halted() < haltedPatience || time.Since(begin) < haltedPatience) { // it does not read
		time.Sleep(20 * time.Millisecond)
		err = c.send(ask)
	}
	if err != nil {
		return -1, err
	}
	conn, err := c.sockets.SyscallConn()
	if err != nil {
		return -1, syscall.ESRCH
	}
	defer c.wake()()
	fd := -1
	var body [4]byte
	rerr := conn.Read(func(s uintptr) bool {
		var n, oobn int
		oob := make([]byte, unix.CmsgSpace(4))
		for {
			n, oobn, _, _, err = unix.Recvmsg(int(s), body[:], oob, unix.MSG_CMSG_CLOEXEC)
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.ECONNRESET || err == nil && n == 0 {
			err = syscall.ESRCH // the stage is gone
		}
		if err != nil {
			return true
		}
		if e := syscall.Errno(binary.NativeEndian.Uint32(body[:])); n != len(body) || e != 0 {
			err = e
			return true
		}
		cmsgs, perr := unix.ParseSocketControlMessage(oob[:oobn])
		if perr == nil && len(cmsgs) == 1 {
			if fds, ferr := unix.ParseUnixRights(&cmsgs[0]); ferr == nil && len(fds) == 1 {
				fd = fds[0]
				return true
			}
		}
		err = &ProtocolError{What: "socket message without a descriptor"}
		return true
	})
	if rerr != nil {
		return -1, syscall.ESRCH
	}
	return fd, err
}

// wake sees to a stage that owes an answer, until it is over.
func (c *Child) wake() (over func()) {
	var done atomic.Bool
	go c.see(done.Load)
	return func() { done.Store(true) }
}

// stages keeps the memory of running stages reachable.
var stages sync.Map

func argBytes(lists ...[]string) int {
	n := 256
	for _, l := range lists {
		for _, s := range l {
			n += len(s) + 1
		}
	}
	return n
}

// SendTerminal appends the step that passes the master of the command's terminal
// to the supervisor; see [Child.Terminal].
func SendTerminal(p *sys.Program, master sys.Value) { sendTerminal(p, master, 0) }

func sendTerminal(p *sys.Program, master sys.Value, index uint32) {
	body := message{Kind: msgTerminal, A: index}.encode()
	oob := unix.UnixRights(0)
	p.Store32(oob, unix.CmsgLen(0), master)
	iov := &unix.Iovec{Base: &body[0]}
	iov.SetLen(len(body))
	hdr := &unix.Msghdr{Iov: iov, Control: &oob[0]}
	hdr.Iovlen = 1
	hdr.SetControllen(len(oob))
	p.Call(0, sys.Step{Op: "sendmsg", Object: "terminal"}, unix.SYS_SENDMSG,
		sys.RegControl.Value(), sys.Ptr(p, hdr), sys.Imm(unix.MSG_NOSIGNAL))
}

// closeOthers closes every descriptor that is not in keep. It leaves numbers as
// they are, so that programs can name them.
func closeOthers(keep []int) *sys.Program {
	p := &sys.Program{}
	appendCloseOthers(p, keep)
	return p
}

func appendCloseOthers(p *sys.Program, keep []int) {
	slices.Sort(keep)
	next := 0
	step := sys.Step{Op: "close_range"}
	for _, fd := range keep {
		if fd < next {
			continue
		}
		if fd > next {
			p.Call(0, step, unix.SYS_CLOSE_RANGE, sys.Imm(next), sys.Imm(fd-1), sys.Imm(0))
		}
		next = fd + 1
	}
	p.Call(0, step, unix.SYS_CLOSE_RANGE, sys.Imm(next), sys.Imm(uint32(0xffffffff)), sys.Imm(0))
}

// childrenFile lists the children of the process that opens it, if that has one
// thread; CONFIG_PROC_CHILDREN, Linux 4.2. See proc_tid_children(5).
const childrenFile = "/proc/thread-self/children"

// Pid is the stage's pid in the caller's pid namespace.
func (c *Child) Pid() int { return c.pid }

// Go lets the stage run its Start program and the command; with [Config.Gate], one Go each.
func (c *Child) Go() error { return c.send(message{Kind: msgGo}) }

// Signal sends a signal to the command.
func (c *Child) Signal(sig syscall.Signal) error {
	return c.post(message{Kind: msgSignal, A: uint32(sig)})
}

// Terminate sends SIGTERM, then SIGCONT, to every process in the sandbox. A stage
// without a pid namespace does nothing: see [Config.Tree].
func (c *Child) Terminate() error { return c.post(message{Kind: msgTerminate}) }

// Kill ends the stage and with it every process in its pid namespace, by pidfd.
// A stage without one is asked to kill, and reports how the command ended; it is killed
// itself if somebody holds it.
func (c *Child) Kill() error {
	if !c.cfg.Tree {
		return c.killStage()
	}
	c.Halted() // nobody else kills
	err := c.post(message{Kind: msgKill})
	if err == nil {
		c.killing.Do(func() { go c.see(func() bool { return false }) })
	}
	return err
}

func (c *Child) killStage() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return syscall.ESRCH
	}
	return unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
}

// see has a stage go on that owes something, until it has ended or over says so. One that
// somebody holds is killed.
func (c *Child) see(over func() bool) {
	for begin := time.Now(); ; {
		time.Sleep(haltedPatience / 5)
		c.mu.Lock()
		ended := c.ended
		c.mu.Unlock()
		if ended || over() {
			return
		}
		if c.Halted() >= haltedPatience && time.Since(begin) >= haltedPatience {
			c.killStage()
			return
		}
	}
}

// post sends a message that nobody waits for. If the stage does not read, as one that
// somebody stopped, the message waits until it does: once, however often it is sent, like a
// signal that is pending.
func (c *Child) post(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unsent) == 0 {
		if err := c.sendLocked(m); err != unix.EAGAIN {
			return err
		}
	}
	if slices.Contains(c.unsent, m) {
		return nil
	}
	if c.unsent = append(c.unsent, m); len(c.unsent) == 1 {
		go c.deliver()
	}
	return nil
}

// deliver sends what post could not.
func (c *Child) deliver() {
	for {
		time.Sleep(20 * time.Millisecond)
		c.Halted()
		c.mu.Lock()
		for len(c.unsent) > 0 && c.sendLocked(c.unsent[0]) != unix.EAGAIN {
			c.unsent = c.unsent[1:]
		}
		if len(c.unsent) == 0 {
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

func (c *Child) send(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sendLocked(m)
}

// sendLocked is send with mu held.
func (c *Child) sendLocked(m message) error {
	if c.closed {
		return syscall.ESRCH
	}
	err := unix.Sendto(c.fd, m.encode(), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil)
	if err == unix.EPIPE || err == unix.ECONNRESET {
		return syscall.ESRCH
	}
	return err
}

// Terminal waits for the master of the command's terminal. It is called at most
// once, before Wait, and only if the configuration has a terminal. The error
// may be the stage's final report, as from Wait.
func (c *Child) Terminal() (*os.File, error) {
	m, oob, err := c.next(make([]byte, unix.CmsgSpace(4)))
	if err != nil {
		return nil, err
	}
	if m.Kind == msgFailed {
		return nil, c.failure(m)
	}
	if m.Kind != msgTerminal {
		return nil, &ProtocolError{What: "exit report instead of a terminal"}
	}
	return terminal(oob)
}

// terminal takes the descriptor out of a control message.
func terminal(oob []byte) (*os.File, error) {
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(cmsgs) != 1 {
		return nil, &ProtocolError{What: "terminal message without a descriptor"}
	}
	fds, err := unix.ParseUnixRights(&cmsgs[0])
	if err != nil || len(fds) != 1 {
		return nil, &ProtocolError{What: "terminal message without a descriptor"}
	}
	// Non-blocking, so that reads end when the caller closes the file.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "pty"), nil
}

// Wait returns when nothing of the sandbox is left but the stage itself, which
// waits for Close. The error is a *StepError, an *ExecError, or a
// *ProtocolError if the stage died without a report.
//
// A stage that serves comes to its end after End only.
func (c *Child) Wait() (*Exit, error) {
	var m message
	var err error
	if c.jobs != nil {
		<-c.jobs.over
		m, err = c.jobs.final, c.jobs.err
	} else {
		m, _, err = c.next(nil)
		if err == nil && m.Kind == msgTerminal {
			// Nobody took it: the set-up failed meanwhile. Without room for it
			// the kernel closes the descriptor.
			m, _, err = c.next(nil)
		}
	}
	if err != nil {
		return nil, err
	}
	switch m.Kind {
	case msgFailed:
		return nil, c.failure(m)
	case msgExited:
		return &Exit{
			Status: syscall.WaitStatus(m.A),
			Usage:  Usage{m.Utime, m.Stime, m.MaxRSS},
			ExecNS: m.ExecNS, EndNS: m.EndNS,
			First: m.B == 1,
			Full:  m.C == 1,
		}, nil
	}
	return nil, &ProtocolError{What: "unexpected message"}
}

// next reads one message of the stage. Room for descriptors is in oob; what of it
// was used is returned.
func (c *Child) next(oob []byte) (message, []byte, error) {
	var buf [messageSize + 1]byte
	n, oobn, err := c.recvmsg(buf[:], oob)
	if err != nil {
		return message{}, nil, err
	}
	m, err := decode(buf[:n])
	return m, oob[:oobn], err
}

func (c *Child) recvmsg(p, oob []byte) (n, oobn int, err error) {
	receive := func(uintptr) bool {
		err = unix.EINTR
		for err == unix.EINTR {
			n, oobn, _, _, err = unix.Recvmsg(c.fd, p, oob, unix.MSG_CMSG_CLOEXEC)
		}
		return err != unix.EAGAIN
	}
	if c.raw == nil {
		receive(0)
	} else if e := c.raw.Read(receive); e != nil {
		err = e
	}
	if err == unix.ECONNRESET || (err == nil && n == 0) {
		return 0, 0, &ProtocolError{What: "ended without a report"}
	}
	return n, oobn, err
}

func (c *Child) failure(m message) error { return c.failed(m, c.cfg.Command) }

func (c *Child) failed(m message, command *sys.Program) error {
	e := &StepError{Index: int(m.B), Errno: syscall.Errno(m.C)}
	var step sys.Step
	of := func(p *sys.Program) sys.Step {
		e.Layer, e.Origin = p.Part(e.Index)
		return p.Step(e.Index)
	}
	switch m.A {
	case stageInit:
		e.Stage, step = "init", of(c.cfg.Init)
	case stageStart:
		if c.late != nil {
			c.jobs.mu.Lock()
			defer c.jobs.mu.Unlock()
		}
		e.Stage, step = "init", of(c.cfg.Start)
	case stageClone:
		e.Stage, step = "command", sys.Step{Op: "clone3"}
	case stageCommand:
		e.Stage, step = "command", of(command)
	case stageAfter:
		e.Stage, step = "init", sys.Step{Op: "supervise"}
	case stageExec:
		return &ExecError{Errno: e.Errno, Else: m.B == 1}
	case stageTree:
		e.Stage, step = "init", sys.Step{Op: "prctl", Object: "PR_SET_CHILD_SUBREAPER"}
		if e.Index == 1 {
			step = sys.Step{Op: "openat", Object: childrenFile}
		}
	}
	e.Op, e.Object = step.Op, step.Object
	return e
}

// Close ends the stage and everything in its sandbox, if that has not happened,
// and waits until it is gone. Done says that the caller removed the cgroups;
// otherwise the stage does. A second Close does nothing: the numbers of the descriptors
// and of the process may be somebody else's by then.
func (c *Child) Close(done bool) error {
	c.closing.Do(func() { c.closeErr = c.close(done) })
	return c.closeErr
}

// endPatience is how long a stage may take to end that has nothing left to do.
const endPatience = 5 * time.Second

func (c *Child) close(done bool) error {
	if done {
		c.send(message{Kind: msgDone})
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	if c.jobs != nil {
		// What is blocked in a read or a write returns.
		unix.Shutdown(c.fd, unix.SHUT_RDWR)
		<-c.jobs.over
		c.jobs.sending <- struct{}{}
		defer func() { <-c.jobs.sending }()
	}
	c.ctl.Close() // nil for a stage that does not serve
	unix.Close(c.fd)
	// Nothing is left for it to do. One that does not end, because somebody stopped it, is
	// not waited for.
	soon := time.AfterFunc(endPatience/5, func() { c.Halted() })
	defer soon.Stop()
	late := time.AfterFunc(endPatience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ended {
			unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
		}
	})
	defer late.Stop()
	var err error
	for {
		_, err = unix.Wait4(c.pid, nil, unix.WALL, nil)
		if err != unix.EINTR {
			break
		}
	}
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	unix.Close(c.pidfd)
	if c.sockets != nil {
		c.sockets.Close()
	}
	stages.Delete(c)
	return err
}

// Left is how the command ended whose end a stage saw that was killed before it reported
// that. It is nil if the stage saw none.
//
// Preconditions: Close has returned.
func (c *Child) Left() *Exit {
	j := &c.stage.command
	if j.endNS == 0 {
		return nil
	}
	return &Exit{Status: syscall.WaitStatus(c.stage.msg.A), ExecNS: j.execNS, EndNS: j.endNS, First: j.touched == 0}
}

// Begun reports whether the stage began to start the command and did not fail at it, so
// that the command may have run.
//
// Preconditions: Close has returned.
func (c *Child) Begun() bool {
	j := &c.stage.command
	return j.taken != 0 && j.failErrno == 0
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	errors.As(err, &e)
	return e
}
