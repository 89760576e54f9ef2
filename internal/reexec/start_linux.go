package reexec

import (
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// Config is what a second stage is to do.
type Config struct {
	// CloneFlags are the namespaces to create (CLONE_NEW…).
	CloneFlags uint64

	// Init runs as PID 1 right after the clone, while the supervisor goes on;
	// Start runs as PID 1 once the supervisor called Go; Command runs in the
	// process that becomes the command; Finish runs as PID 1 when it has
	// reported the end, while the supervisor acts on that: a step that fails
	// there changes nothing any more. They share one set of registers. Finish
	// may be nil.
	Init, Start, Command, Finish *sys.Program

	// Cgroup is the register that holds the descriptor of the cgroup that the
	// command is cloned into (CLONE_INTO_CGROUP, Linux 5.7); 0 is none.
	Cgroup sys.Reg

	// Paths are what execve(2) is tried with, in order. Argv and Env must not
	// contain NUL.
	Paths, Argv, Env []string

	// Dirs are the cgroup directories to remove if the supervisor dies.
	Dirs []Dir

	// Keep are the descriptors that the programs use, beside the control
	// socket; every other one is closed in PID 1.
	Keep []int
}

// Dir is a directory below an open one.
type Dir struct {
	ParentFD int
	Name     string
}

// Child is a running second stage.
type Child struct {
	pid   int
	pidfd int
	fd    int // control socket
	cfg   *Config

	mu     sync.Mutex // guards closed against senders
	closed bool
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
}

// Start clones the second stage. The command does not run before Go.
//
// A pid namespace is not optional: the stage ends a sandbox by signalling every
// process that it can see.
func Start(cfg *Config) (*Child, error) {
	if cfg.CloneFlags&unix.CLONE_NEWPID == 0 || cfg.CloneFlags&unix.CLONE_NEWUSER == 0 {
		return nil, errors.New("reexec: no pid and user namespace")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &StepError{Stage: "clone", Step: "socketpair", Errno: errnoOf(err)}
	}
	st := &stage{}
	st.bind()
	st.ctl = uintptr(pair[1])
	st.regs[sys.RegControl] = uintptr(pair[1])
	st.cgroup = cfg.Cgroup

	var mem sys.Program // only for the memory of what is handed to execve
	mem.Grow(8, argBytes(cfg))
	if len(cfg.Paths) > maxExecPaths {
		cfg.Paths = cfg.Paths[:maxExecPaths]
	}
	for i, p := range cfg.Paths {
		st.execPaths[i] = mem.Addr(p)
	}
	argv, envp := mem.Vector(cfg.Argv), mem.Vector(cfg.Env)
	st.argv, st.envp = argv, envp
	if len(cfg.Dirs) > maxDirs {
		return nil, errors.New("reexec: too many directories")
	}
	for i, d := range cfg.Dirs {
		st.dirEntries[i] = dirEntry{uintptr(d.ParentFD), mem.Addr(d.Name)}
	}
	st.ndirs = uintptr(len(cfg.Dirs))

	prologue := closeOthers(append(slices.Clone(cfg.Keep), pair[1]))
	st.prologue = prologue.Runnable()
	// What the command has is the command's: a pipe that PID 1 kept open would
	// never end.
	keep := []int{pair[1]}
	for _, d := range cfg.Dirs {
		keep = append(keep, d.ParentFD)
	}
	epilogue := closeOthers(keep)
	st.epilogue = epilogue.Runnable()
	st.init, st.start, st.command = cfg.Init.Runnable(), cfg.Start.Runnable(), cfg.Command.Runnable()
	if cfg.Finish != nil {
		st.finish = cfg.Finish.Runnable()
	}

	var pidfd int32 = -1
	args := &sys.CloneArgs{
		Flags:      cfg.CloneFlags | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND,
		PidFD:      uint64(sys.Addr(&pidfd)),
		ExitSignal: uint64(unix.SIGCHLD),
	}
	task, err := sys.Clone(args, stageMain, sys.Addr(st))
	unix.Close(pair[1])
	if err != nil {
		unix.Close(pair[0])
		return nil, &StepError{Stage: "clone", Step: "clone3", Errno: errnoOf(err)}
	}
	// The stage runs in this memory until it has been waited for, whatever
	// becomes of the Child.
	c := &Child{pid: task.Pid, pidfd: int(pidfd), fd: pair[0], cfg: cfg}
	stages.Store(c, []any{task, st, cfg, &mem, prologue, epilogue})
	return c, nil
}

// stages keeps the memory of running stages reachable.
var stages sync.Map

func argBytes(cfg *Config) int {
	n := 256
	for _, l := range [][]string{cfg.Paths, cfg.Argv, cfg.Env} {
		for _, s := range l {
			n += len(s) + 1
		}
	}
	return n
}

// SendTerminal appends the step that passes the master of the command's terminal
// to the supervisor; see [Child.Terminal].
func SendTerminal(p *sys.Program, master sys.Value) {
	body := message{Kind: msgTerminal}.encode()
	oob := unix.UnixRights(0)
	p.Store32(oob, unix.CmsgLen(0), master)
	iov := &unix.Iovec{Base: &body[0]}
	iov.SetLen(len(body))
	hdr := &unix.Msghdr{Iov: iov, Control: &oob[0]}
	hdr.Iovlen = 1
	hdr.SetControllen(len(oob))
	p.Call(0, sys.Step{Name: "sendmsg", Path: "terminal"}, unix.SYS_SENDMSG,
		sys.RegControl.Value(), sys.Ptr(p, hdr), sys.Imm(unix.MSG_NOSIGNAL))
}

// closeOthers closes every descriptor that is not in keep. It leaves numbers as
// they are, so that programs can name them.
func closeOthers(keep []int) *sys.Program {
	p := &sys.Program{}
	slices.Sort(keep)
	next := 0
	step := sys.Step{Name: "close_range"}
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
	return p
}

// Pid is the stage's pid in the caller's pid namespace.
func (c *Child) Pid() int { return c.pid }

// Go lets the stage run its Start program and the command.
func (c *Child) Go() error { return c.send(message{Kind: msgGo}) }

// Signal sends a signal to the command.
func (c *Child) Signal(sig syscall.Signal) error {
	return c.send(message{Kind: msgSignal, A: uint32(sig)})
}

// Terminate sends SIGTERM, then SIGCONT, to every process in the sandbox.
func (c *Child) Terminate() error { return c.send(message{Kind: msgTerminate}) }

// Kill ends the stage and with it every process in its pid namespace, by pidfd.
func (c *Child) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return syscall.ESRCH
	}
	return unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
}

