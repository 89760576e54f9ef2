// Package survivors is for tests that want processes to be gone within a second,
// on machines that may be too busy to let them.
//
// How long something took says little where many others want the processors. But
// the kernel counts for each thread how long it was ready to run and did not get
// one (run_delay of /proc/PID/schedstat, see Documentation/scheduler/sched-stats.rst),
// and that is the machine's doing. What is judged is the rest: what slept, waited
// for another, or ran. A process that survives because nothing ends it sleeps or
// runs, and is found out.
//
// It proves nothing of a survivor that waits so all the time; for that one there is
// a limit that no machine excuses.
package survivors

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Second is how long what is killed may take to be gone.
const Second = time.Second

// limit is for any machine.
const limit = 20 * time.Second

// Gone waits until list is empty. It returns an error that says what is left if
// that took longer than a second, not counting the time in which what was left,
// or who waits for it, wanted a processor and had none, or was kept by the kernel.
//
// What list returns may begin with a process id, for example "17 sleep 600".
func Gone(list func() []string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	_, own := sched("/proc/thread-self/schedstat")
	type times struct{ ran, waited, ranFirst, waitedFirst time.Duration }
	seen := map[int]*times{}
	var left []string
	var kept time.Duration // in state D
	at := begin
	var took time.Duration // until it was last seen; to look takes time, too
	for {
		since := time.Since(at)
		at = at.Add(since)
		now := list()
		if len(now) > 0 {
			took = at.Sub(begin)
		}
		if len(now) == 0 || took > limit {
			_, starved := sched("/proc/thread-self/schedstat")
			starved -= own
			var ran time.Duration
			for _, s := range seen {
				starved += s.waited - s.waitedFirst
				ran = max(ran, s.ran-s.ranFirst)
			}
			switch {
			case len(now) > 0:
				return fmt.Errorf("still there after %v: %s", took, strings.Join(now, ", "))
			// While it ran, who waits for it may have wanted a processor. That is no excuse.
			case ran > Second:
				return fmt.Errorf("it ran for %v of %v: %s", ran, took, strings.Join(left, ", "))
			case took-starved-kept > Second:
				return fmt.Errorf("it took %v, of which %v for want of a processor and %v in the kernel: %s", took, starved, kept, strings.Join(left, ", "))
			}
			return nil
		}
		left = now
		waits := false
		for _, l := range left {
			var pid int
			if fmt.Sscan(l, &pid); pid <= 0 {
				continue
			}
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
			for _, t := range threads {
				var tid int
				fmt.Sscan(filepath.Base(filepath.Dir(t)), &tid)
				ran, waited := sched(t)
				if seen[tid] == nil {
					seen[tid] = &times{ranFirst: ran, waitedFirst: waited}
				}
				seen[tid].ran, seen[tid].waited = max(seen[tid].ran, ran), max(seen[tid].waited, waited)
				waits = waits || uninterruptible(filepath.Dir(t))
			}
		}
		if waits {
			kept += since
		}
		time.Sleep(time.Millisecond)
	}
}

// sched reads a schedstat file: how long a thread ran, and how long it waited for a
// processor. It returns 0 if there is none.
func sched(file string) (ran, waited time.Duration) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, 0
	}
	fmt.Sscan(string(b), (*int64)(&ran), (*int64)(&waited))
	return ran, waited
}

// uninterruptible reports whether a thread is in state D; see proc_pid_stat(5).
func uninterruptible(thread string) bool {
	b, err := os.ReadFile(filepath.Join(thread, "stat"))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	return strings.HasPrefix(state, "D")
}
