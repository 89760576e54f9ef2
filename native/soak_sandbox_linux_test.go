package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// inBox has driver.Run run a command in a sandbox that stays.
type inBox struct {
	Driver
	box     driver.Sandbox
	process *specs.Process
	within  *specs.LinuxResources
}

func (d inBox) Start(ctx context.Context, _ *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	return d.box.ExecWithin(ctx, d.process, d.within, stdio)
}

// A sandboxKind is a way for a command of a sandbox that stays to end.
type sandboxKind struct {
	name     string
	every    int64 // one in so many
	script   string
	command  []string // instead of the script
	within   *specs.LinuxResources
	limit    policy.Limits
	kill     bool // by the caller, once it runs
	cancel   bool // by the context
	terminal bool
	want     driver.Reason // where there are cgroups
}

// The most particular come first.
var sandboxKinds = []sandboxKind{
	{name: "oom", every: 41, script: "exec tail /dev/zero", within: policy.Within(new(int64(8<<20)), nil, nil), want: driver.ReasonOOM},
	{name: "pids", every: 37, script: "exec >/dev/null 2>&1; (sleep 60 & sleep 60 & sleep 60 & sleep 60 & sleep 60 & sleep 60) || exit 9", within: policy.Within(nil, nil, new(int64(4))), want: driver.ReasonPids},
	{name: "limits that are not reached", every: 7, script: "sleep 60 >/dev/null 2>&1 & exit 3", within: policy.Within(new(int64(64<<20)), new(0.5), new(int64(20))), want: driver.ReasonExit},
	{name: "timeout", every: 31, script: "sleep 60 & exec sleep 60", limit: policy.Limits{WallTime: 20 * time.Millisecond, KillAfter: time.Second}, want: driver.ReasonTimeout},
	{name: "timeout that TERM does not end", every: 43, script: "trap '' TERM; setsid sleep 60 & while :; do sleep 1; done", limit: policy.Limits{WallTime: 20 * time.Millisecond, KillAfter: 10 * time.Millisecond}, want: driver.ReasonTimeout},
	{name: "output", every: 29, script: "exec head -c 100000 /dev/zero", limit: policy.Limits{Output: 1000}, want: driver.ReasonExit},
	{name: "terminal", every: 23, script: "tty >/dev/null && exit 3", terminal: true, want: driver.ReasonExit},
	{name: "kill", every: 19, script: "setsid sleep 60 & exec sleep 60", kill: true, want: driver.ReasonSignal},
	{name: "cancel", every: 17, script: "exec sleep 60", cancel: true, want: driver.ReasonCanceled},
	{name: "not found", every: 13, command: []string{"/nonexistent"}, want: driver.ReasonSetup},
	{name: "signal", every: 11, script: "kill -SEGV $$", want: driver.ReasonSignal},
	{name: "daemon", every: 5, script: "setsid sleep 60 >/dev/null 2>&1 & echo > /tmp/$$", want: driver.ReasonExit},
	{name: "failure", every: 3, command: []string{"false"}, want: driver.ReasonExit},
	{name: "success", every: 1, command: []string{"true"}, want: driver.ReasonExit},
}

