package rlimit

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// Within returns limits that this process can set: one that it is under itself can
// only be lowered.
func Within(list []specs.POSIXRlimit) []specs.POSIXRlimit {
	list = NoCore(list)
	for i := range list {
		r := &list[i]
		var own unix.Rlimit
		if n, ok := Number(r.Type); ok && unix.Getrlimit(n, &own) == nil {
			r.Hard = min(r.Hard, own.Max)
			r.Soft = min(r.Soft, r.Hard)
		}
	}
	return list
}

// Append appends the calls that set limits, [Within] the caller's.
//
// Preconditions: the names are known to [Number].
func Append(p *sys.Program, list []specs.POSIXRlimit) {
	for _, r := range Within(list) {
		n, ok := Number(r.Type)
		if !ok {
			continue
		}
		p.Call(0, sys.Step{Op: "prlimit64", Object: r.Type}, unix.SYS_PRLIMIT64, sys.Imm(0), sys.Imm(n),
			sys.Ptr(p, &unix.Rlimit{Cur: r.Soft, Max: r.Hard}), sys.Imm(0))
	}
}
