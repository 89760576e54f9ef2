package native

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/policy"
)

// maxLimited is how many commands with limits of their own may run in one sandbox
// at a time, beside maxCommands. They are few because process 1 knows the name of
// each one's cgroup in every hierarchy, should it have to remove them.
const maxLimited = 64

// within are the limits of one command: those that its cgroup is to hold, and
// those that rlimits have to, where the sandbox runs without that.
type within struct {
	cgroup  cgroups.Limits
	rlimits []specs.POSIXRlimit
}

// within checks limits of one command against the sandbox's.
func (b *sandbox) within(r *specs.LinuxResources) (*within, error) {
	if r == nil {
		return nil, nil
	}
	if more := cgroups.Unsupported(r); len(more) > 0 {
		return nil, &driver.UnsupportedError{Driver: Name, Rules: more}
	}
	want, err := cgroups.LimitsOf(r)
	var limit *cgroups.LimitError
	if errors.As(err, &limit) {
		return nil, &policy.InvalidError{Field: limit.Field, Value: strconv.FormatInt(limit.Value, 10), Want: limit.Want}
	}
	if err != nil {
		return nil, err
	}
	own, err := cgroups.LimitsOf(b.s.p.OCI.Linux.Resources)
	if err != nil {
		return nil, err
	}
	if err := narrower(r, want, own); err != nil {
		return nil, err
	}
	w := &within{cgroup: want}
	have := b.controllers()
	// What the sandbox goes without it was allowed to: commands have rlimits
	// then, as that of a run has.
	if want.Memory != 0 && !have.Has(cgroups.Memory) {
		w.cgroup.Memory = 0
		w.rlimits = append(w.rlimits, supervisor.DataLimit(want.Memory))
	}
	if want.Pids != 0 && !have.Has(cgroups.Pids) {
		w.cgroup.Pids = 0
		w.rlimits = append(w.rlimits, supervisor.NprocLimit(want.Pids))
	}
	if !have.Has(cgroups.CPU) {
		w.cgroup.CPUQuota = 0
	}
	return w, nil
}

// controllers are those that the sandbox's cgroup has.
func (b *sandbox) controllers() cgroups.Controllers {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group == nil {
		return 0
	}
	return b.group.Controllers()
}

// narrower reports a limit that is not within the sandbox's own. What is asked to
// be unlimited is not within a limit.
func narrower(r *specs.LinuxResources, want, own cgroups.Limits) error {
	type limit struct {
		field      string
		asked      bool
		want, own  float64 // 0 is no limit
		text, most string
	}
	cpus := func(l cgroups.Limits) float64 {
		if l.CPUQuota == 0 {
			return 0
		}
		return float64(l.CPUQuota) / float64(l.CPUPeriod)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	real := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	for _, l := range []limit{
		{"limits.memory", r.Memory != nil && r.Memory.Limit != nil, float64(want.Memory), float64(own.Memory),
			number(want.Memory), number(own.Memory) + " bytes"},
		{"limits.cpus", r.CPU != nil && r.CPU.Quota != nil, cpus(want), cpus(own), real(cpus(want)), real(cpus(own))},
		{"limits.pids", r.Pids != nil && r.Pids.Limit != nil, float64(want.Pids), float64(own.Pids), number(want.Pids),
			number(own.Pids)},
	} {
		switch {
		case !l.asked:
		case l.own == 0 && l.want != 0:
			return &policy.InvalidError{Field: l.field, Value: l.text,
				Want: "no limit for one command where the sandbox has none that it would be within: make that with one (--" +
					strings.TrimPrefix(l.field, "limits.") + ")"}
		case l.own != 0 && (l.want == 0 || l.want > l.own):
			if l.want == 0 {
				l.text = "none"
			}
			return &policy.InvalidError{Field: l.field, Value: l.text, Want: "no more than the sandbox's own limit, " + l.most}
		}
	}
	return nil
}

// rlimitsOf are the driver's own rlimits of a command: the sandbox's, but for those
// that its own limits have in their place.
func (b *sandbox) rlimitsOf(w *within) []specs.POSIXRlimit {
	if w == nil || len(w.rlimits) == 0 {
		return b.s.limits
	}
	list := slices.DeleteFunc(slices.Clone(b.s.limits), func(l specs.POSIXRlimit) bool {
		return slices.ContainsFunc(w.rlimits, func(o specs.POSIXRlimit) bool { return strings.EqualFold(o.Type, l.Type) })
	})
	return append(list, w.rlimits...)
}

// counted takes what the command's own cgroup counted; of one without limits that
// may be little. The caller holds b.mu.
func (in *inside) counted(stats *cgroups.Stats) {
	b := in.box
	own, err := in.group.Stats()
	if err != nil {
		return
	}
	own.OOMKills -= min(own.OOMKills, in.counts.OOMKills)
	own.PidsDenied -= min(own.PidsDenied, in.counts.PidsDenied)
	c, apart := in.group.Controllers(), in.group.Apart()
	if c.Has(cgroups.Memory) {
		// The kernel counts a kill where the killed process was, so this is
		// exact, whichever limit was reached.
		stats.OOMKills = own.OOMKills
		if in.within != nil && own.MemoryLimitReached {
			stats.OOMBy = "" // its own limit
		}
		if apart.Has(cgroups.Memory) {
			b.oomKills += own.OOMKills
		}
	}
	if own.PidsDenied > 0 {
		stats.PidsDenied, stats.PidsBy = own.PidsDenied, ""
		// Without a limit of its own, or if that was not the one, it was the sandbox's or
		// one above.
		if all, err := b.group.Stats(); err == nil && (in.within == nil || own.PidsBy != "") {
			stats.PidsBy = b.group.PidsBy(all.PidsPeak)
		}
		// On v1, and before Linux 6.11 on v2, they are not in the sandbox's own
		// count. Where they are, that is the larger one.
		b.pidsDenied += own.PidsDenied
	}
	if in.within != nil {
		// 0 where the kernel has not counted.
		stats.MemoryPeak, stats.PidsPeak, stats.Throttled = own.MemoryPeak, own.PidsPeak, own.Throttled
	}
}
