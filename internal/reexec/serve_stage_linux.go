package reexec

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// maxJobFiles is how many descriptors may come with a job.
const maxJobFiles = 16

// request is where a packet with descriptors is received: struct msghdr, its
// vector and its control buffer, as plain numbers.
type request struct {
	hdr struct {
		name       uintptr
		namelen    uint64
		iov        uintptr
		iovlen     uint64
		control    uintptr
		controllen uint64
		flags      uint64
	}
	iov     [2]uintptr // struct iovec: base, length
	control [2 + maxJobFiles/2]uint64
	addr    uintptr
}

// bind takes the addresses of the request's own fields; head is where the packet
// itself goes.
func (r *request) bind(head uintptr) {
	r.iov[0], r.iov[1] = head, 16
	r.hdr.iov, r.hdr.iovlen = sys.Addr(&r.iov), 1
	r.hdr.control = sys.Addr(&r.control)
	r.addr = sys.Addr(&r.hdr)
}

// The functions below run in the cloned child; see stage_linux.go.

// serveJobs runs what the supervisor asks for until it says that it is over.
//
//go:nosplit
//go:norace
func (s *stage) serveJobs() {
	sfd := s.watchChildren()
	for {
		s.reap(0)
		s.wait(sfd)
		if s.polls[0].Revents == 0 {
			continue
		}
		// What has ended before the packet was read is not ended by it.
		s.reap(0)
		nfds := s.recvRights()
		switch s.msg.Kind {
		case msgExec:
			s.startJob(nfds)
		case msgCall:
			s.callJob(nfds)
		case msgSignalJob:
			s.signalJob()
		case msgTerminate:
			s.terminate()
		case msgSocket:
			s.socket()
		case msgEnd:
			return
		default:
			s.abandon()
		}
	}
}

// endJobs kills what is left, and tells of each command how it ended: one may have come to
// its own end before the signal did.
//
//go:nosplit
//go:norace
func (s *stage) endJobs() {
	s.killing = true
	for {
		// A fork may race the signal.
		sys.Raw(unix.SYS_KILL, ^uintptr(0), uintptr(unix.SIGKILL), 0, 0, 0, 0)
		if _, e := sys.Raw(unix.SYS_WAITID, unix.P_ALL, 0, s.siginfoAddr, unix.WEXITED|unix.WNOWAIT|unix.WALL, 0,
			0); e == uintptr(syscall.ECHILD) {
			return
		}
		s.reap(0)
	}
}

// recvRights reads one packet into msg, as recv does, and the descriptors that
// came with it into the request.
//
//go:nosplit
//go:norace
func (s *stage) recvRights() (nfds uintptr) {
	s.request.hdr.controllen = 16 + 4*maxJobFiles
	s.request.hdr.flags = 0
	s.request.control[0] = 0
	n, e := sys.Raw(unix.SYS_RECVMSG, s.ctl, s.request.addr, unix.MSG_TRUNC|unix.MSG_CMSG_CLOEXEC, 0, 0, 0)
	if e != 0 || n != messageSize || s.request.hdr.flags&unix.MSG_CTRUNC != 0 {
		s.abandon()
	}
	if s.request.hdr.controllen < 16 {
		return 0
	}
	// struct cmsghdr: length, level and type; see cmsg(3). Only the supervisor
	// has the other end, and it sends nothing but SCM_RIGHTS.
	if s.request.control[1] != unix.SOL_SOCKET|unix.SCM_RIGHTS<<32 {
		s.abandon()
	}
	return uintptr(s.request.control[0]-16) / 4
}

// right is descriptor i of the packet that was read last.
//
//go:nosplit
//go:norace
func (s *stage) right(i uintptr) uintptr {
	return uintptr(uint32(s.request.control[(2+i/2)%uintptr(len(s.request.control))] >> (32 * (i & 1))))
}

// takeJob returns the address of the job that the packet is about, with its
// registers set.
//
//go:nosplit
//go:norace
func (s *stage) takeJob(nfds uintptr) uintptr {
	addr := uintptr(s.msg.B) | uintptr(s.msg.C)<<32
	j := (*job)(sys.Pointer(addr))
	if uintptr(s.msg.A) >= s.njobs || nfds != j.nfiles || nfds > maxJobFiles {
		s.abandon()
	}
	j.taken = 1
	j.regs = s.regs
	for i := uintptr(0); i < nfds; i++ {
		j.regs[(uintptr(j.files)+i)%uintptr(len(j.regs))] = s.right(i)
	}
	return addr
}

