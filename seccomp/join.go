package seccomp

import (
	"encoding/binary"
	"errors"
	"slices"
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
	retNotify      = 0x7fc00000
	retKillThread  = 0x00000000
	retKillProcess = 0x80000000
)

var errJoin = errors.New("the filters cannot be joined")

// Join makes one program of two, which takes the kernel half as long to install: the
// first decides, and what it allows the second decides. The kernel comes to the same
// when the second is installed before the first, unless that kills where the first
// answers with an errno; see seccomp_run_filters in kernel/seccomp.c. The error is
// about a first program that answers in other ways, or both being too long.
//
// What the first refuses with one of the errnos of ask it notifies the listener of
// instead, if the call is one of those named with it: who listens gives the same answer.
// Other calls take no instruction more.
func Join(first, second string, ask ...Ask) (string, error) {
	n := len(first) / InstructionSize
	end := n + len(second)/InstructionSize
	tails, at := make([][]instruction, len(ask)), make([]int, len(ask))
	for i, a := range ask {
		at[i], tails[i] = end, a.tail()
		end += len(tails[i])
	}
	if end > MaxInstructions {
		return "", errJoin
	}
	jump := func(in *[InstructionSize]byte, to uint32) {
		*in = [InstructionSize]byte{}
		binary.NativeEndian.PutUint16(in[:], opJumpAlways)
		binary.NativeEndian.PutUint32(in[4:], to)
	}
	var b strings.Builder
	b.Grow(end * InstructionSize)
	var in [InstructionSize]byte
	for i := range n {
		copy(in[:], first[i*InstructionSize:])
		switch binary.NativeEndian.Uint16(in[:]) {
		case opReturn:
			k := binary.NativeEndian.Uint32(in[4:])
			switch k & retActionFull {
			case retAllow:
				jump(&in, uint32(n-i-1))
			case retErrno:
				if j := slices.IndexFunc(ask, func(a Ask) bool { return k == retErrno|uint32(a.Errno) }); j >= 0 {
					jump(&in, uint32(at[j]-i-1))
				}
			case retKillThread, retKillProcess:
			default:
				return "", errJoin
			}
		case opReturnA:
			return "", errJoin
		}
		b.Write(in[:])
	}
	b.WriteString(second)
	for _, tail := range tails {
		for _, i := range tail {
			binary.NativeEndian.PutUint16(in[:], uint16(i.code))
			in[2], in[3] = i.jt, i.jf
			binary.NativeEndian.PutUint32(in[4:], i.k)
			b.Write(in[:])
		}
	}
	return b.String(), nil
}

// An Ask are system calls, fewer than 255, of which a listener is to hear that they are
// refused with an errno.
type Ask struct {
	Errno uint16
	Calls []uint32
}

// tail answers for a call that is refused with the errno.
func (a Ask) tail() []instruction {
	list := make([]instruction, 0, len(a.Calls)+3)
	list = append(list, instruction{opLoad, 0, 0, 0})
	for i, nr := range a.Calls {
		list = append(list, instruction{opEqual, uint8(len(a.Calls) - i), 0, nr})
	}
	return append(list, instruction{opReturn, 0, 0, retErrno | uint32(a.Errno)}, instruction{opReturn, 0, 0, retNotify})
}
