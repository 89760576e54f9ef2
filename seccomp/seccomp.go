// Package seccomp has the system call filters: the built-in ones, compiled
// ahead of time and embedded, and those of a user's own profile, compiled once
// and cached.
//
// A profile is written in the OCI runtime specification's form. What the kernel
// gets is a [Program]: classic BPF as seccomp(2) takes it. The built-in ones
// are embedded for the architecture of the binary and handed out without a
// copy; nothing is parsed on the way to a run. Each answers ENOSYS to calls it
// does not know, so that programs use what they used before the call existed,
// EPERM to those that are denied on purpose, and kills a process that uses a
// foreign ABI (i386 and its int 0x80, x32, 32-bit ARM).
//
//	strict      what tool chains need, and no more
//	production  strict without what only building and testing need
//	default     strict, and debuggers, NUMA placement and asynchronous I/O
//
// The programs set no seccomp flags: SECCOMP_FILTER_FLAG_SPEC_ALLOW would take
// a mitigation away, and the kernel leaves it off by itself since 5.16;
// SECCOMP_FILTER_FLAG_LOG would write to the host's log.
//
// The package does not install filters and does not compile them: cgo and
// libseccomp would cost every start up to a millisecond. Compiling is in the
// package seccomp/compile and the command sbxrun-seccomp. A filter is one layer:
// it decides by numbers and plain arguments, and never by what a pointer points
// to, because that can change after the check.
package seccomp

//go:generate go run ./internal/gen

import (
	"errors"
	"fmt"
	"strings"
)

// A Program is a compiled filter. The zero Program is no filter, and the kernel
// refuses it.
type Program struct {
	// Filter is an array of struct sock_filter in the machine's byte order;
	// see linux/filter.h. For struct sock_fprog, take unsafe.StringData and
	// Len.
	Filter string

	// Flags are the SECCOMP_FILTER_FLAG_* for seccomp(2).
	Flags uint32
}

// InstructionSize is the size of struct sock_filter, bytes.
const InstructionSize = 8

// MaxInstructions is the most that the kernel takes in one program
// (BPF_MAXINSNS; see linux/bpf_common.h).
const MaxInstructions = 4096

// Len returns the number of instructions.
func (p Program) Len() int { return len(p.Filter) / InstructionSize }

// ErrUnknown is a name that no built-in filter has.
var ErrUnknown = errors.New("unknown seccomp filter")

// names are the built-in filters, the strictest first but for production.
var names = [...]string{"strict", "production", "default"}

// Names returns the names of the built-in filters.
func Names() []string { return names[:] }

// Builtin returns a built-in filter for the architecture that the binary was
// built for. The error is [ErrUnknown] for another name, and
// [errors.ErrUnsupported] on an architecture without compiled filters.
func Builtin(name string) (Program, error) {
	var filter string
	switch name {
	case "strict":
		filter = strictProgram
	case "production":
		filter = productionProgram
	case "default":
		filter = defaultProgram
	default:
		return Program{}, unknown(name)
	}
	if filter == "" {
		return Program{}, fmt.Errorf("seccomp filter %s: no program for this architecture: %w", name, errors.ErrUnsupported)
	}
	return Program{Filter: filter}, nil
}

func unknown(name string) error {
	return fmt.Errorf("%w %q; the built-in ones are %s", ErrUnknown, name, strings.Join(names[:], ", "))
}
