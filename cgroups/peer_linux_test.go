package cgroups

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
)

// What Stats reads is what containerd/cgroups reads of the same group.
func TestStatsAgreeWithContainerd(t *testing.T) {
	r := strict()
	r.Memory.Limit, r.CPU.Quota, r.Pids.Limit = ptr(int64(48<<20)), ptr(int64(4000)), ptr(int64(30)) // a share that it gets on a busy machine, too
	g := create(t, r)
	// Run into every limit. The CPU's first: an OOM kill would end it all on v2.
	if code, out := run(t, g, 0, "burn", "/proc/self/exe"); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	// They stay for as long as 30 take to start on a slow machine.
	run(t, g, 0, "", "/bin/sh", "-c", `exec >/dev/null 2>&1; i=0; while [ $i -lt 40 ]; do sleep 600 & i=$((i+1)); done`)
	run(t, g, 0, "hog", "/proc/self/exe", "64")
	got := stats(t, g)
	if got.OOMKills == 0 || got.PidsDenied == 0 || got.ThrottledPeriods == 0 {
		t.Fatalf("a limit was not run into: %+v", got)
	}
	// Nothing runs in the group any more, so the counts stand still.
	if g.slots[0].V2 {
		s := g.slots[0]
		mountinfo, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		var point string
		for _, m := range ParseMounts(string(mountinfo)) {
			if m.V2 && strings.HasPrefix(s.Path, m.Point) {
				point = m.Point
			}
		}
		m, err := cgroup2.Load(strings.TrimPrefix(s.Path, point)+"/"+s.Name, cgroup2.WithMountpoint(point))
		if err != nil {
			t.Fatal(err)
		}
		want, err := m.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if w := want.GetMemoryEvents(); got.OOMKills != w.OomKill || got.MemoryLimitReached != (w.Oom > 0) {
			t.Errorf("memory events: got %+v, want %+v", got, w)
		}
		if w := want.GetMemory().MaxUsage; w != 0 && got.MemoryPeak != w {
			t.Errorf("peak: got %d, want %d", got.MemoryPeak, w)
		}
		w := want.GetCPU()
		for _, d := range []struct {
			name string
			got  time.Duration
			want uint64
		}{{"usage", got.CPU, w.UsageUsec}, {"user", got.CPUUser, w.UserUsec}, {"system", got.CPUSystem, w.SystemUsec}, {"throttled", got.Throttled, w.ThrottledUsec}} {
			if d.got != microseconds(d.want) {
				t.Errorf("%s: got %v, want %d µs", d.name, d.got, d.want)
			}
		}
		// The kernel may end the last period between one reading and the other.
		if w.NrPeriods-got.Periods > 1 || got.ThrottledPeriods != w.NrThrottled {
			t.Errorf("periods: got %d, %d, want %d, %d", got.Periods, got.ThrottledPeriods, w.NrPeriods, w.NrThrottled)
		}
		return
	}
	hierarchy := func() ([]cgroup1.Subsystem, error) {
		var out []cgroup1.Subsystem
		for _, s := range g.slots {
			// It adds the controller's name to the directory of all mounts.
			root := filepath.Dir(filepath.Dir(s.Path))
			for c, subsystem := range map[Controllers]cgroup1.Subsystem{Memory: cgroup1.NewMemory(root), CPU: cgroup1.NewCpu(root), Pids: cgroup1.NewPids(root)} {
				if s.Controllers.Has(c) {
					out = append(out, subsystem)
				}
			}
		}
		return out, nil
	}
	c, err := cgroup1.Load(cgroup1.StaticPath("/"+Parent+"/"+g.Name()), cgroup1.WithHierarchy(hierarchy))
	if err != nil {
		t.Fatal(err)
	}
	want, err := c.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if w := want.GetMemory().GetUsage().GetMax(); got.MemoryPeak != w {
		t.Errorf("peak: got %d, want %d", got.MemoryPeak, w)
	}
	if w := want.GetMemoryOomControl().GetOomKill(); got.OOMKills != w {
		t.Errorf("oom kills: got %d, want %d", got.OOMKills, w)
	}
	w := want.GetCPU().GetThrottling()
	if got.Periods != w.GetPeriods() || got.ThrottledPeriods != w.GetThrottledPeriods() || got.Throttled != time.Duration(w.GetThrottledTime()) {
		t.Errorf("throttling: got %+v, want %+v", got, w)
	}
}
