package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// soakRuns is how many runs TestManyRuns makes, and until when it goes on at
// least: make test and make soak set them. The binary's share of R12's 10,000 is TestManyRuns
// of test/integration.
func soakRuns(t *testing.T) (runs int64, until time.Time) {
	runs = 700
	if testing.Short() {
		runs = 300
	}
	if s := os.Getenv("SBXRUN_SOAK_RUNS"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		runs = n * 7 / 10
	}
	if s := os.Getenv("SBXRUN_SOAK_TIME"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		until = time.Now().Add(d)
	}
	return runs, until
}

// A kind is a way for a run to end.
type kind struct {
	name    string
	every   int64 // one in so many
	script  string
	command []string // instead of the script
	limit   func(*policy.Policy)
	kill    bool // by the caller, once it runs
	cancel  bool // by the context, at some time
	want    driver.Reason
}

var kinds = []kind{
	{name: "oom", every: 101, script: "exec tail /dev/zero", limit: func(p *policy.Policy) {
		n := int64(8 << 20)
		p.OCI.Linux.Resources.Memory.Limit, p.OCI.Linux.Resources.Memory.Swap = &n, &n
	}, want: driver.ReasonOOM},
	{name: "timeout", every: 53, script: "sleep 60 & exec sleep 60", limit: func(p *policy.Policy) { p.Limits.WallTime, p.Limits.KillAfter = 20*time.Millisecond, time.Second }, want: driver.ReasonTimeout},
	{name: "timeout that TERM does not end", every: 199, script: "trap '' TERM; setsid sleep 60 & while :; do sleep 1; done", limit: func(p *policy.Policy) {
		p.Limits.WallTime, p.Limits.KillAfter = 20*time.Millisecond, 10*time.Millisecond
	}, want: driver.ReasonTimeout},
	{name: "output", every: 47, script: "exec head -c 100000 /dev/zero", limit: func(p *policy.Policy) { p.Limits.Output = 1000 }, want: driver.ReasonExit},
	{name: "kill", every: 19, script: "sleep 60 & exec sleep 60", kill: true, want: driver.ReasonSignal},
	{name: "cancel", every: 23, script: "exec sleep 60", cancel: true, want: driver.ReasonCanceled},
	{name: "not found", every: 17, command: []string{"/nonexistent"}, want: driver.ReasonSetup},
	{name: "signal", every: 11, script: "kill -SEGV $$", want: driver.ReasonSignal},
	{name: "daemon", every: 13, script: "setsid sleep 60 >/dev/null 2>&1 &", want: driver.ReasonExit},
	{name: "failure", every: 5, command: []string{"false"}, want: driver.ReasonExit},
	{name: "success", every: 1, command: []string{"true"}, want: driver.ReasonExit},
}

func kindOf(n int64) *kind {
	for i := range kinds {
		if n%kinds[i].every == kinds[i].every-1 {
			return &kinds[i]
		}
	}
	panic("no kind")
}

