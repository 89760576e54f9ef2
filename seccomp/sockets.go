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

// numbers are those of the calls that are about sockets, on an architecture.
type numbers struct {
	arch, foreign                                            uint32 // calls from foreign on are killed
	socket, socketpair, bind, listen, sendto, sendmsg, mmsgs uint32
}

func sockets(clients bool) (Program, error) {
	var nr numbers
	switch runtime.GOARCH {
	case "amd64":
		nr = numbers{0xc000003e, 0x40000000, 41, 53, 49, 50, 44, 46, 307} // AUDIT_ARCH_X86_64; x32 calls have this bit
	case "arm64":
		nr = numbers{0xc00000b7, 0xffffffff, 198, 199, 200, 201, 206, 211, 269} // AUDIT_ARCH_AARCH64
	default:
		return Program{}, fmt.Errorf("seccomp: no sockets: no program for this architecture: %w", errors.ErrUnsupported)
	}
	const (
		load  = 0x20 // BPF_LD|BPF_W|BPF_ABS
		and   = 0x54 // BPF_ALU|BPF_AND|BPF_K
		equal = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
		least = 0x35 // BPF_JMP|BPF_JGE|BPF_K
		some  = 0x45 // BPF_JMP|BPF_JSET|BPF_K
		ret   = 0x06 // BPF_RET|BPF_K

		kill  = 0x80000000 // SECCOMP_RET_KILL_PROCESS
		eperm = 0x00050001 // SECCOMP_RET_ERRNO|EPERM
		nosys = 0x00050026 // SECCOMP_RET_ERRNO|ENOSYS
		allow = 0x7fff0000

		uring    = 425 // io_uring_setup, on every architecture
		fastOpen = 0x20000000
		kind     = 0xf // of a socket's type, without its flags

		inet, inet6    = 2, 10
		stream, packet = 1, 5 // SOCK_STREAM, SOCK_SEQPACKET
		tcp            = 6
	)
	type instruction struct {
		code   uint16
		jt, jf uint8
		k      uint32
	}
	// Of a list of instructions, the low half of an argument; both architectures
	// are little-endian.
	arg := func(n uint32) instruction { return instruction{load, 0, 0, 16 + 8*n} }
	prog := []instruction{
		{load, 0, 0, 4}, // seccomp_data.arch
		{equal, 1, 0, nr.arch},
		{ret, 0, 0, kill},
		{load, 0, 0, 0}, // seccomp_data.nr
		{least, 0, 1, nr.foreign},
		{ret, 0, 0, kill},
		{equal, 0, 1, uring},
		{ret, 0, 0, nosys},
	}
	// when adds what happens with one call; it ends in a ret.
	when := func(call uint32, list ...instruction) {
		prog = append(append(prog, instruction{equal, 0, uint8(len(list)), call}), list...)
	}
	denied := instruction{ret, 0, 0, eperm}
	allowed := instruction{ret, 0, 0, allow}
	when(nr.socketpair, arg(1), instruction{and, 0, 0, kind}, instruction{equal, 2, 0, stream}, instruction{equal, 1, 0, packet}, denied, allowed)
	if clients {
		when(nr.socket,
			arg(0), instruction{equal, 1, 0, inet}, instruction{equal, 0, 6, inet6},
			arg(1), instruction{and, 0, 0, kind}, instruction{equal, 0, 3, stream},
			arg(2), instruction{equal, 2, 0, 0}, instruction{equal, 1, 0, tcp},
			denied, allowed)
		when(nr.bind, denied)
		when(nr.listen, denied)
		for _, c := range [...]struct{ nr, flags uint32 }{{nr.sendto, 3}, {nr.sendmsg, 2}, {nr.mmsgs, 3}} {
			when(c.nr, arg(c.flags), instruction{some, 0, 1, fastOpen}, denied, allowed)
		}
	} else {
		when(nr.socket, denied)
	}
	prog = append(prog, allowed)
	var b []byte
	for _, i := range prog {
		b = binary.NativeEndian.AppendUint16(b, i.code)
		b = append(b, i.jt, i.jf)
		b = binary.NativeEndian.AppendUint32(b, i.k)
	}
	return Program{Filter: string(b)}, nil
}
