//go:build linux && cgo

package compile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"

	"github.com/sbxrun/sbxrun/internal/nearest"
	"github.com/sbxrun/sbxrun/seccomp/internal/bpf"
)

// Compile returns the program for a profile on an architecture, "amd64" or
// "arm64", as the array of struct sock_filter that seccomp(2) takes. Errors
// name the rule by its place in the profile: "syscalls[3]: …".
//
// The same profile and libseccomp give the same bytes on every machine.
func Compile(p *specs.LinuxSeccomp, goarch string) ([]byte, error) {
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return nil, fmt.Errorf("libseccomp: %w", err)
	}
	nativeAudit := uint32(bpf.ArchAMD64)
	switch native {
	case libseccomp.ArchAMD64:
	case libseccomp.ArchARM64:
		nativeAudit = bpf.ArchARM64
	default:
		return nil, fmt.Errorf("libseccomp: this machine's architecture (%v) is not supported", native)
	}
	target, audit := libseccomp.ArchAMD64, uint32(bpf.ArchAMD64)
	if goarch == "arm64" {
		target, audit = libseccomp.ArchARM64, bpf.ArchARM64
	}
	pl, err := newPlan(p, goarch, func(name string) (uint32, bool, error) { return resolve(name, goarch, target) })
	if err != nil {
		return nil, err
	}
	// libseccomp translates numbers between architectures by name and fails
	// for names that it does not know. So it is given the target's numbers
	// as if they were the machine's own; the layout puts the target's
	// architecture in their place.
	raw, err := export(pl)
	if err != nil {
		return nil, err
	}
	s, err := spans(raw, nativeAudit, goarch)
	if err != nil {
		return nil, err
	}
	prog := layout(s, audit)
	if err := verify(pl, prog, audit, raw, nativeAudit); err != nil {
		return nil, err
	}
	out := bpf.Encode(prog)
	if _, err := bpf.Decode(out); err != nil {
		return nil, err
	}
	return out, nil
}

// Version returns libseccomp's version, "2.5.4".
func Version() string {
	a, b, c := libseccomp.GetLibraryVersion()
	return fmt.Sprintf("%d.%d.%d", a, b, c)
}

// resolve finds a call's number. A call that exists on other architectures only
// is absent, not an error: profiles are written for all of them. A name that
// nobody knows is a typing error more often than a call from the future, and a
// rule that is dropped could have been the one that denies.
func resolve(name, goarch string, target libseccomp.ScmpArch) (nr uint32, absent bool, err error) {
	if nr, absent, ok := known(name, goarch); ok {
		return nr, absent, nil
	}
	if strings.ContainsRune(name, 0) { // C would see the part before it
		return 0, false, fmt.Errorf("unknown system call %q", name)
	}
	n, err := libseccomp.GetSyscallFromNameByArch(name, target)
	if err != nil {
		if near := nearest.Name(name, Calls()); near != "" {
			return 0, false, fmt.Errorf("unknown system call %q; did you mean %q", name, near)
		}
		return 0, false, fmt.Errorf("unknown system call %q", name)
	}
	if n < 0 { // a pseudo number: known, but not here
		return 0, true, nil
	}
	if n >= maxNR {
		return 0, false, fmt.Errorf("%s: number %d is above %d", name, n, maxNR-1)
	}
	return uint32(n), false, nil
}

// export has libseccomp compile a plan.
func export(pl *plan) ([]bpf.Inst, error) {
	f, err := libseccomp.NewFilter(scmpAction(pl.def))
	if err != nil {
		return nil, fmt.Errorf("libseccomp: defaultAction %s: %w", bpf.String(pl.def), err)
	}
	defer f.Release()
	if err := f.SetBadArchAction(libseccomp.ActKillProcess); err != nil {
		return nil, fmt.Errorf("libseccomp: bad architecture action: %w", err)
	}
	for _, nr := range pl.nrs {
		for _, r := range pl.rules[nr] {
			if r.action == pl.def {
				continue // libseccomp refuses it: it says nothing
			}
			var conds []libseccomp.ScmpCondition
			for _, c := range r.conds {
				sc, err := libseccomp.MakeCondition(c.arg, compareOp(c.op), c.a, c.b)
				if err != nil {
					return nil, fmt.Errorf("syscalls[%d]: %s: %w", r.index, r.name, err)
				}
				conds = append(conds, sc)
			}
			call := libseccomp.ScmpSyscall(nr)
			if len(conds) == 0 {
				err = f.AddRule(call, scmpAction(r.action))
			} else {
				err = f.AddRuleConditional(call, scmpAction(r.action), conds)
			}
			if err != nil {
				return nil, fmt.Errorf("libseccomp: syscalls[%d]: %s: %w", r.index, r.name, err)
			}
		}
	}
	// libseccomp 2.5 exports to a file only. A program is at most 32 KiB and
	// a pipe holds 64, but a goroutine reads all the same: an unprivileged
	// user's pipes can shrink to one page; see pipe(7).
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	defer r.Close()
	var raw []byte
	var readErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, readErr = io.ReadAll(r)
	}()
	err = f.ExportBPF(w)
	w.Close()
	<-done
	if err != nil {
		return nil, fmt.Errorf("libseccomp: export: %w", err)
	}
	if readErr != nil {
		return nil, fmt.Errorf("read exported program: %w", readErr)
	}
	prog, err := bpf.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("libseccomp: export: %w", err)
	}
	return prog, nil
}