// TestManyRuns is R12 within one process: thousands of runs that end in every
// way, one after the other and eight at a time, leave it with as many
// descriptors, goroutines, children, mounts, cgroups and temporary files
// as it had.
func TestManyRuns(t *testing.T) {
	runs, until := soakRuns(t)
	dir := t.TempDir()
	facts := &profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")}
	var ended sync.Map
	var degraded atomic.Bool
	one := func(n int64) {
		k := kindOf(n)
		req := &profiles.Request{Command: k.command, Dir: dir, Degrade: policy.LayerCgroup}
		if k.command == nil {
			req.Command = []string{"sh", "-c", k.script}
		}
		r, err := profiles.Resolve(req, facts)
		if err != nil {
			t.Error(err)
			return
		}
		if k.limit != nil {
			k.limit(r.Policy)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		o := driver.RunOptions{Capture: true}
		switch {
		case k.kill:
			o.Started = func(p driver.Process) func() { p.Kill(); return nil }
		case k.cancel:
			o.Started = func(driver.Process) func() { cancel(); return nil }
		}
		res, _ := driver.Run(ctx, Driver{}, r.Policy, o)
		if res.Degraded != 0 {
			degraded.Store(true)
		}
		want := k.want
		if k.name == "oom" && res.Degraded.Has(policy.LayerCgroupMemory) {
			want = driver.ReasonExit // RLIMIT_DATA: tail is told that there is none
		}
		if res.Reason != want {
			t.Errorf("run %d (%s): %+v, want the reason %s", n, k.name, res, want)
		}
		if k.name == "output" && !res.StdoutTruncated {
			t.Errorf("run %d: the output was not cut", n)
		}
		c, _ := ended.LoadOrStore(k.name, new(atomic.Int64))
		c.(*atomic.Int64).Add(1)
	}
	parallel := func(from, to int64, workers int) int64 {
		next := atomic.Int64{}
		next.Store(from)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for n := next.Add(1) - 1; n < to && !t.Failed(); n = next.Add(1) - 1 {
					one(n)
				}
			})
		}
		wg.Wait()
		return to
	}

	// The threads of guards are kept, so there are to be as many as will ever be
	// wanted at a time, one that is just coming back for each.
	var warm sync.WaitGroup
	for range 16 {
		warm.Go(func() {
			r, err := profiles.Resolve(&profiles.Request{Command: []string{"sleep", "0.5"}, Dir: dir, Degrade: policy.LayerCgroup}, facts)
			if err != nil {
				t.Error(err)
				return
			}
			driver.Run(context.Background(), Driver{}, r.Policy, driver.RunOptions{})
		})
	}
	warm.Wait()
	parallel(0, 200, 8) // the runtime's own threads, pollers and caches come with the first
	before := inventory(t)
	n := int64(200)
	for n < runs || time.Now().Before(until) {
		n = parallel(n, n+max(1, min(runs, 10_000)/2), 1)
		n = parallel(n, n+max(1, min(runs, 10_000)/2), 8)
		if t.Failed() {
			break
		}
	}
	var after map[string]string
	for range 100 {
		// Goroutines that are done take a moment to end.
		if after = inventory(t); fmt.Sprint(after) == fmt.Sprint(before) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for what, v := range before {
		if after[what] != v {
			old := strings.Split(v, "\n")
			added := slices.DeleteFunc(strings.Split(after[what], "\n"), func(l string) bool { return slices.Contains(old, l) })
			t.Errorf("%s: after %d runs there is %s", what, n, strings.Join(added, "; "))
		}
	}
	if degraded.Load() {
		t.Log("no cgroup is to be had here: the runs had rlimits instead")
	}
	for i := range kinds {
		c, ok := ended.Load(kinds[i].name)
		if !ok {
			t.Errorf("no run ended by %s", kinds[i].name)
			continue
		}
		t.Logf("%6d %s", c.(*atomic.Int64).Load(), kinds[i].name)
	}
}

// inventory is what a run could leave, counted or named.
func inventory(t *testing.T) map[string]string {
	t.Helper()
	runtime.GC() // files that nobody closed would be closed by it
	m := map[string]string{
		"descriptors": strconv.Itoa(count(t, "/proc/self/fd")),
		"goroutines":  strconv.Itoa(runtime.NumGoroutine()),
		"mounts":      mountsHere(t),
	}
	kids, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range kids {
		b, err := os.ReadFile(f)
		if err == nil {
			m["children"] += string(b)
		}
	}
	groups := 0
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), "-"+strconv.Itoa(os.Getpid())+"-") {
			groups++
		}
		return nil
	})
	m["cgroups"] = strconv.Itoa(groups)
	temps, _ := filepath.Glob(filepath.Join(os.TempDir(), "*sbxrun*"))
	mine := 0
	for _, f := range temps {
		// Other tests run beside this one, and have files of these names.
		if st, err := os.Stat(f); err == nil && strings.Contains(f, strconv.Itoa(os.Getpid())) && st.Sys().(*syscall.Stat_t).Uid == uint32(os.Geteuid()) {
			mine++
		}
	}
	m["temporary files"] = strconv.Itoa(mine)
	return m
}

// TestInventory shows that what is left is seen.
func TestInventory(t *testing.T) {
	before := inventory(t)
	r := prepareRun(t, t.TempDir(), nil, nil)
	f, err := os.CreateTemp("", fmt.Sprintf("native-sbxrun-%d-", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	limited := r.group != nil
	proc, err := r.run(r.cfg, driver.Stdio{}, supervisor.Monotonic())
	r.release()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	go func() { <-stop }()
	during := inventory(t)
	close(stop)
	proc.Wait()
	for what := range before {
		if what != "mounts" && during[what] == before[what] && (what != "cgroups" || limited) {
			t.Errorf("%s: nothing to be seen: %s", what, during[what])
		}
	}
}
