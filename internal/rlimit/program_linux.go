package rlimit

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// Append appends the calls that set limits. A limit that the caller itself is
// under can only be lowered.
//
// Preconditions: the names are known to [Number].
func Append(p *sys.Program, list []specs.POSIXRlimit) {
	for _, r := range list {
		n, ok := Number(r.Type)
		if !ok {
			continue
		}
		want := &unix.Rlimit{Cur: r.Soft, Max: r.Hard}
		if r.Type == "RLIMIT_CORE" && r.Hard == 0 {
			// 0 does not keep a core from a handler that core_pattern pipes
			// to; 1 does, and is too little for a file. See core(5) and
			// do_coredump in fs/coredump.c.
			want.Cur, want.Max = 1, 1
		}
		var own unix.Rlimit
		if unix.Getrlimit(n, &own) == nil {
			want.Max = min(want.Max, own.Max)
			want.Cur = min(want.Cur, want.Max)
		}
		p.Call(0, sys.Step{Name: "prlimit64", Path: r.Type}, unix.SYS_PRLIMIT64, sys.Imm(0), sys.Imm(n), sys.Ptr(p, want), sys.Imm(0))
	}
}
