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