func scmpAction(a uint32) libseccomp.ScmpAction {
	data := int16(a & 0xffff)
	switch a &^ 0xffff {
	case bpf.KillProcess:
		return libseccomp.ActKillProcess
	case bpf.KillThread:
		return libseccomp.ActKillThread
	case bpf.Trap:
		return libseccomp.ActTrap
	case bpf.Errno:
		return libseccomp.ActErrno.SetReturnCode(data)
	case bpf.Trace:
		return libseccomp.ActTrace.SetReturnCode(data)
	case bpf.Allow:
		return libseccomp.ActAllow
	case bpf.Log:
		return libseccomp.ActLog
	}
	return libseccomp.ActInvalid
}

func compareOp(op specs.LinuxSeccompOperator) libseccomp.ScmpCompareOp {
	switch op {
	case specs.OpNotEqual:
		return libseccomp.CompareNotEqual
	case specs.OpLessThan:
		return libseccomp.CompareLess
	case specs.OpLessEqual:
		return libseccomp.CompareLessOrEqual
	case specs.OpEqualTo:
		return libseccomp.CompareEqual
	case specs.OpGreaterEqual:
		return libseccomp.CompareGreaterEqual
	case specs.OpGreaterThan:
		return libseccomp.CompareGreater
	case specs.OpMaskedEqual:
		return libseccomp.CompareMaskedEqual
	}
	return libseccomp.CompareInvalid
}

// verify compares a laid-out program with the one that libseccomp wrote and with
// what the profile asks, for every number and around every value that a rule
// compares with.
func verify(pl *plan, prog []bpf.Inst, audit uint32, raw []bpf.Inst, rawAudit uint32) error {
	if len(prog) > bpf.MaxLen {
		return fmt.Errorf("program has %d instructions, the kernel takes %d", len(prog), bpf.MaxLen)
	}
	for nr := range uint32(maxNR + 2) {
		for _, args := range pl.samples(nr) {
			want, err := pl.want(nr, &args)
			if err != nil {
				return err
			}
			d := bpf.Data{NR: nr, Arch: audit, Args: args}
			got, _ := bpf.Run(prog, &d)
			d.Arch = rawAudit
			lib, _ := bpf.Run(raw, &d)
			if lib != want {
				return fmt.Errorf("libseccomp %s compiles call %d with arguments %#x to %s, the profile says %s: %w",
					Version(), nr, args, bpf.String(lib), bpf.String(want), errDisagree)
			}
			if got != lib {
				return fmt.Errorf("layout: call %d with arguments %#x gives %s instead of %s", nr, args, bpf.String(got),
					bpf.String(lib))
			}
		}
	}
	return nil
}

// errDisagree is a rule that libseccomp understands in another way.
var errDisagree = errors.New("write the rules so that they do not overlap")

// Calls returns the names of all calls that amd64 or arm64 have, sorted, as far
// as libseccomp and this package know them.
func Calls() []string {
	var names []string
	for _, c := range unified {
		names = append(names, c.name)
	}
	for _, c := range amd64Only {
		names = append(names, c.name)
	}
	for _, arch := range []libseccomp.ScmpArch{libseccomp.ArchAMD64, libseccomp.ArchARM64} {
		for nr := range maxNR {
			if n, err := libseccomp.ScmpSyscall(nr).GetNameByArch(arch); err == nil {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Number returns a call's number on an architecture; ok is false when it has
// none there.
func Number(name, goarch string) (nr uint32, ok bool) {
	target := libseccomp.ArchAMD64
	if goarch == "arm64" {
		target = libseccomp.ArchARM64
	}
	nr, absent, err := resolve(name, goarch, target)
	return nr, err == nil && !absent
}
