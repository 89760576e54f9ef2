//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
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

// TestManySessions is R12 for sessions: many, each with commands that end in
// every way, in the foreground and in the background, with limits of their own and
// with files copied in and out, and each ended in another way, by SIGKILL of its
// holder or of its sandbox's process 1 too. A holder has no more descriptors
// after its commands than before; and when all is over there is no process, mount,
// cgroup or file that was not there before. A tenth of
// SBXRUN_SOAK_RUNS is the number of commands, of which each session has twenty.
func TestManySessions(t *testing.T) {
	const each = 20
	sessions := int64(24)
	if testing.Short() {
		sessions = 12
	}
	if s := os.Getenv("SBXRUN_SOAK_RUNS"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sessions = max(1, n/each/10)
	}
	var until time.Time
	if s := os.Getenv("SBXRUN_SOAK_TIME"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		until = time.Now().Add(d)
	}
	// The self-test of a user's first session is not what is tried.
	for _, w := range whos {
		f := newFixture(t, w)
		f.do(call{args: f.strict(nil, f.attack, "exit")})
	}
	before := lookAround()
	ways := &sync.Map{}
	var next atomic.Int64
	parallel := func(to int64, workers int) {
		var wg sync.WaitGroup
		for worker := range workers {
			f := newFixture(t, whos[worker%len(whos)])
			if err := os.Mkdir(f.path("run"), 0o700); err != nil {
				t.Fatal(err)
			}
			f.write("in/file", "content\n", 0o644)
			f.own()
			wg.Go(func() {
				for n := next.Add(1); n <= to && !t.Failed(); n = next.Add(1) {
					s := &soaked{session: &session{f, fmt.Sprintf("soak%d", n), "XDG_RUNTIME_DIR=" + f.path("run")}, ways: ways}
					s.live(n, each)
				}
			})
		}
		wg.Wait()
		next.Store(to)
	}
	for next.Load() < sessions || time.Now().Before(until) {
		parallel(next.Load()+max(2, min(sessions, 100)/4), 2)
		parallel(next.Load()+max(1, min(sessions, 100)*3/4), 6)
		if t.Failed() {
			break
		}
	}
	var left []string
	within(10*time.Second, func() bool { left = marked(); return len(left) == 0 })
	for _, l := range append(left, before.leaks()...) {
		if !strings.Contains(l, filepath.Join(runDir, "world")) {
			t.Errorf("left after %d sessions: %s", next.Load(), l)
		}
	}
	ways.Range(func(what, n any) bool {
		t.Logf("%6d %s", n.(*atomic.Int64).Load(), what)
		return true
	})
	t.Logf("%6d sessions", next.Load())
}

// soaked is a session of a soak.
type soaked struct {
	*session
	ways *sync.Map
}

