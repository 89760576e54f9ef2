package cgroups

import (
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Limits are what a group holds its processes to. A zero field is no limit.
type Limits struct {
	Memory int64 // bytes of memory: memory.max
	Swap   int64 // bytes of swap beside it: memory.swap.max; -1 means no limit, and 0 means no swap

	CPUQuota  int64  // microseconds of cpu time in each period: cpu.max
	CPUPeriod uint64 // microseconds

	Pids int64 // processes and threads: pids.max
}

// Ranges of what the kernel takes, or of what makes sense.
const (
	// MinMemory is less than any dynamically linked program starts in, and
	// enough for a small static one.
	MinMemory = 1 << 20

	// See tg_set_cfs_bandwidth in kernel/sched/core.c: at least 1 ms of each,
	// a period of at most 1 s.
	MinQuota  = 1000
	MaxQuota  = 1<<44 - 1
	MinPeriod = 1000
	MaxPeriod = 1000000

	// MaxPids is PID_MAX_LIMIT on 64-bit kernels; more is EINVAL.
	MaxPids = 4 << 20

	defaultPeriod = 100000 // the kernel's own, which then need not be written on v1
)

// A LimitError says which limit cannot be set and what it may be.
type LimitError struct {
	Field string // dotted name in the OCI specification: "linux.resources.memory.limit"
	Value int64
	Want  string // completes "want …"
}

func (e *LimitError) Error() string {
	return e.Field + ": invalid value " + strconv.FormatInt(e.Value, 10) + ": want " + e.Want
}

// LimitsOf takes the limits out of OCI resources. Without a swap value there is
// no swap: a limit that a process can pass by swapping is none. -1 is no limit,
// as in the OCI specification.
func LimitsOf(r *specs.LinuxResources) (Limits, error) {
	var l Limits
	if r == nil {
		return l, nil
	}
	if m := r.Memory; m != nil {
		if err := l.memory(m); err != nil {
			return l, err
		}
	}
	if c := r.CPU; c != nil {
		if err := l.cpu(c); err != nil {
			return l, err
		}
	}
	if p := r.Pids; p != nil && p.Limit != nil && *p.Limit != -1 {
		if *p.Limit < 1 || *p.Limit > MaxPids {
			return l, &LimitError{"linux.resources.pids.limit", *p.Limit, "1 to 4194304, or -1 for no limit"}
		}
		l.Pids = *p.Limit
	}
	return l, nil
}

func (l *Limits) memory(m *specs.LinuxMemory) error {
	if m.Limit != nil && *m.Limit != -1 {
		if *m.Limit < MinMemory {
			return &LimitError{"linux.resources.memory.limit", *m.Limit, "at least 1 MiB (1048576), or -1 for no limit"}
		}
		l.Memory = *m.Limit
	}
	if m.Swap != nil {
		// The specification's swap is memory and swap together.
		switch {
		case *m.Swap == -1:
			l.Swap = -1
		case l.Memory == 0:
			return &LimitError{"linux.resources.memory.swap", *m.Swap, "a memory limit beside it"}
		case *m.Swap < l.Memory:
			return &LimitError{"linux.resources.memory.swap", *m.Swap,
				"no less than the memory limit, which it includes"}
		default:
			l.Swap = *m.Swap - l.Memory
		}
	}
	return nil
}

func (l *Limits) cpu(c *specs.LinuxCPU) error {
	if c.Quota != nil && *c.Quota != -1 {
		if *c.Quota < MinQuota || *c.Quota > MaxQuota {
			return &LimitError{"linux.resources.cpu.quota", *c.Quota, "at least 1000 microseconds, or -1 for no limit"}
		}
		l.CPUQuota, l.CPUPeriod = *c.Quota, defaultPeriod
	}
	if c.Period != nil && *c.Period != 0 {
		if *c.Period < MinPeriod || *c.Period > MaxPeriod {
			return &LimitError{"linux.resources.cpu.period", int64(*c.Period), "1000 to 1000000 microseconds"}
		}
		l.CPUPeriod = *c.Period
	}
	return nil
}

// Controllers are those that the limits need.
func (l Limits) Controllers() Controllers {
	var c Controllers
	if l.Memory != 0 {
		c |= Memory
	}
	if l.CPUQuota != 0 {
		c |= CPU
	}
	if l.Pids != 0 {
		c |= Pids
	}
	return c
}

// within are the tighter of each two limits. Swap stays as it is: a group's
// swap is counted apart from its memory.
func (l Limits) within(o Limits) Limits {
	if o.Memory != 0 && (l.Memory == 0 || o.Memory < l.Memory) {
		l.Memory = max(o.Memory, MinMemory)
	}
	// quota/period, compared without a division.
	if o.CPUQuota != 0 &&
		(l.CPUQuota == 0 || float64(o.CPUQuota)*float64(l.CPUPeriod) < float64(l.CPUQuota)*float64(o.CPUPeriod)) {
		l.CPUQuota, l.CPUPeriod = o.CPUQuota, o.CPUPeriod
	}
	if o.Pids != 0 && (l.Pids == 0 || o.Pids < l.Pids) {
		l.Pids = o.Pids
	}
	return l
}

// Unsupported names every field of the resources that asks for something that
// this package does not limit. A caller must refuse them, or say that they are
// dropped.
func Unsupported(r *specs.LinuxResources) []string {
	if r == nil {
		return nil
	}
	var out []string
	add := func(set bool, field string) {
		if set {
			out = append(out, "linux.resources."+field)
		}
	}
	add(len(r.Devices) != 0, "devices")
	if m := r.Memory; m != nil {
		add(m.Reservation != nil, "memory.reservation")
		//lint:ignore SA1019 named so that it is refused
		add(m.Kernel != nil, "memory.kernel")
		add(m.KernelTCP != nil, "memory.kernelTCP")
		add(m.Swappiness != nil, "memory.swappiness")
		add(m.DisableOOMKiller != nil && *m.DisableOOMKiller, "memory.disableOOMKiller")
		add(m.UseHierarchy != nil && !*m.UseHierarchy, "memory.useHierarchy")
		add(m.CheckBeforeUpdate != nil && *m.CheckBeforeUpdate, "memory.checkBeforeUpdate")
	}
	if c := r.CPU; c != nil {
		add(c.Shares != nil, "cpu.shares")
		add(c.Burst != nil && *c.Burst != 0, "cpu.burst")
		add(c.RealtimeRuntime != nil, "cpu.realtimeRuntime")
		add(c.RealtimePeriod != nil, "cpu.realtimePeriod")
		add(c.Cpus != "", "cpu.cpus")
		add(c.Mems != "", "cpu.mems")
		add(c.Idle != nil && *c.Idle != 0, "cpu.idle")
	}
	add(r.BlockIO != nil, "blockIO")
	add(len(r.HugepageLimits) != 0, "hugepageLimits")
	add(r.Network != nil, "network")
	add(len(r.Rdma) != 0, "rdma")
	add(len(r.Unified) != 0, "unified")
	return out
}
