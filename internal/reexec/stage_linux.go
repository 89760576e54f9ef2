package reexec

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// stage is all that the second stage needs, as plain numbers. It lives in the
// supervisor's heap, and once the stage is cloned only that reads and writes it:
// the two share memory. Addresses of its own fields are taken beforehand.
type stage struct {
	regs     sys.Regs
	prologue sys.Runnable // PID 1: closes what is not its own
	init     sys.Runnable // PID 1, up to the wait for Go
	settle   sys.Runnable // PID 1, before it waits to be completed: closes what is not needed for that
	start    sys.Runnable // PID 1, after Go
	epilogue sys.Runnable // PID 1: closes what is the command's
	finish   sys.Runnable // PID 1, after the report

	// tree is 1 if there is no pid namespace; see Config.Tree. freeze is run
	// before such a tree is killed.
	tree   uintptr
	freeze sys.Runnable

	ctl  uintptr // the socket to the supervisor
	gate bool    // the command waits for a Go of its own

	// For sockets that the supervisor asks for: what passes one, what says why
	// there is none, and the register that both take the descriptor or errno from.
	pass, refuse sys.Runnable
	socketReg    sys.Reg

	// command is what runs. A stage that serves has none of its own, but the
	// addresses of the jobs that it was given, in a table of njobs entries; an
	// entry is 0 when it is free.
	command     job
	commandAddr uintptr
	serving     bool
	killing     bool // every process, for that is the end
	jobs, njobs uintptr

	// begun counts the jobs that were started, or could not be. At quiet, which is the
	// supervisor's to read, is how many there were when PID 1 last had no child.
	begun uint64
	quiet uintptr

	// A table of ndirs directories to remove, in order, if the supervisor is
	// gone.
	dirs, ndirs uintptr

	// Scratch memory and the addresses of it.
	msg       message
	status    int32
	rusage    unix.Rusage
	polls     [2]unix.PollFd
	sigset    [1]uint64
	siginfo   [128]byte
	now       unix.Timespec
	cloneArgs sys.CloneArgs
	old       bool // by clone(2)
	request   request

	storage    uintptr // C string: a path on it, 0 for none
	statfs     unix.Statfs_t
	statfsAddr uintptr

	children     [4096]byte // of this process, as /proc lists them
	childrenAddr uintptr
	childrenPath uintptr // C string

	msgAddr, statusAddr, rusageAddr, pollsAddr, sigsetAddr, siginfoAddr, nowAddr, cloneAddr, selfAddr uintptr
}

const (
	atFDCWD      = ^uintptr(99) // AT_FDCWD, -100
	freezeAfter  = 8            // rounds: what is not dead by then forks faster than it is killed
	maxExecPaths = 256
)

// job is one command. Like the stage it lives in the supervisor's heap, and the
// stage reads and writes it there.
type job struct {
	self  uintptr // its own address
	id    uint32
	pid   uintptr // 0: not running
	regs  sys.Regs
	steps sys.Runnable

	// cgroup is the register that holds the cgroup for CLONE_INTO_CGROUP, 0
	// for none.
	cgroup sys.Reg

	// The descriptors that came with the job are in nfiles registers from
	// files on.
	files  sys.Reg
	nfiles uintptr

	// For execve: arrays of C strings ended by NULL, and what it is tried with,
	// in order; C strings.
	argv, envp uintptr
	paths      [maxExecPaths]uintptr
	other      uintptr // the first of paths at which argv begins with otherName; 0 for none
	otherName  uintptr

	// taken is set by the stage when it begins to act on the job, or to start its command.
	taken uint32

	// tid is the process that is to become the command, from before it begins; executing
	// is 1 while it is at execve, and from when that has succeeded.
	tid       uint32
	tidAddr   uintptr
	executing uint32

	// ending is set by the supervisor when the command's process group is being
	// ended: what of it outlives the command is killed then.
	ending uint32

	// What became of it.
	failStage uint32
	failStep  uint32
	failErrno uint32
	execNS    uint64
	endNS     uint64
	touched   uint32 // 1: the stage has done something to end it
	status    uint32
	rusage    unix.Rusage
	alone     uint32 // 1: PID 1 had no other child when it ended
	full      uint32 // 1: there was no room in the storage when it ended
}

// bind takes the job's address.
func (j *job) bind() uintptr {
	j.self, j.tidAddr = sys.Addr(j), sys.Addr(&j.tid)
	return j.self
}

