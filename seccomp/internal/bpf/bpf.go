// Package bpf reads, checks and evaluates classic BPF programs of the kind that
// seccomp(2) takes: an array of struct sock_filter over struct seccomp_data.
//
// It exists because golang.org/x/net/bpf evaluates over packets, which are
// big-endian, and because a filter can be tested for another architecture than
// the one that runs the test. Only the instructions that seccomp accepts and
// that filters in practice consist of are known: anything else is an error,
// never a guess. It installs nothing.
package bpf

import (
	"encoding/binary"
	"fmt"
)

// Operation codes; see linux/bpf_common.h. BPF_LD|BPF_W|BPF_ABS and so on.
const (
	Load  = 0x20 // A = word at offset K of struct seccomp_data
	And   = 0x54 // A &= K
	Jump  = 0x05 // pc += K
	JumpE = 0x15 // A == K
	JumpG = 0x25 // A > K, unsigned
	JumpN = 0x35 // A >= K, unsigned: not less
	JumpS = 0x45 // A & K != 0
	Ret   = 0x06 // return K
)

// Architectures as struct seccomp_data has them; see linux/audit.h.
const (
	ArchAMD64 = 0xc000003e // AUDIT_ARCH_X86_64
	ArchARM64 = 0xc00000b7 // AUDIT_ARCH_AARCH64
	Arch386   = 0x40000003 // AUDIT_ARCH_I386
	ArchARM   = 0x40000028 // AUDIT_ARCH_ARM
)

// X32 is the bit that marks a system call number of the x32 ABI, which shares
// AUDIT_ARCH_X86_64; see asm/unistd.h.
const X32 = 0x40000000

// Actions; see linux/seccomp.h. Errno and Trace carry 16 bits of data.
const (
	KillProcess = 0x80000000
	KillThread  = 0x00000000
	Trap        = 0x00030000
	Errno       = 0x00050000
	Notify      = 0x7fc00000
	Trace       = 0x7ff00000
	Log         = 0x7ffc0000
	Allow       = 0x7fff0000
)

// MaxLen is the most instructions that the kernel takes in one program
// (BPF_MAXINSNS; see linux/bpf_common.h).
const MaxLen = 4096

// An Inst is a struct sock_filter; see linux/filter.h.
type Inst struct {
	Op     uint16
	JT, JF uint8
	K      uint32
}

// Data is a struct seccomp_data; see linux/seccomp.h.
type Data struct {
	NR   uint32
	Arch uint32
	IP   uint64
	Args [6]uint64
}

// Size is the size of one instruction, bytes.
const Size = 8

// Word returns the 32-bit word at offset off in the layout of a little-endian
// machine, which every architecture here is.
func (d *Data) Word(off uint32) (uint32, bool) {
	half := func(v uint64) uint32 {
		if off%8 == 4 {
			return uint32(v >> 32)
		}
		return uint32(v)
	}
	switch {
	case off%4 != 0 || off >= 64:
		return 0, false
	case off == 0:
		return d.NR, true
	case off == 4:
		return d.Arch, true
	case off < 16:
		return half(d.IP), true
	}
	return half(d.Args[(off-16)/8]), true
}

// Encode returns the program as the kernel reads it on a little-endian machine.
func Encode(prog []Inst) []byte {
	b := make([]byte, 0, len(prog)*Size)
	for _, in := range prog {
		b = binary.LittleEndian.AppendUint16(b, in.Op)
		b = append(b, in.JT, in.JF)
		b = binary.LittleEndian.AppendUint32(b, in.K)
	}
	return b
}

// Decode is the inverse of Encode. It refuses what the kernel would refuse: an
// unknown instruction, an offset outside struct seccomp_data, a jump past the
// end, and a program without end; see seccomp_check_filter in kernel/seccomp.c.
func Decode(b []byte) ([]Inst, error) {
	n := len(b) / Size
	if n == 0 || len(b)%Size != 0 {
		return nil, fmt.Errorf("bpf: length of %d bytes is no multiple of %d", len(b), Size)
	}
	if n > MaxLen {
		return nil, fmt.Errorf("bpf: %d instructions, the kernel takes %d", n, MaxLen)
	}
	prog := make([]Inst, n)
	for i := range prog {
		w := b[i*Size:]
		in := Inst{Op: binary.LittleEndian.Uint16(w), JT: w[2], JF: w[3], K: binary.LittleEndian.Uint32(w[4:])}
		left := uint64(n - i - 1) // instructions after this one
		switch in.Op {
		case Load:
			if in.K%4 != 0 || in.K >= 64 {
				return nil, fmt.Errorf("bpf[%d]: load at offset %d", i, in.K)
			}
		case And, Ret:
		case Jump:
			if uint64(in.K) >= left {
				return nil, fmt.Errorf("bpf[%d]: jump past the end", i)
			}
		case JumpE, JumpG, JumpN, JumpS:
			if uint64(in.JT) >= left || uint64(in.JF) >= left {
				return nil, fmt.Errorf("bpf[%d]: jump past the end", i)
			}
		default:
			return nil, fmt.Errorf("bpf[%d]: unknown instruction %#x", i, in.Op)
		}
		prog[i] = in
	}
	if prog[n-1].Op != Ret {
		return nil, fmt.Errorf("bpf[%d]: the last instruction is no return", n-1)
	}
	return prog, nil
}

// Holds evaluates the condition of a conditional jump.
func (in Inst) Holds(a uint32) bool {
	switch in.Op {
	case JumpE:
		return a == in.K
	case JumpG:
		return a > in.K
	case JumpN:
		return a >= in.K
	case JumpS:
		return a&in.K != 0
	}
	return false
}

// Run evaluates a program and returns the action and the number of
// instructions that it took.
//
// Preconditions: prog comes from [Decode], so that every jump stays inside and
// every path ends in a return.
func Run(prog []Inst, d *Data) (action uint32, steps int) {
	var a uint32
	for pc := 0; ; pc++ {
		steps++
		switch in := prog[pc]; in.Op {
		case Load:
			a, _ = d.Word(in.K)
		case And:
			a &= in.K
		case Jump:
			pc += int(in.K)
		case Ret:
			return in.K, steps
		default:
			if in.Holds(a) {
				pc += int(in.JT)
			} else {
				pc += int(in.JF)
			}
		}
	}
}

// String names an action as filters' authors do: "ALLOW", "ERRNO(1)".
func String(action uint32) string {
	data := action & 0xffff
	switch action &^ 0xffff {
	case KillProcess:
		return "KILL_PROCESS"
	case KillThread:
		return "KILL_THREAD"
	case Trap:
		return fmt.Sprintf("TRAP(%d)", data)
	case Errno:
		return fmt.Sprintf("ERRNO(%d)", data)
	case Notify:
		return "NOTIFY"
	case Trace:
		return fmt.Sprintf("TRACE(%d)", data)
	case Log:
		return "LOG"
	case Allow:
		return "ALLOW"
	}
	return fmt.Sprintf("%#x", action)
}