func (s *soaked) count(what string) {
	n, _ := s.ways.LoadOrStore(what, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// run runs a command of sbxrun session, marked as the soak's with all that comes
// of it.
func (s *soaked) run(started func(*exec.Cmd), args ...string) *outcome {
	mark := soakMark + "=" + runDir
	if args[0] == "exec" {
		args = append([]string{"exec", "-e", mark}, args[1:]...)
	}
	return s.do(call{args: s.who.command(append([]string{sbxrun, "session"}, args...)...), env: []string{s.env, mark}, started: started})
}

// descriptors are what the holder has open, but for the two of each thread that
// guards commands: those are kept, as many as there were commands at a time. The two
// files in which it looks for memory of the kernel are there while something runs.
func descriptors(pid int) (list []string) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, f := range files {
		if name, err := os.Readlink(f); err == nil && name != "/proc" && name != fmt.Sprintf("/proc/%d/fd", pid) &&
			name != "/proc/locks" && !strings.Contains(name, "/net/netlink") {
			list = append(list, name)
		}
	}
	return list
}

// live is the life of one session.
func (s *soaked) live(n, commands int64) {
	create := append([]string{"create", "-C", s.ws, "--memory", "256m"}, s.who.flags()...)
	if o := s.run(nil, append(create, s.id)...); o.code != 0 {
		s.Errorf("create: %v", o)
		return
	}
	s.run(nil, "exec", s.id, "--", "true")
	holder := s.info().Pid
	if holder <= 1 {
		s.Errorf("session %d: the holder is process %d", n, holder)
		return
	}
	fds := descriptors(holder)
	if len(fds) == 0 {
		s.Errorf("session %d: no descriptors are to be seen", n)
	}
	for i := range commands {
		s.command(n*commands + i)
	}
	// What is in the background ends, so that all that is the commands' can.
	for _, c := range s.info().Commands {
		if c.Running {
			s.run(nil, "kill", s.id, strconv.Itoa(c.ID))
		}
	}
	s.run(nil, "exec", s.id, "--", "pkill", "sleep")
	if !within(10*time.Second, func() bool { return len(descriptors(holder)) <= len(fds) }) {
		s.Errorf("the holder had %d descriptors, after %d commands it has %s", len(fds), commands, strings.Join(descriptors(holder), " "))
	}
	s.run(nil, "exec", "-d", s.id, "--", "/bin/sh", "-c", "trap '' TERM; setsid sleep 60 & while :; do sleep 1; done")
	s.end(n, holder)
	if o := s.run(nil, "ls", "--json"); o.stdout != "[]\n" {
		s.Errorf("session %d is still listed: %v", n, o)
	}
}

// command runs one that ends in the way of number n.
func (s *soaked) command(n int64) {
	sh := func(flags []string, script string) *outcome {
		return s.run(nil, append(append([]string{"exec"}, flags...), s.id, "--", "/bin/sh", "-c", script)...)
	}
	way, reason, code := "", "", 0
	var o *outcome
	json1 := func(flags ...string) []string { return append(flags, "--json") }
	switch {
	case n%37 == 0 && s.who.noCgroup == "":
		way, reason, o = "oom", "oom", sh(json1("--memory", "8m"), "exec tail /dev/zero")
		code = o.code
	case n%31 == 0 && s.who.noCgroup == "":
		way, reason, o = "pids", "pids", sh(json1("--pids", "4"), "(sleep 60 & sleep 60 & sleep 60 & sleep 60 & sleep 60 & sleep 60) || exit 9")
		code = o.code
	case n%29 == 0:
		way, reason, code, o = "timeout", "timeout", 124, sh(json1("--timeout", "50ms"), "sleep 60 & exec sleep 60")
	case n%23 == 0:
		way, reason, o = "output", "exit", sh(json1("--max-output", "1000"), "exec head -c 100000 /dev/zero")
	case n%19 == 0:
		way, code, o = "terminal", 5, sh([]string{"-t"}, "tty >/dev/null; exit 5")
	case n%17 == 0:
		way, o = "copy in", s.run(nil, "cp", s.path("in"), s.id+":/tmp")
	case n%13 == 0:
		way, o = "copy out", s.run(nil, "cp", s.id+":/etc/hostname", s.path("out"))
		if o.code != 0 && strings.Contains(o.stderr, "no such file") {
			code = o.code
		}
	case n%11 == 0:
		way, code, o = "not found", 127, s.run(nil, "exec", s.id, "--", "/nonexistent")
	case n%7 == 0:
		way = "client killed"
		o = s.run(func(c *exec.Cmd) {
			time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
			c.Process.Kill()
		}, "exec", s.id, "--", "/bin/sh", "-c", "trap '' TERM; sleep 60 & while :; do sleep 1; done")
		code = o.code
	case n%5 == 0:
		way, o = "left behind", sh(nil, "setsid sleep 60 >/dev/null 2>&1 & true")
	case n%4 == 0:
		way, o = "background", sh([]string{"-d"}, "echo x; sleep 60 & exec sleep 60")
	case n%3 == 0:
		way, o = "background, with a terminal", sh([]string{"-d", "-t"}, "echo x; sleep 60 & exec sleep 60")
	case n%2 == 0:
		way, code, o = "signal", 139, sh(nil, "kill -SEGV $$")
	default:
		way, code, o = "failure", 9, sh(nil, "exit 9")
	}
	s.count(way)
	if reason != "" {
		var r result
		if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || r.Reason != reason {
			s.Errorf("command %d (%s), want the reason %s: %v", n, way, reason, o)
		}
	}
	if o.code != code {
		s.Errorf("command %d (%s), want the code %d: %v", n, way, code, o)
	}
}

// end ends the session, in the way of number n.
func (s *soaked) end(n int64, holder int) {
	var stop []string
	switch n % 6 {
	case 0:
		stop = []string{"stop", "-t", "50ms", s.id}
	case 1:
		stop = []string{"rm", "--force", s.id}
	case 2, 3:
		s.count("end: holder killed")
		if err := syscall.Kill(holder, syscall.SIGKILL); err != nil {
			s.Error(err)
		}
	case 4:
		s.count("end: init killed")
		children := childrenOf(holder)
		if len(children) == 0 {
			s.Errorf("session %d: its holder has no child", n)
		}
		for _, pid := range children {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	case 5:
		stop = []string{"stop", "-t", "0s", s.id}
		s.count("end: stopped while commands come")
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if o := s.run(nil, "exec", s.id, "--", "sleep", "0.01"); o.code != 0 && o.code != 123 && o.code != 125 && o.code != 137 && o.code != 143 {
					s.Errorf("a command while its session ends: %v", o)
				}
			})
		}
		defer wg.Wait()
	}
	if stop != nil {
		s.count("end: " + strings.Join(stop[:len(stop)-1], " "))
		if o := s.run(nil, stop...); o.code != 0 {
			s.Errorf("%v", o)
		}
	}
	if !within(20*time.Second, func() bool { return !living(holder) }) {
		s.Errorf("session %d: the holder is still there", n)
	}
	if n%6 == 3 {
		o := s.do(call{args: s.who.command(sbxrun, "prune", "--older-than", "0s"), env: []string{s.env}})
		if o.code != 0 || !strings.Contains(o.stdout, "session "+s.id) {
			s.Errorf("prune: %v", o)
		}
	} else if n%6 != 1 {
		if o := s.run(nil, "rm", s.id); o.code != 0 {
			s.Errorf("%v", o)
		}
	}
}

// living reports whether a process has not ended.
func living(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	// What nobody has waited for is a zombie, and so is one thread of a process
	// while others still end.
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X") || len(threads) > 1
}

// childrenOf are a process's own children.
func childrenOf(pid int) (list []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, field := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}