// dirEntry is a cgroup directory for unlinkat(2), or several.
type dirEntry struct {
	fd   uintptr
	name uintptr // C string

	// Of several: where in name the number is written, the first, and how many.
	number, from, n uintptr
}

const dirEntrySize = 40 // of a dirEntry, on the 64-bit machines that this is for

// maxNumber has as many digits as there is room for in a name.
const maxNumber = "999999"

// bind takes the addresses of the stage's own fields.
func (s *stage) bind() {
	s.msgAddr = sys.Addr(&s.msg)
	s.statusAddr = sys.Addr(&s.status)
	s.rusageAddr = sys.Addr(&s.rusage)
	s.statfsAddr = sys.Addr(&s.statfs)
	s.pollsAddr = sys.Addr(&s.polls)
	s.sigsetAddr = sys.Addr(&s.sigset)
	s.siginfoAddr = sys.Addr(&s.siginfo)
	s.nowAddr = sys.Addr(&s.now)
	s.cloneAddr = sys.Addr(&s.cloneArgs)
	s.selfAddr = sys.Addr(s)
	s.childrenAddr = sys.Addr(&s.children)
	s.commandAddr = s.command.bind()
	s.request.bind(s.msgAddr)
}

// The functions below run in the cloned child: no allocation, no stack growth,
// no pointer writes, no calls but of functions like them.

//go:nosplit
//go:norace
func stageMain(arg uintptr) { (*stage)(sys.Pointer(arg)).main() }

// main is PID 1 of the sandbox. It does not return.
//
//go:nosplit
//go:norace
func (s *stage) main() {
	// It is going to signal every process that it can see, or else only what
	// descends from it.
	if pid, _ := sys.Raw(unix.SYS_GETPID, 0, 0, 0, 0, 0, 0); pid != 1 && s.tree == 0 {
		s.exit(1)
	}
	// Who kills the supervisor's process group is not to kill this one with it:
	// it has the cgroups to remove.
	sys.Raw(unix.SYS_SETSID, 0, 0, 0, 0, 0, 0)
	if _, e := s.prologue.Run(&s.regs); e != 0 {
		s.exit(1)
	}
	s.wakeAtDeath()
	if s.tree != 0 {
		s.adopt()
	}
	if n, e := s.init.Run(&s.regs); e != 0 {
		s.fail(stageInit, n, e)
	}
	if n, e := s.settle.Run(&s.regs); e != 0 {
		s.fail(stageAfter, n, e)
	}
	if !s.waitGo() {
		s.abandon()
	}
	if n, e := s.start.Run(&s.regs); e != 0 {
		s.fail(stageStart, n, e)
	}
	s.wakeAtDeath() // new ids in the set-up undo it
	if s.gate && !s.waitGo() || s.alone() {
		// Go was sent by a supervisor that is gone by now.
		s.abandon()
	}
	if s.serving {
		if n, e := s.epilogue.Run(&s.regs); e != 0 {
			s.fail(stageAfter, n, e)
		}
		s.serveJobs()
		s.endJobs()
		s.end()
	}
	s.command.regs = s.regs
	s.spawn(s.commandAddr)
	if s.command.failErrno != 0 {
		s.reap(0)
		s.fail(s.command.failStage, uintptr(s.command.failStep), uintptr(s.command.failErrno))
	}
	if n, e := s.epilogue.Run(&s.regs); e != 0 {
		s.killAll()
		s.fail(stageAfter, n, e)
	}
	s.serve(s.command.pid)
	s.end()
}

// end kills what is left and reports how the command ended. It does not return.
//
//go:nosplit
//go:norace
func (s *stage) end() {
	s.killAll()
	if s.serving {
		s.msg.A = 0 // no command of the stage's own, and so no status
	}
	s.msg.Kind = msgExited
	s.msg.B = 1 - s.command.touched
	s.msg.C = s.full()
	s.msg.ExecNS, s.msg.EndNS = s.command.execNS, s.command.endNS
	s.report()
}

// full is 1 if there is no room in the storage.
//
//go:nosplit
//go:norace
func (s *stage) full() uint32 {
	if s.storage == 0 {
		return 0
	}
	if _, e := sys.Raw(unix.SYS_STATFS, s.storage, s.statfsAddr, 0, 0, 0, 0); e != 0 {
		return 0
	}
	if s.statfs.Blocks > 0 && s.statfs.Bavail == 0 || s.statfs.Files > 0 && s.statfs.Ffree == 0 {
		return 1
	}
	return 0
}