//go:nosplit
//go:norace
func (s *stage) closeRights(nfds uintptr) {
	for i := uintptr(0); i < nfds; i++ {
		sys.Raw(unix.SYS_CLOSE, s.right(i), 0, 0, 0, 0, 0)
	}
}

// startJob starts a command beside those that run.
//
//go:nosplit
//go:norace
func (s *stage) startJob(nfds uintptr) {
	index := s.msg.A
	addr := s.takeJob(nfds)
	s.spawn(addr)
	s.begun++
	s.closeRights(nfds)
	j := (*job)(sys.Pointer(addr))
	if j.failErrno == 0 {
		*(*uintptr)(sys.Pointer(s.jobs + 8*uintptr(index))) = addr
	} else if j.pid != 0 {
		// It has not become the command: it is a zombie by now.
		sys.Raw(unix.SYS_WAIT4, j.pid, s.statusAddr, unix.WALL, s.rusageAddr, 0, 0)
		j.pid = 0
	}
	s.tell(msgStarted, index)
}

// callJob runs a job's program in PID 1 itself.
//
//go:nosplit
//go:norace
func (s *stage) callJob(nfds uintptr) {
	index := s.msg.A
	addr := s.takeJob(nfds)
	j := (*job)(sys.Pointer(addr))
	if n, e := j.steps.Run(&j.regs); e != 0 {
		j.failStage, j.failStep, j.failErrno = stageCommand, uint32(n), uint32(e)
	}
	s.closeRights(nfds)
	s.tell(msgStarted, index)
}

// signalJob signals a job's command, or its process group. The packet names
// the command's pid too: a job that has ended is nobody's any more.
//
//go:nosplit
//go:norace
func (s *stage) signalJob() {
	index := uintptr(s.msg.B)
	if index >= s.njobs {
		s.abandon()
	}
	addr := *(*uintptr)(sys.Pointer(s.jobs + 8*index))
	if addr == 0 {
		return
	}
	j := (*job)(sys.Pointer(addr))
	if j.pid != uintptr(s.msg.C) {
		return
	}
	pid := j.pid
	if s.msg.A&signalGroup != 0 {
		pid = -pid
		j.touched = 1
	}
	sys.Raw(unix.SYS_KILL, pid, uintptr(s.msg.A&^signalGroup), 0, 0, 0, 0)
}

// jobEnded reports the end of a process if it is a job's command.
//
//go:nosplit
//go:norace
func (s *stage) jobEnded(pid uintptr) {
	for i := uintptr(0); i < s.njobs; i++ {
		addr := *(*uintptr)(sys.Pointer(s.jobs + 8*i))
		if addr == 0 {
			continue
		}
		j := (*job)(sys.Pointer(addr))
		if j.pid != pid {
			continue
		}
		if j.ending != 0 {
			// The number is the group's for as long as anybody is in that.
			sys.Raw(unix.SYS_KILL, -pid, uintptr(unix.SIGKILL), 0, 0, 0, 0)
		}
		j.pid, j.status, j.rusage = 0, uint32(s.status), s.rusage
		j.endNS = s.clock()
		j.full = s.full()
		if s.killing {
			j.touched = 1
		} else if _, e := sys.Raw(unix.SYS_WAITID, unix.P_ALL, 0, s.siginfoAddr,
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, 0, 0); e == uintptr(syscall.ECHILD) {
			// Whose parent ends becomes a child of PID 1: if that has none, it is alone.
			j.alone = 1
		}
		*(*uintptr)(sys.Pointer(s.jobs + 8*i)) = 0
		s.tell(msgEnded, uint32(i))
		return
	}
}

// tell sends a message about a job. The accounts in msg stay.
//
//go:nosplit
//go:norace
func (s *stage) tell(kind, index uint32) {
	s.msg.Kind, s.msg.A, s.msg.B, s.msg.C = kind, index, 0, 0
	s.send()
}
