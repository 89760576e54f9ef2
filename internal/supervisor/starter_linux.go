package supervisor

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/policy"
)

// Group prepares the cgroup of a run with these limits, nil if there is nothing for
// one to hold. If some cannot be held here, it asks without, and returns the limits
// that stand in their place: on processes too if nproc says that the kernel counts
// the run's alone.
func Group(name string, r *specs.LinuxResources, nproc bool,
	without func(l policy.Layers, cause, fix string) error) (*cgroups.Group, []specs.POSIXRlimit, error) {
	if r == nil {
		return nil, nil, nil
	}
	limits, err := cgroups.LimitsOf(r)
	if err != nil {
		return nil, nil, &policy.InvalidError{Field: "limits", Value: err.Error(), Want: "a value in range"}
	}
	if limits.Controllers()&cgroups.Limiting == 0 {
		return nil, nil, nil
	}
	layout, err := cgroups.Acquire(r)
	var group *cgroups.Group
	if err == nil {
		group, err = cgroups.Prepare(layout, r)
	}
	var instead []specs.POSIXRlimit
	var missing *cgroups.MissingError
	switch {
	case err == nil:
	case errors.As(err, &missing):
		layers := Layers(missing.Controllers())
		cause, fix := missingCause(missing.Missing)
		if err := without(layers, cause, fix); err != nil {
			group.Close()
			return nil, nil, err
		}
		if layers.Has(policy.LayerCgroupMemory) && limits.Memory > 0 {
			instead = append(instead, DataLimit(limits.Memory))
		}
		if layers.Has(policy.LayerCgroupPids) && limits.Pids > 0 && nproc {
			instead = append(instead, NprocLimit(limits.Pids))
		}
	default:
		return nil, nil, &driver.SetupError{Driver: name, Err: err}
	}
	if group.Controllers() == 0 {
		group.Close()
		group = nil
	}
	return group, instead, nil
}

// GroupLayers are the layers that Group's results are.
func GroupLayers(group *cgroups.Group, instead []specs.POSIXRlimit) (l policy.Layers) {
	if group != nil {
		l = Layers(group.Controllers())
	}
	if len(instead) > 0 {
		l |= policy.LayerRlimits
	}
	return l
}

// Layers are the layers that controllers are.
func Layers(c cgroups.Controllers) policy.Layers {
	var l policy.Layers
	if c.Has(cgroups.Memory) {
		l |= policy.LayerCgroupMemory
	}
	if c.Has(cgroups.CPU) {
		l |= policy.LayerCgroupCPU
	}
	if c.Has(cgroups.Pids) {
		l |= policy.LayerCgroupPids
	}
	return l
}

// DataLimit stands for a limit on memory. It is of each process, not of all
// together; private writable memory since Linux 4.7, see getrlimit(2). RLIMIT_AS
// would stop every runtime that reserves address space.
func DataLimit(n int64) specs.POSIXRlimit {
	return specs.POSIXRlimit{Type: "RLIMIT_DATA", Soft: uint64(n), Hard: uint64(n)}
}

// NprocLimit stands for a limit on processes. They are counted in the sandbox's
// own user namespace since Linux 5.14, all of them; without one, the caller's other
// processes would count. It is not enforced for a caller who is root on the host.
func NprocLimit(n int64) specs.POSIXRlimit {
	return specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: uint64(n), Hard: uint64(n)}
}

// missingCause is why controllers are missing, and what to do: once where it is
// the same for all, else for each.
func missingCause(list []cgroups.Missing) (cause, fix string) {
	var causes, fixes []string
	for _, m := range list {
		differ := slices.ContainsFunc(list, func(o cgroups.Missing) bool { return o.Cause != m.Cause })
		what := m.Cause
		if differ {
			what = m.Controller.String() + ": " + m.Cause
		}
		if !slices.Contains(causes, what) {
			causes = append(causes, what)
		}
		if m.Fix != "" && !slices.Contains(fixes, m.Fix) {
			fixes = append(fixes, m.Fix)
		}
	}
	return strings.Join(causes, "; "), strings.Join(fixes, "; ")
}