// waitGo waits for the supervisor's Go. It reports false if that will not come.
//
//go:nosplit
//go:norace
func (s *stage) waitGo() bool {
	for {
		n, e := s.recv()
		if e != 0 || n != messageSize {
			return false
		}
		switch s.msg.Kind {
		case msgGo:
			return true
		case msgSocket:
			s.socket()
		case msgCall:
			s.callJob(0)
		case msgEnd:
			s.end()
		default:
			return false
		}
	}
}

// socket opens a socket for the supervisor, in the network namespace that it is
// not in itself.
//
//go:nosplit
//go:norace
func (s *stage) socket() {
	fd, e := sys.Raw(unix.SYS_SOCKET, uintptr(s.msg.A), uintptr(s.msg.B)|unix.SOCK_CLOEXEC, uintptr(s.msg.C), 0, 0, 0)
	if e != 0 {
		s.refuseSocket(e)
		return
	}
	s.regs[s.socketReg] = fd
	if _, e := s.pass.Run(&s.regs); e != 0 {
		sys.Raw(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
		s.refuseSocket(e)
	}
}

// refuseSocket answers a request for a socket with an error. The supervisor waits
// for an answer, so that a stage that cannot give one ends, and with it all that is
// inside. That there is nobody to answer is noticed, and dealt with, elsewhere.
//
//go:nosplit
//go:norace
func (s *stage) refuseSocket(errno uintptr) {
	s.regs[s.socketReg] = errno
	if _, e := s.refuse.Run(&s.regs); e != 0 && e != uintptr(syscall.EPIPE) && e != uintptr(syscall.ECONNRESET) {
		s.exit(1)
	}
}

// alone reports whether the supervisor is gone.
//
//go:nosplit
//go:norace
func (s *stage) alone() bool {
	s.polls[0] = unix.PollFd{Fd: int32(s.ctl), Events: unix.POLLIN}
	s.now = unix.Timespec{}
	n, e := sys.Raw(unix.SYS_PPOLL, s.pollsAddr, 1, s.nowAddr, 0, 0, 0)
	return e == 0 && n > 0 && s.polls[0].Revents&unix.POLLHUP != 0
}

// spawn clones a job's process and runs its program in it.
//
//go:nosplit
//go:norace
func (s *stage) spawn(addr uintptr) {
	j := (*job)(sys.Pointer(addr))
	j.taken = 1
	s.cloneArgs.Flags = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PARENT_SETTID
	s.cloneArgs.ParentTID = uint64(j.tidAddr)
	s.cloneArgs.ExitSignal = uint64(unix.SIGCHLD)
	s.cloneArgs.Cgroup = 0
	if j.cgroup != 0 {
		s.cloneArgs.Flags |= unix.CLONE_INTO_CGROUP
		s.cloneArgs.Cgroup = uint64(j.regs[j.cgroup])
	}
	args := s.cloneAddr
	if s.old {
		args = 0
	}
	pid, e := sys.Vfork(args, runCommand, addr)
	if e != 0 {
		j.failStage, j.failStep, j.failErrno = stageClone, 0, uint32(e)
		return
	}
	j.pid = pid
	j.execNS = s.clock()
}

// clock is CLOCK_MONOTONIC, ns.
//
//go:nosplit
//go:norace
func (s *stage) clock() uint64 {
	sys.Raw(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, s.nowAddr, 0, 0, 0, 0)
	return uint64(s.now.Sec)*1e9 + uint64(s.now.Nsec)
}

//go:nosplit
//go:norace
func runCommand(arg uintptr) { (*job)(sys.Pointer(arg)).exec() }

// exec runs the job's program and becomes the command. It does not return.
//
//go:nosplit
//go:noinline
//go:norace
func (j *job) exec() {
	if n, e := j.steps.Run(&j.regs); e != 0 {
		j.failStage, j.failStep, j.failErrno = stageCommand, uint32(n), uint32(e)
		exit(127)
	}
	// As execvp(3): go on to the next directory if there is nothing in this
	// one, remember that something was there but may not be executed.
	errno, other := uint32(syscall.ENOENT), uint32(0)
	for i := 0; i < maxExecPaths && j.paths[i] != 0; i++ {
		if j.other != 0 && uintptr(i) == j.other {
			if errno != uint32(syscall.ENOENT) {
				break
			}
			*(*uintptr)(sys.Pointer(j.argv)) = j.otherName
			other = 1
		}
		j.executing = 1
		_, e := sys.Raw(unix.SYS_EXECVE, j.paths[i], j.argv, j.envp, 0, 0, 0)
		j.executing = 0
		if e == uintptr(syscall.ENOENT) || e == uintptr(syscall.ENOTDIR) {
			continue
		}
		errno = uint32(e)
		if e != uintptr(syscall.EACCES) {
			break
		}
	}
	j.failStage, j.failStep, j.failErrno = stageExec, other, errno
	exit(127)
}

// serve forwards what the supervisor asks for until the command has ended.
//
//go:nosplit
//go:norace
func (s *stage) serve(pid uintptr) {
	sfd := s.watchChildren()
	for {
		// Reaped before the first wait too: a command may have ended before
		// the descriptor was there.
		if s.reap(pid) {
			return
		}
		s.wait(sfd)
		if s.polls[0].Revents != 0 {
			n, e := s.recv()
			if e != 0 || n != messageSize {
				s.abandon()
			}
			switch s.msg.Kind {
			case msgSignal:
				// pid is not reaped yet, so that it cannot be another's.
				sys.Raw(unix.SYS_KILL, pid, uintptr(s.msg.A), 0, 0, 0, 0)
			case msgTerminate:
				// It may have ended before this was read, or even sent.
				if s.reap(pid) {
					return
				}
				s.command.touched = 1
				s.terminate()
			case msgSocket:
				s.socket()
			case msgKill:
				if s.reap(pid) {
					return
				}
				if s.tree != 0 {
					s.command.touched = 1
					s.killTree()
					return
				}
			}
		}
	}
}

// wakeAtDeath has the supervisor's death continue this process, if somebody stopped it: it
// sees the end of the stream then.
//
//go:nosplit
//go:norace
func (s *stage) wakeAtDeath() {
	sys.Raw(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGCONT), 0, 0, 0, 0)
}

