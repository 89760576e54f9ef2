package seccomp

import (
	"encoding/binary"
	"errors"
	"strings"
)

// Of linux/filter.h and linux/seccomp.h.
const (
	opJumpAlways = 0x05 // BPF_JMP | BPF_JA
	opReturn     = 0x06 // BPF_RET | BPF_K
	opReturnA    = 0x16 // BPF_RET | BPF_A

	retActionFull  = 0xffff0000
	retAllow       = 0x7fff0000
	retErrno       = 0x00050000
	retKillThread  = 0x00000000
	retKillProcess = 0x80000000
)

var errJoin = errors.New("the filters cannot be joined")

// Join makes one program of two, which takes the kernel half as long to install: the
// first decides, and what it allows the second decides. The kernel comes to the same
// when the second is installed before the first, unless that kills where the first
// answers with an errno; see seccomp_run_filters in kernel/seccomp.c. The error is
// about a first program that answers in other ways, or both being too long.
func Join(first, second string) (string, error) {
	n := len(first) / InstructionSize
	if n+len(second)/InstructionSize > MaxInstructions {
		return "", errJoin
	}
	var b strings.Builder
	b.Grow(len(first) + len(second))
	var in [InstructionSize]byte
	for i := range n {
		copy(in[:], first[i*InstructionSize:])
		switch binary.NativeEndian.Uint16(in[:]) {
		case opReturn:
			switch binary.NativeEndian.Uint32(in[4:]) & retActionFull {
			case retAllow:
				in = [InstructionSize]byte{}
				binary.NativeEndian.PutUint16(in[:], opJumpAlways)
				binary.NativeEndian.PutUint32(in[4:], uint32(n-i-1))
			case retErrno, retKillThread, retKillProcess:
			default:
				return "", errJoin
			}
		case opReturnA:
			return "", errJoin
		}
		b.Write(in[:])
	}
	b.WriteString(second)
	return b.String(), nil
}