// CheckStream refuses a file that is to be descriptor i of a command if it is a
// directory, and tells what it is.
func CheckStream(name string, f *os.File, i int) (st unix.Stat_t, err error) {
	what := "descriptor " + strconv.Itoa(i)
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, &driver.SetupError{Driver: name, Err: &os.PathError{Op: "fstat", Path: what, Err: err}}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		// openat(2) from a directory leads anywhere on the host.
		return st, &driver.SetupError{Driver: name, Err: &os.PathError{Op: "pass", Path: what, Err: syscall.EISDIR},
			Fix: "a directory as a standard stream would open the host's file system to the command"}
	}
	return st, nil
}

// Place makes the given descriptors 0, 1, 2, … and closes all others. fds are their
// numbers, -1 for one that is known only when the program runs; any that is not below
// their count stands for all such.
func Place(p *sys.Program, fds []int, sources []sys.Value) {
	n := len(fds)
	src := slices.Clone(sources)
	for i, fd := range fds {
		// What could be overwritten before its turn comes moves out of the way.
		if fd < n && fd != i {
			r := p.NewReg()
			p.Call(r, sys.Step{Op: "fcntl", Object: "F_DUPFD"}, unix.SYS_FCNTL, src[i], sys.Imm(unix.F_DUPFD_CLOEXEC),
				sys.Imm(n))
			src[i] = r.Value()
		}
	}
	for i, fd := range fds {
		if fd == i {
			p.Call(0, sys.Step{Op: "fcntl", Object: "F_SETFD"}, unix.SYS_FCNTL, sys.Imm(i), sys.Imm(unix.F_SETFD), sys.Imm(0))
			continue
		}
		p.Call(0, sys.Step{Op: "dup3"}, unix.SYS_DUP3, src[i], sys.Imm(i), sys.Imm(0))
	}
	p.Call(0, sys.Step{Op: "close_range"}, unix.SYS_CLOSE_RANGE, sys.Imm(n), sys.Imm(uint32(0xffffffff)), sys.Imm(0))
}

// Counted is the part of a status that the cgroup counted.
func Counted(stats cgroups.Stats) *driver.Status {
	return &driver.Status{
		OOMKilled: stats.OOMKills > 0, OOMBy: stats.OOMBy, PidsDenied: stats.PidsDenied, PidsBy: stats.PidsBy,
		Usage: driver.Usage{
			MemoryPeakBytes: stats.MemoryPeak, PidsPeak: stats.PidsPeak,
			ThrottledMS: millis(stats.Throttled.Microseconds()),
			OOMKills:    stats.OOMKills, PidsDenied: stats.PidsDenied,
		},
	}
}

// Exited fills in what the stage recorded of a command that was started at begin.
func Exited(status *driver.Status, exit *reexec.Exit, begin int64) {
	if exit.Status.Signaled() {
		status.Signal = exit.Status.Signal()
	} else {
		status.ExitCode = exit.Status.ExitStatus()
	}
	status.EndedFirst = exit.First
	status.StorageFull = status.StorageFull || exit.Full
	status.SetupNanos = int64(exit.ExecNS) - begin
	if status.Usage.MemoryPeakBytes == 0 {
		status.Usage.MemoryPeakBytes = exit.Usage.MaxRSSKiB << 10
	}
	status.Usage.CPUUserMS, status.Usage.CPUSystemMS = millis(int64(exit.Usage.UserMicros)),
		millis(int64(exit.Usage.SystemMicros))
}

// CPU are the processor times that the cgroup counted, in milliseconds.
func CPU(stats cgroups.Stats) (user, system float64) {
	return millis(stats.CPUUser.Microseconds()), millis(stats.CPUSystem.Microseconds())
}

func millis(us int64) float64 { return float64(us) / 1e3 }

// Monotonic is the clock that a status is measured by, in nanoseconds.
func Monotonic() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}