// TestManySandboxes is R12 for sandboxes that stay: many, in each of which commands
// end in every way and leave processes behind, and which end in every way
// themselves, leave the process as it was.
func TestManySandboxes(t *testing.T) {
	const each = 20
	runs, until := soakRuns(t)
	sandboxes := max(1, runs/14) // of 700: fifty
	dir := t.TempDir()
	facts := &profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")}
	var ended sync.Map
	count := func(what string) {
		c, _ := ended.LoadOrStore(what, new(atomic.Int64))
		c.(*atomic.Int64).Add(1)
	}
	command := func(b *sandbox, p *policy.Policy, n int64) {
		i := slices.IndexFunc(sandboxKinds, func(k sandboxKind) bool { return n%k.every == k.every-1 })
		k := &sandboxKinds[i]
		pr := &specs.Process{Args: k.command, Terminal: k.terminal}
		if k.command == nil {
			pr.Args = []string{"/bin/sh", "-c", k.script}
		}
		q := *p
		q.Limits = k.limit
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		o := driver.RunOptions{Capture: !k.terminal}
		switch {
		case k.kill:
			o.Started = func(p driver.Process) func() { p.Kill(); return nil }
		case k.cancel:
			o.Started = func(driver.Process) func() { cancel(); return nil }
		}
		res, _ := driver.Run(ctx, inBox{box: b, process: pr, within: k.within}, &q, o)
		if b.s.degraded == 0 && res.Reason != k.want {
			t.Errorf("command %d (%s): %+v, want the reason %s", n, k.name, res, k.want)
		}
		count(k.name)
	}
	one := func(n int64) {
		r, err := profiles.Resolve(&profiles.Request{Command: []string{"none"}, Dir: dir, Degrade: policy.LayerCgroup}, facts)
		if err != nil {
			t.Error(err)
			return
		}
		box, err := Driver{}.Open(context.Background(), r.Policy)
		if err != nil {
			t.Error(err)
			return
		}
		b := box.(*sandbox)
		for i := range int64(each) {
			command(b, r.Policy, n*each+i)
		}
		// A command that runs when the end comes.
		p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "trap '' TERM; setsid sleep 60 & sleep 60"}}, driver.Stdio{})
		if err != nil {
			t.Error(err)
		}
		switch n % 4 {
		case 0:
			count("sandbox: closed")
			b.Close()
		case 1:
			count("sandbox: ended, then closed")
			if err := b.End(); err != nil {
				t.Error(err)
			}
			b.Close()
		case 2:
			count("sandbox: init killed")
			b.child.Kill()
			<-b.Done()
			b.Close()
		case 3:
			count("sandbox: closed twice, while a command starts")
			var wg sync.WaitGroup
			wg.Go(func() {
				p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"sleep", "60"}}, driver.Stdio{})
				if err == nil {
					p.Wait()
				} else if !errors.Is(err, driver.ErrSandboxGone) {
					t.Errorf("a command while the sandbox ends: %v", err)
				}
			})
			wg.Go(func() { b.Close() })
			b.Close()
			wg.Wait()
		}
		if p != nil {
			p.Wait()
		}
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
	// The runtime's own threads, pollers and caches come with the first; guards
	// live as long as what they guard, so there are as many as commands.
	parallel(0, 8, 8)
	var before map[string]string
	for now := inventory(t); fmt.Sprint(now) != fmt.Sprint(before); now = inventory(t) {
		before = now
		time.Sleep(300 * time.Millisecond) // what ends after them is gone by then
	}
	n := int64(8)
	for n < sandboxes+8 || time.Now().Before(until) {
		n = parallel(n, n+max(1, min(sandboxes, 500)/2), 1)
		n = parallel(n, n+max(1, min(sandboxes, 500)/2), 4)
		if t.Failed() {
			break
		}
	}
	var after map[string]string
	for range 100 {
		if after = inventory(t); fmt.Sprint(after) == fmt.Sprint(before) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for what, v := range before {
		if after[what] != v {
			old := strings.Split(v, "\n")
			added := slices.DeleteFunc(strings.Split(after[what], "\n"), func(l string) bool { return slices.Contains(old, l) })
			t.Errorf("%s: %s before, after %d sandboxes there is %s", what, v, n, strings.Join(added, "; "))
		}
	}
	for i := range sandboxKinds {
		if _, ok := ended.Load(sandboxKinds[i].name); !ok {
			t.Errorf("no command ended by %s", sandboxKinds[i].name)
		}
	}
	ended.Range(func(what, c any) bool {
		t.Logf("%6d %s", c.(*atomic.Int64).Load(), what)
		return true
	})
}