func (c *Child) send(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
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
	var buf [messageSize + 1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, err := c.recvmsg(buf[:], oob)
	if err != nil {
		return nil, err
	}
	m, err := decode(buf[:n])
	if err != nil {
		return nil, err
	}
	if m.Kind == msgFailed {
		return nil, c.failure(m)
	}
	if m.Kind != msgTerminal {
		return nil, &ProtocolError{What: "exit report instead of a terminal"}
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
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
func (c *Child) Wait() (*Exit, error) {
	var buf [messageSize + 1]byte
	n, _, err := c.recvmsg(buf[:], nil)
	if err != nil {
		return nil, err
	}
	m, err := decode(buf[:n])
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
			ExecNS: m.ExecNS,
		}, nil
	}
	return nil, &ProtocolError{What: "unexpected message"}
}

func (c *Child) recvmsg(p, oob []byte) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(c.fd, p, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ECONNRESET || (err == nil && n == 0) {
			return 0, 0, &ProtocolError{What: "ended without a report"}
		}
		return n, oobn, err
	}
}

func (c *Child) failure(m message) error {
	e := &StepError{Index: int(m.B), Errno: syscall.Errno(m.C)}
	var step sys.Step
	switch m.A {
	case stageInit:
		e.Stage, step = "init", c.cfg.Init.Step(e.Index)
	case stageStart:
		e.Stage, step = "init", c.cfg.Start.Step(e.Index)
	case stageClone:
		e.Stage, step = "command", sys.Step{Name: "clone3"}
	case stageCommand:
		e.Stage, step = "command", c.cfg.Command.Step(e.Index)
	case stageAfter:
		e.Stage, step = "init", sys.Step{Name: "supervise"}
	case stageExec:
		return &ExecError{Errno: e.Errno}
	}
	e.Step, e.Path = step.Name, step.Path
	return e
}

// Close ends the stage and everything in its sandbox, if that has not happened,
// and waits until it is gone. Done says that the caller removed the cgroups;
// otherwise the stage does.
func (c *Child) Close(done bool) error {
	if done {
		c.send(message{Kind: msgDone})
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	unix.Close(c.fd)
	var err error
	for {
		_, err = unix.Wait4(c.pid, nil, unix.WALL, nil)
		if err != unix.EINTR {
			break
		}
	}
	unix.Close(c.pidfd)
	stages.Delete(c)
	return err
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	errors.As(err, &e)
	return e
}
