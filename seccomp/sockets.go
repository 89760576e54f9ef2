package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

// NoSockets returns a filter, to be installed beside another one, under which a
// process makes no socket of any family: socket(2) fails with EPERM, and
// io_uring_setup(2), by which sockets are made as well, with ENOSYS. Connected
// pairs of streams (socketpair(2)) and descriptors that it was given stay; pairs
// for datagrams do not, because those can be sent to any address. It is the
// network's absence where there is no network namespace: UNIX sockets are
// included, because neither a filter nor Landlock can tell the host's daemons
// from a socket of the command's own.
//
// The error is [errors.ErrUnsupported] on an architecture without filters.
func NoSockets() (Program, error) { return sockets(false) }

// ClientSockets returns a filter as NoSockets, but for TCP sockets that connect:
// they cannot be bound or listened on, and nothing is sent before connect(2), as
// TCP Fast Open would. Where that call leads is for others to decide.
func ClientSockets() (Program, error) { return sockets(true) }

// OnlySelf returns a filter, to be installed beside others, under which a process
// changes its own priority, processors, scheduling, i/o priority and limits of
// resources and those of no other: the calls fail with EPERM for a process that is
// named by its id, if that is the caller's own too, because a filter cannot tell.
// It stands for a pid namespace where there is none; the kernel asks for no more
// than the same user.
//
// For the namespace of System V's shared memory, queues and semaphores, which would be
// the host's and stay, it stands as well: their calls do not exist (ENOSYS).
//
// The error is [errors.ErrUnsupported] on an architecture without filters.
func OnlySelf() (Program, error) {
	b, nr, err := newBuilder()
	if err != nil {
		return Program{}, err
	}
	zero := func(n uint32) []instruction {
		return []instruction{arg(n), {opEqual, 1, 0, 0}, deny, pass}
	}
	const prioProcess, ioprioWhoProcess = 0, 1
	for _, c := range nr.byPid {
		b.when(c, zero(0)...)
	}
	for _, c := range [...]struct{ nr, which uint32 }{{nr.setpriority, prioProcess}, {nr.ioprioSet, ioprioWhoProcess}} {
		b.when(c.nr, append([]instruction{arg(0), {opEqual, 1, 0, c.which}, deny}, zero(1)...)...)
	}
	for _, c := range nr.systemV {
		b.when(c, instruction{opReturn, 0, 0, nosys})
	}
	return b.program(), nil
}

// numbers are those of the calls that are about sockets and other processes, on an
// architecture.
type numbers struct {
	arch, foreign                                            uint32 // calls from foreign on are killed
	socket, socketpair, bind, listen, sendto, sendmsg, mmsgs uint32

	setpriority, ioprioSet uint32
	systemV                [11]uint32 // shmget, shmat, shmctl, semget, semop, semctl, semtimedop, msgget, msgsnd, msgrcv, msgctl
	byPid                  [5]uint32  // sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr, prlimit64
}

// An instruction is a struct sock_filter.
type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

const (
	opLoad  = 0x20 // BPF_LD|BPF_W|BPF_ABS
	opEqual = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
	opLeast = 0x35 // BPF_JMP|BPF_JGE|BPF_K

	nosys = 0x00050026 // SECCOMP_RET_ERRNO|ENOSYS
)

var (
	deny = instruction{opReturn, 0, 0, 0x00050001} // SECCOMP_RET_ERRNO|EPERM
	pass = instruction{opReturn, 0, 0, retAllow}
)

// arg loads the low half of an argument; both architectures are little-endian.
func arg(n uint32) instruction { return instruction{opLoad, 0, 0, 16 + 8*n} }

// A builder is a program that is being written.
type builder []instruction

// newBuilder begins a program for this architecture.
func newBuilder() (builder, *numbers, error) {
	nr := &numbers{}
	switch runtime.GOARCH {
	case "amd64":
		*nr = numbers{0xc000003e, 0x40000000, 41, 53, 49, 50, 44, 46, 307, 141, 251,
			[11]uint32{29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71},
			[5]uint32{142, 144, 203, 314, 302}} // AUDIT_ARCH_X86_64; x32 calls have this bit
	case "arm64":
		*nr = numbers{0xc00000b7, 0xffffffff, 198, 199, 200, 201, 206, 211, 269, 140, 30,
			[11]uint32{194, 195, 196, 190, 191, 192, 193, 186, 187, 188, 189},
			[5]uint32{118, 119, 122, 274, 261}} // AUDIT_ARCH_AARCH64
	default:
		return nil, nil, fmt.Errorf("seccomp: no program for this architecture: %w", errors.ErrUnsupported)
	}
	return builder{
		{opLoad, 0, 0, 4}, // seccomp_data.arch
		{opEqual, 1, 0, nr.arch},
		{opReturn, 0, 0, retKillProcess},
		{opLoad, 0, 0, 0}, // seccomp_data.nr
		{opLeast, 0, 1, nr.foreign},
		{opReturn, 0, 0, retKillProcess},
	}, nr, nil
}

// when adds what happens with one call; it ends in a ret.
func (b *builder) when(call uint32, list ...instruction) {
	*b = append(append(*b, instruction{opEqual, 0, uint8(len(list)), call}), list...)
}

// program ends the program, which allows the rest.
func (b builder) program() Program {
	var text []byte
	for _, i := range append(b, pass) {
		text = binary.NativeEndian.AppendUint16(text, i.code)
		text = append(text, i.jt, i.jf)
		text = binary.NativeEndian.AppendUint32(text, i.k)
	}
	return Program{Filter: string(text)}
}

func sockets(clients bool) (Program, error) {
	b, nr, err := newBuilder()
	if err != nil {
		return Program{}, err
	}
	const (
		and  = 0x54 // BPF_ALU|BPF_AND|BPF_K
		some = 0x45 // BPF_JMP|BPF_JSET|BPF_K

		uring    = 425 // io_uring_setup, on every architecture
		fastOpen = 0x20000000
		kind     = 0xf // of a socket's type, without its flags

		inet, inet6    = 2, 10
		stream, packet = 1, 5 // SOCK_STREAM, SOCK_SEQPACKET
		tcp            = 6
	)
	b.when(uring, instruction{opReturn, 0, 0, nosys})
	b.when(nr.socketpair, arg(1), instruction{and, 0, 0, kind}, instruction{opEqual, 2, 0, stream},
		instruction{opEqual, 1, 0, packet}, deny, pass)
	if clients {
		b.when(nr.socket,
			arg(0), instruction{opEqual, 1, 0, inet}, instruction{opEqual, 0, 6, inet6},
			arg(1), instruction{and, 0, 0, kind}, instruction{opEqual, 0, 3, stream},
			arg(2), instruction{opEqual, 2, 0, 0}, instruction{opEqual, 1, 0, tcp},
			deny, pass)
		b.when(nr.bind, deny)
		b.when(nr.listen, deny)
		for _, c := range [...]struct{ nr, flags uint32 }{{nr.sendto, 3}, {nr.sendmsg, 2}, {nr.mmsgs, 3}} {
			b.when(c.nr, arg(c.flags), instruction{some, 0, 1, fastOpen}, deny, pass)
		}
	} else {
		b.when(nr.socket, deny)
	}
	return b.program(), nil
}