// watchChildren returns a descriptor that can be read when a child ended.
// SIGCHLD is blocked like every signal here.
//
//go:nosplit
//go:norace
func (s *stage) watchChildren() uintptr {
	s.sigset[0] = 1 << (uint(unix.SIGCHLD) - 1)
	sfd, e := sys.Raw(unix.SYS_SIGNALFD4, ^uintptr(0), s.sigsetAddr, 8, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK, 0, 0)
	if e != 0 {
		s.killAll()
		s.fail(stageAfter, 0, e)
	}
	return sfd
}

// wait returns when a child ended or the supervisor has something to say;
// polls[0] tells of the latter.
//
//go:nosplit
//go:norace
func (s *stage) wait(sfd uintptr) {
	s.polls[0] = unix.PollFd{Fd: int32(s.ctl), Events: unix.POLLIN}
	s.polls[1] = unix.PollFd{Fd: int32(sfd), Events: unix.POLLIN}
	if _, e := sys.Raw(unix.SYS_PPOLL, s.pollsAddr, 2, 0, 0, 0, 0); e != 0 && e != uintptr(syscall.EINTR) {
		s.abandon()
	}
	if s.polls[1].Revents != 0 {
		sys.Raw(unix.SYS_READ, sfd, s.siginfoAddr, 128, 0, 0, 0)
	}
}

// terminate asks every process to end, stopped ones too.
//
//go:nosplit
//go:norace
func (s *stage) terminate() {
	if s.tree != 0 {
		return // to this stage, every process is every process of the host
	}
	sys.Raw(unix.SYS_KILL, ^uintptr(0), uintptr(unix.SIGTERM), 0, 0, 0, 0)
	sys.Raw(unix.SYS_KILL, ^uintptr(0), uintptr(unix.SIGCONT), 0, 0, 0, 0)
}

