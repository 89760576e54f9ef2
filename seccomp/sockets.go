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
// pairs (socketpair(2)) and descriptors that it was given stay. It is the
// network's absence where there is no network namespace: UNIX sockets are
// included, because neither a filter nor Landlock can tell the host's daemons
// from a socket of the command's own.
//
// The error is [errors.ErrUnsupported] on an architecture without filters.
func NoSockets() (Program, error) {
	var arch, socket, foreign uint32
	switch runtime.GOARCH {
	case "amd64":
		arch, socket, foreign = 0xc000003e, 41, 0x40000000 // AUDIT_ARCH_X86_64; x32 calls have this bit
	case "arm64":
		arch, socket, foreign = 0xc00000b7, 198, 0xffffffff // AUDIT_ARCH_AARCH64
	default:
		return Program{}, fmt.Errorf("seccomp: no sockets: no program for this architecture: %w", errors.ErrUnsupported)
	}
	const (
		load  = 0x20 // BPF_LD|BPF_W|BPF_ABS
		equal = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
		least = 0x35 // BPF_JMP|BPF_JGE|BPF_K
		ret   = 0x06 // BPF_RET|BPF_K

		kill  = 0x80000000 // SECCOMP_RET_KILL_PROCESS
		errno = 0x00050000 // SECCOMP_RET_ERRNO
		allow = 0x7fff0000

		uring = 425 // io_uring_setup, on every architecture
	)
	type instruction struct {
		code   uint16
		jt, jf uint8
		k      uint32
	}
	var b []byte
	for _, i := range []instruction{
		{load, 0, 0, 4}, // seccomp_data.arch
		{equal, 0, 5, arch},
		{load, 0, 0, 0}, // seccomp_data.nr
		{least, 3, 0, foreign},
		{equal, 3, 0, socket},
		{equal, 3, 0, uring},
		{ret, 0, 0, allow},
		{ret, 0, 0, kill},
		{ret, 0, 0, errno | 1},  // EPERM
		{ret, 0, 0, errno | 38}, // ENOSYS
	} {
		b = binary.NativeEndian.AppendUint16(b, i.code)
		b = append(b, i.jt, i.jf)
		b = binary.NativeEndian.AppendUint32(b, i.k)
	}
	return Program{Filter: string(b)}, nil
}
