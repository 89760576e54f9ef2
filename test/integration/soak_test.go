//go:build linux

package integration

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestManyRuns is R12 for the program: thousands of runs of the binary that end
// in every way, also by SIGKILL of sbxrun at a random moment of its life, one
// after the other and eight at a time, leave no process, mount, cgroup or file.
// The other seven tenths of the 10,000 are TestManyRuns of package native, which
// can see descriptors. make test asks for that many, make soak for more.
func TestManyRuns(t *testing.T) {
	runs := int64(300)
	if testing.Short() {
		runs = 200
	}
	if s := os.Getenv("SBXRUN_SOAK_RUNS"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		runs = n * 3 / 10
	}
	var until time.Time
	if s := os.Getenv("SBXRUN_SOAK_TIME"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		until = time.Now().Add(d)
	}
	// The self-test of a user's first run is not what is tried.
	for _, w := range whos {
		f := newFixture(t, w)
		f.do(call{args: f.strict(nil, f.attack, "exit")})
	}
	before := lookAround()
	var killed atomic.Int64
	one := func(f *fixture, n int64) {
		flags, command, want := []string{"--json"}, []string{"true"}, "exit"
		switch {
		case n%101 == 0 && f.who.noCgroup == "":
			flags, command, want = append(flags, "--memory", "8m"), []string{"tail", "/dev/zero"}, "oom"
		case n%53 == 0:
			flags, command, want = append(flags, "--timeout", "20ms"), []string{"sh", "-c", "sleep 60 & exec sleep 60"}, "timeout"
		case n%47 == 0:
			flags, command = append(flags, "--max-output", "1000"), []string{"head", "-c", "100000", "/dev/zero"}
		case n%17 == 0:
			command, want = []string{"/nonexistent"}, "setup"
		case n%13 == 0:
			command = []string{"sh", "-c", "setsid sleep 60 & true"}
		case n%11 == 0:
			command, want = []string{"sh", "-c", "kill -SEGV $$"}, "signal"
		case n%3 == 0:
			command, want = []string{"sh", "-c", "trap '' TERM; sleep 60 & while :; do sleep 1; done"}, ""
		}
		args := f.strict(append(flags, "-e", soakMark+"="+runDir), command...)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = f.ws, f.environ()
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		if want == "" {
			// A cold run is set up in a few milliseconds, more under load.
			time.Sleep(time.Duration(rand.Int64N(int64(25 * time.Millisecond))))
			cmd.Process.Kill()
			killed.Add(1)
		}
		cmd.Wait()
		if want == "" {
			if cmd.ProcessState.ExitCode() != -1 {
				t.Errorf("run %d ended with %v", n, cmd.ProcessState)
			}
			return
		}
		var r result
		if err := json.Unmarshal([]byte(out.String()), &r); err != nil || r.Reason != want {
			t.Errorf("run %d, %s: %v, %s%s, want the reason %s", n, strings.Join(command, " "), cmd.ProcessState, out.String(), errs.String(), want)
		}
	}
	var next atomic.Int64
	parallel := func(to int64, workers int) {
		var wg sync.WaitGroup
		for worker := range workers {
			f := newFixture(t, whos[worker%len(whos)])
			wg.Go(func() {
				for n := next.Add(1); n <= to && !t.Failed(); n = next.Add(1) {
					one(f, n)
				}
			})
		}
		wg.Wait()
		next.Store(to)
	}
	batch := min(runs, 10_000)
	for next.Load() < runs || time.Now().Before(until) {
		parallel(next.Load()+batch/4, 1)
		parallel(next.Load()+batch*3/4, 8)
		if t.Failed() {
			break
		}
	}
	var left []string
	within(10*time.Second, func() bool { left = marked(); return len(left) == 0 })
	for _, l := range append(left, before.leaks()...) {
		if strings.Contains(l, filepath.Join(runDir, "world")) {
			continue // the servers of the network's tests, which run meanwhile
		}
		t.Errorf("left after %d runs: %s", next.Load(), l)
	}
	t.Logf("%d runs, in %d of which sbxrun was killed", next.Load(), killed.Load())

	// The control: what is left is seen.
	sleeper := exec.Command("sleep", "60")
	sleeper.Env = []string{soakMark + "=" + runDir}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	if !within(10*time.Second, func() bool { return len(marked()) == 1 }) {
		t.Error("a process that is left is not seen")
	}
	sleeper.Process.Kill()
	sleeper.Wait()
}

// soakMark is a variable that every process of a soak has: what a command line
// does not say of a "sleep 60".
const soakMark = "SBXRUN_SOAK_MARK"

// marked are the processes that have it.
func marked() []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if b, _ := os.ReadFile(file); strings.Contains(string(b), soakMark+"="+runDir) {
			found = append(found, "process "+filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}