// reap waits for every child that has ended and reports whether pid was among
// them.
//
//go:nosplit
//go:norace
func (s *stage) reap(pid uintptr) (ended bool) {
	for {
		p, e := sys.Raw(unix.SYS_WAIT4, ^uintptr(0), s.statusAddr, unix.WNOHANG|unix.WALL, s.rusageAddr, 0, 0)
		if e == uintptr(syscall.ECHILD) && s.serving {
			*(*uint64)(sys.Pointer(s.quiet)) = s.begun
		}
		if e != 0 || p == 0 {
			return ended
		}
		s.account()
		if p == pid {
			s.msg.A = uint32(s.status)
			s.command.endNS = s.clock()
			ended = true
		}
		if s.serving {
			s.jobEnded(p)
		}
	}
}

// account adds the usage of a child that was waited for, which includes that of
// the children it waited for itself.
//
//go:nosplit
//go:norace
func (s *stage) account() {
	s.msg.Utime += uint64(s.rusage.Utime.Sec)*1e6 + uint64(s.rusage.Utime.Usec)
	s.msg.Stime += uint64(s.rusage.Stime.Sec)*1e6 + uint64(s.rusage.Stime.Usec)
	if m := uint64(s.rusage.Maxrss); m > s.msg.MaxRSS {
		s.msg.MaxRSS = m
	}
}

// killAll ends every process but this one and waits until they are gone.
//
//go:nosplit
//go:norace
func (s *stage) killAll() {
	if s.tree != 0 {
		s.killTree()
		return
	}
	for {
		// A fork may race the signal, so again until there is nobody left to
		// signal: kill(2) of -1 fails with ESRCH then.
		_, e := sys.Raw(unix.SYS_KILL, ^uintptr(0), uintptr(unix.SIGKILL), 0, 0, 0, 0)
		if e == uintptr(syscall.ESRCH) {
			break
		}
		if _, e := sys.Raw(unix.SYS_WAIT4, ^uintptr(0), s.statusAddr, unix.WALL, s.rusageAddr, 0,
			0); e == uintptr(syscall.ECHILD) {
			break
		}
		s.account()
	}
	for {
		_, e := sys.Raw(unix.SYS_WAIT4, ^uintptr(0), s.statusAddr, unix.WALL, s.rusageAddr, 0, 0)
		if e == uintptr(syscall.ECHILD) {
			return
		}
		if e == 0 {
			s.account()
		}
	}
}

