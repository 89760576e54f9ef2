package policy

import (
	"math"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Within makes the limits of one command in a sandbox that stays: bytes of memory,
// without swap, processors' worth of time, and processes and threads. One that is
// nil is not set, and 0 is none (which no sandbox with a limit takes). It is nil if
// no limit is set.
func Within(memory *int64, cpus *float64, pids *int64) *specs.LinuxResources {
	none := func(n *int64) *int64 {
		if *n == 0 {
			return new(int64(-1))
		}
		return new(*n)
	}
	if memory == nil && cpus == nil && pids == nil {
		return nil
	}
	r := &specs.LinuxResources{}
	if memory != nil {
		r.Memory = &specs.LinuxMemory{Limit: none(memory)}
	}
	if cpus != nil {
		const period = 100_000 // the kernel's default, microseconds
		quota := int64(-1)
		if *cpus != 0 {
			quota = int64(math.Round(*cpus * period))
		}
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: new(uint64(period))}
	}
	if pids != nil {
		r.Pids = &specs.LinuxPids{Limit: none(pids)}
	}
	return r
}

// Limited is what the limits of a policy's resources are, each 0 for none.
type Limited struct {
	Memory int64 // bytes
	CPUs   float64
	Quota  int64 // microseconds of each Period
	Period uint64
	Pids   int64
}

// LimitsOf reads them.
func LimitsOf(r *specs.LinuxResources) (l Limited) {
	if r == nil {
		return l
	}
	if m := r.Memory; m != nil && m.Limit != nil {
		l.Memory = max(*m.Limit, 0)
	}
	if c := r.CPU; c != nil && c.Quota != nil && *c.Quota > 0 {
		if l.Quota = *c.Quota; c.Period != nil && *c.Period > 0 {
			l.Period = *c.Period
			l.CPUs = float64(l.Quota) / float64(l.Period)
		}
	}
	if p := r.Pids; p != nil && p.Limit != nil {
		l.Pids = max(*p.Limit, 0)
	}
	return l
}
