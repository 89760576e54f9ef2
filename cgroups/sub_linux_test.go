package cgroups

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func within(t *testing.T, g *Group, name string, l Limits) *Group {
	t.Helper()
	sub, err := g.SubWithin(name, l)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// paths are a group's directories.
func paths(g *Group) (list []string) {
	for i := range g.slots {
		list = append(list, g.slots[i].Path+"/"+g.slots[i].Name)
	}
	return list
}

// The limits of a group within hold for it alone, and those of the group for what
// is in there, too.
func TestSubWithin(t *testing.T) {
	g := create(t, strict())
	if strict := *strict().Memory.Limit; strict < 100<<20 {
		t.Fatalf("the group has %d bytes", strict)
	}
	narrow, free := within(t, g, "c1", Limits{Memory: 32 << 20, Pids: 20}), within(t, g, "c2", Limits{})
	if code, out := run(t, narrow, 0, "hog", "/proc/self/exe", "64"); code != 128+9 {
		t.Errorf("64 MiB in 32: code %d: %s", code, out)
	}
	if st := stats(t, narrow); st.OOMKills == 0 || !st.MemoryLimitReached || st.MemoryPeak > 36<<20 {
		t.Errorf("no evidence of it: %+v", st)
	}
	const bomb = `i=0; while [ $i -lt 40 ]; do sleep 30 & i=$((i+1)); done; echo all`
	if _, out := run(t, narrow, 0, "", "/bin/sh", "-c", bomb); strings.Contains(out, "all\n") {
		t.Errorf("40 processes in 20: %s", out)
	}
	if st := stats(t, narrow); st.PidsDenied == 0 || st.PidsPeak > 20 {
		t.Errorf("no evidence of it: %+v", st)
	}
	if code, out := run(t, free, 0, "hog", "/proc/self/exe", "64"); code != 0 {
		t.Errorf("64 MiB beside it: code %d: %s", code, out)
	}
	if _, out := run(t, free, 0, "", "/bin/sh", "-c", bomb); !strings.Contains(out, "all\n") {
		t.Errorf("40 processes beside it: %s", out)
	}
	if st := stats(t, free); st.OOMKills != 0 || st.PidsDenied != 0 {
		t.Errorf("evidence of what did not happen: %+v", st)
	}

	outer := create(t, memory(32<<20))
	wide := within(t, outer, "c1", Limits{Memory: 1 << 30})
	if code, out := run(t, wide, 0, "hog", "/proc/self/exe", "64"); code != 128+9 {
		t.Errorf("64 MiB in 1 GiB in 32: code %d: %s", code, out)
	}
	if st := stats(t, wide); st.OOMKills == 0 || st.MemoryLimitReached && !wide.slots[0].V2 {
		t.Errorf("no evidence of it: %+v", st)
	}
}

func TestSubWithinCPU(t *testing.T) {
	g := create(t, &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: ptr(int64(400000))}})
	held, free := within(t, g, "c1", Limits{CPUQuota: 4000, CPUPeriod: 100000}), within(t, g, "c2", Limits{CPUQuota: 400000, CPUPeriod: 100000})
	for _, sub := range []*Group{held, free} {
		if code, out := run(t, sub, 0, "burn", "/proc/self/exe"); code != 0 {
			t.Fatalf("code %d: %s", code, out)
		}
	}
	if st := stats(t, held); st.Throttled == 0 || st.ThrottledPeriods == 0 {
		t.Errorf("not held: %+v", st)
	}
	if st := stats(t, free); st.Throttled != 0 {
		t.Errorf("its neighbour is held: %+v", st)
	}
}

// A group within goes when nothing is in it, in every hierarchy.
func TestDropSub(t *testing.T) {
	g := create(t, strict())
	sub := within(t, g, "c1", Limits{Memory: 32 << 20, CPUQuota: 50000, CPUPeriod: 100000, Pids: 20})
	in := sleeper(t, sub)
	if g.DropSub(sub) {
		t.Error("a group with a process was removed")
	}
	if sub.Empty() {
		t.Error("empty, with a process in it")
	}
	in.Process.Kill()
	in.Wait()
	// The thread that started it was in there too, and takes a moment to end.
	deadline := time.Now().Add(10 * time.Second)
	for !sub.Empty() || !g.DropSub(sub) {
		if time.Now().After(deadline) {
			t.Fatal("what is empty was not removed")
		}
		time.Sleep(time.Millisecond)
	}
	for _, p := range paths(sub) {
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s: %v", p, err)
		}
	}
	if len(g.subs) != 0 {
		t.Error("it is remembered")
	}
}

// What could not be removed is removed when that is tried again.
func TestRemoveAgain(t *testing.T) {
	g := create(t, strict())
	sub := within(t, g, "c1", Limits{Pids: 20})
	deep := sub.slots[0]
	deep.Name += "/deeper"
	if err := unix.Mkdirat(deep.fd, deep.Name, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err == nil {
		t.Error("removed a group with another within")
	}
	if err := unix.Unlinkat(deep.fd, deep.Name, unix.AT_REMOVEDIR); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	for _, p := range append(paths(g), paths(sub)...) {
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s: %v", p, err)
		}
	}
}