// adopt makes every orphan below this process its child, and finds out whether
// it can list its children: by that they are killed.
//
//go:nosplit
//go:norace
func (s *stage) adopt() {
	// prctl(PR_SET_CHILD_SUBREAPER, 1), Linux 3.4.
	if _, e := sys.Raw(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0, 0); e != 0 {
		s.fail(stageTree, 0, e)
	}
	fd, e := sys.Raw(unix.SYS_OPENAT, atFDCWD, s.childrenPath, unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		s.fail(stageTree, 1, e)
	}
	sys.Raw(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
}

// killTree ends every process that descends from this one and waits until they
// are gone. Whose parent died becomes a child of this process, so that children
// are all that has to be killed, again and again; what forks faster than that is
// for freeze to stop.
//
//go:nosplit
//go:norace
func (s *stage) killTree() {
	for round := 0; ; round++ {
		if round == freezeAfter {
			s.freeze.Run(&s.regs) // what it cannot stop is killed one by one
		}
		s.killChildren()
		options := uintptr(unix.WALL)
		for {
			p, e := sys.Raw(unix.SYS_WAIT4, ^uintptr(0), s.statusAddr, options, s.rusageAddr, 0, 0)
			if e == uintptr(syscall.ECHILD) {
				return
			}
			if e != 0 || p == 0 {
				break
			}
			s.account()
			if p == s.command.pid {
				s.msg.A = uint32(s.status)
			}
			options = unix.WALL | unix.WNOHANG
		}
	}
}

// killChildren kills the children of this process, or the first few hundred.
// They are not waited for meanwhile, so that a number cannot be another's.
//
//go:nosplit
//go:norace
func (s *stage) killChildren() {
	fd, e := sys.Raw(unix.SYS_OPENAT, atFDCWD, s.childrenPath, unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return
	}
	n, e := sys.Raw(unix.SYS_READ, fd, s.childrenAddr, uintptr(len(s.children)), 0, 0, 0)
	sys.Raw(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
	if e != 0 {
		return
	}
	pid := uintptr(0)
	for i := uintptr(0); i < n && i < uintptr(len(s.children)); i++ {
		c := s.children[i]
		if c >= '0' && c <= '9' {
			pid = pid*10 + uintptr(c-'0')
			continue
		}
		// 0 and 1 are no children, and kill(2) takes 0 for the whole group. A
		// number that the end of the buffer cut short has no space after it.
		if pid > 1 && c == ' ' {
			sys.Raw(unix.SYS_KILL, pid, uintptr(unix.SIGKILL), 0, 0, 0, 0)
		}
		pid = 0
	}
}

// abandon ends the sandbox when there is nobody left to report to: nothing
// survives, nothing stays behind.
//
//go:nosplit
//go:norace
func (s *stage) abandon() {
	s.killAll()
	s.removeDirs()
	s.exit(1)
}

// removeDirs removes the cgroups that the supervisor did not.
//
//go:nosplit
//go:norace
func (s *stage) removeDirs() {
	for i := uintptr(0); i < s.ndirs; i++ {
		d := (*dirEntry)(sys.Pointer(s.dirs + i*dirEntrySize))
		if d.n == 0 {
			s.removeDir(d)
		}
		for n := uintptr(0); n < d.n; n++ {
			d.setNumber(d.from + n)
			s.removeDir(d)
		}
	}
}

// removeDir removes one. A cgroup stays busy until the last exit in it is done with;
// at most one second of waiting, as the supervisor does itself.
//
//go:nosplit
//go:norace
func (s *stage) removeDir(d *dirEntry) {
	for try := 0; try < 1000; try++ {
		_, e := sys.Raw(unix.SYS_UNLINKAT, d.fd, d.name, unix.AT_REMOVEDIR, 0, 0, 0)
		if e != uintptr(syscall.EBUSY) {
			return
		}
		s.now = unix.Timespec{Nsec: 1e6}
		sys.Raw(unix.SYS_NANOSLEEP, s.nowAddr, 0, 0, 0, 0, 0)
	}
}

// setNumber writes a number at the end of the name.
//
//go:nosplit
//go:norace
func (d *dirEntry) setNumber(n uintptr) {
	at := d.number
	for rest := n; rest >= 10; rest /= 10 {
		at++
	}
	*(*byte)(sys.Pointer(at + 1)) = 0
	for ; at >= d.number; at-- {
		*(*byte)(sys.Pointer(at)) = byte('0' + n%10)
		n /= 10
	}
}

// fail reports a failed step and ends the sandbox.
//
//go:nosplit
//go:norace
func (s *stage) fail(stage uint32, step, errno uintptr) {
	s.msg = message{Kind: msgFailed, A: stage, B: uint32(step), C: uint32(errno)}
	s.report()
}

// report sends the final message and waits until the supervisor has done its
// part of the cleaning up. If it dies before it says so, that is done here.
//
//go:nosplit
//go:norace
func (s *stage) report() {
	s.send()
	s.finish.Run(&s.regs)
	for {
		n, e := s.recv()
		if e == 0 && n == messageSize {
			switch s.msg.Kind {
			case msgDone:
				s.exit(0)
			case msgSocket: // the supervisor has not read the report
				s.refuseSocket(uintptr(syscall.ESRCH))
			}
			continue // a signal for a command that has ended already
		}
		s.removeDirs()
		s.exit(1)
	}
}

// recv reads one packet into msg, leaving its accounts untouched.
//
//go:nosplit
//go:norace
func (s *stage) recv() (n, errno uintptr) {
	for {
		// Only the head is read from the packet: the rest of msg is where
		// usage adds up. MSG_TRUNC makes the kernel tell the packet's real
		// size all the same.
		n, errno = sys.Raw(unix.SYS_RECVFROM, s.ctl, s.msgAddr, 16, unix.MSG_TRUNC, 0, 0)
		if errno != uintptr(syscall.EINTR) {
			return n, errno
		}
	}
}

//go:nosplit
//go:norace
func (s *stage) send() {
	// MSG_NOSIGNAL: a supervisor that is gone is no reason to die of SIGPIPE
	// before the rest is cleaned up.
	sys.Raw(unix.SYS_SENDTO, s.ctl, s.msgAddr, messageSize, unix.MSG_NOSIGNAL, 0, 0)
}

//go:nosplit
//go:norace
func (s *stage) exit(code uintptr) { exit(code) }

//go:nosplit
//go:norace
func exit(code uintptr) {
	for {
		sys.Raw(unix.SYS_EXIT_GROUP, code, 0, 0, 0, 0, 0)
	}
}
