//go:build linux

package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Attacks on resources run only within limits that the test has first seen
// hold, and are bounded themselves: in number, in size and in time.

func resourceTests() []entry {
	return []entry{
		{id: "R01", title: "a fork bomb", cgroup: true, alone: true, test: r01},
		{id: "R02", title: "a memory hog", cgroup: true, alone: true, test: r02},
		{id: "R03", title: "private storage full, of bytes and of files", alone: true, test: r03},
		{
			id: "R04", title: "a flood of descriptors",
			flags: func(*fixture) []string { return []string{"--nofile", "256"} },
			args:  func(*fixture) []string { return []string{"n=1000"} },
			want:  map[string]string{"open": "EMFILE", "descriptors": "<=256"},
			controls: []control{{"without the sandbox", func(f *fixture, e *entry) {
				var lim syscall.Rlimit
				if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); lim.Max < 1100 {
					f.Skipf("the host itself allows %d descriptors only", lim.Max)
				}
				jail{want: map[string]string{"descriptors": "1000"}}.run(f, e, ownUser)
			}}},
		},
		{id: "R05", title: "10 GB of output", alone: true, test: r05},
		{id: "R07", title: "a directory 100,000 deep", alone: true, test: r07},
		{id: "R10", title: "burning the processor", cgroup: true, alone: true, test: r10},
		{
			id: "R11", title: "raising limits",
			deny: "EPERM|EACCES",
			controls: []control{{"with limits and without the sandbox", func(f *fixture, e *entry) {
				// Only the host's root with CAP_SYS_RESOURCE may raise them; a jail's
				// root may change those of its own process 1, which are not
				// another's.
				j := jail{want: map[string]string{"raise NOFILE": "EPERM|ok", "raise CORE": "unlimited|EPERM|ok"}}
				j.run(f, e, ownUser)
			}}, witnessed([]string{fmt.Sprint(syscallPrlimit)}, map[string]string{"raise CORE": "the host may not limit it"})},
		},
		{id: "R14", title: "memory of the kernel that no cgroup counts", cgroup: true, alone: true, test: r14},
	}
}

// r01 is R01. The bomb is set off only where 40 polite forks were seen to be
// too many.
func r01(f *fixture) {
	limits := []string{"--pids", "32"}
	probe := f.report(f.attackIn(limits, "R01", "n=40"))
	e := entry{id: "R01", want: map[string]string{"forks": "<=31", "the next fork": "EAGAIN"}}
	e.judge(f, probe, e.inside)
	if f.Failed() {
		f.Fatal("the limit does not hold; no bomb is set off")
	}
	token := f.unique("bomb")
	var slowest time.Duration
	o := f.do(call{args: f.strict(append([]string{"--json", "--timeout", "20s"}, limits...), f.attack, "bomb", "seconds=1", "token="+token), started: func(*exec.Cmd) {
		// The host: can it still start a process, and how soon?
		for range 10 {
			start := time.Now()
			if err := exec.Command("/bin/true").Run(); err != nil {
				f.Errorf("the host cannot fork: %v", err)
			}
			slowest = max(slowest, time.Since(start))
			time.Sleep(50 * time.Millisecond)
		}
	}})
	f.gone(token)
	r := f.result(o)
	// On a busy machine the first of them may not have met the limit itself.
	if rep := f.report(&outcome{stdout: r.Stdout}); rep.got("fork") != "EAGAIN" && (rep.got("fork") != "ok" || r.Usage.PidsPeak != 32) || o.code != 0 {
		f.Errorf("the bomb was not stopped by the limit: %v", o)
	}
	if r.Usage.PidsDenied == 0 {
		f.Errorf("the result counts no refused fork: %v", o)
	}
	if slowest > 5*time.Second {
		f.Errorf("the host took %v to start a process meanwhile", slowest)
	}
	f.step("control without the limit", func() {
		r := f.report(f.do(call{args: f.jail(ownUser, nil, f.attack, "R01", "n=40")}))
		if r.got("forks") != "40" {
			f.Errorf("40 polite forks are too many without a limit, too: %+v", r)
		}
	})
}

// r02 is R02: memory by mmap, in a child, and in a tmpfs.
func r02(f *fixture) {
	_, v2 := cgroupRoots()
	limits := []string{"--json", "--memory", "64m"}
	for _, c := range []struct {
		name  string
		args  []string
		oom   bool
		child bool
	}{
		{"within the limit", []string{"mb=16"}, false, false},
		{"anonymous memory", []string{"mb=256"}, true, false},
		{"in a child", []string{"mb=256", "child=yes"}, true, true},
		{"in /tmp", []string{"mb=256", "dir=/tmp"}, true, false},
		{"in /dev/shm", []string{"mb=256", "dir=/dev/shm"}, true, false},
	} {
		o := f.do(call{args: f.strict(limits, append([]string{f.attack, "R02"}, c.args...)...)})
		r := f.result(o)
		switch {
		case !c.oom:
			if o.code != 0 || r.Reason != "exit" {
				f.Errorf("%s: %v", c.name, o)
			}
		case c.child && !v2 && r.Usage.OOMKills > 0 && o.code == 0:
			f.Logf("%s: cgroup v1 has no memory.oom.group: the child was killed, counted, and the command went on", c.name)
		case r.Reason != "oom" || r.Usage.OOMKills == 0 || o.code != 137:
			f.Errorf("%s: want the whole sandbox killed for memory, and the result to say so: %v", c.name, o)
		}
		if r.Usage.MemoryPeak > 80<<20 {
			f.Errorf("%s: %d bytes of memory at the peak, over a limit of 64 MiB", c.name, r.Usage.MemoryPeak)
		}
	}
	f.gone(f.ws)
	f.step("control without the limit", func() {
		o := f.do(call{args: f.jail(ownUser, nil, f.attack, "R02", "mb=256")})
		if r := f.report(o); r.got("take memory") != "ok" {
			f.Errorf("256 MiB are too many without a limit, too: %v", o)
		}
	})
}

// TestKillable: who may not be killed for memory gives that to no command, and
// who is killed first stays so.
func TestKillable(t *testing.T) {
	f := newFixture(t, whos[0])
	read := func(value string, args ...string) string {
		t.Helper()
		o := f.do(call{args: append([]string{"sh", "-c", "echo " + value + " > /proc/self/oom_score_adj && exec \"$@\"", "sh"}, args...)})
		if o.code != 0 {
			t.Fatal(o)
		}
		return strings.TrimSpace(o.stdout)
	}
	cat := []string{"cat", "/proc/self/oom_score_adj"}
	for value, want := range map[string]string{"0": "0", "300": "300"} {
		if got := read(value, f.strict(nil, cat...)...); got != want {
			t.Errorf("%s is %s inside, want %s", value, got, want)
		}
	}
	if o := f.do(call{args: []string{"sh", "-c", "echo -1000 > /proc/self/oom_score_adj"}}); o.code != 0 {
		t.Skip("needs CAP_SYS_RESOURCE, to protect itself from the out-of-memory killer; make vmtest has it")
	}
	for value, want := range map[string]string{"-1000": "0", "-1": "0"} {
		if got := read(value, f.strict(nil, cat...)...); got != want {
			t.Errorf("%s is %s inside, want %s", value, got, want)
		}
	}
	if got := read("-1000", cat...); got != "-1000" {
		t.Errorf("the control: %s", got)
	}
	o := f.do(call{args: append([]string{"sh", "-c", "echo -1000 > /proc/self/oom_score_adj && exec \"$@\"", "sh"}, f.strict([]string{"--json", "--memory", "64m"}, f.attack, "R02", "mb=256")...)})
	if r := f.result(o); r.Reason != "oom" || o.code != 137 {
		t.Errorf("over the limit: %v", o)
	}
}

// r14 is R14: each kind within a limit of 64 MiB, and the same, less of it, without
// the sandbox.
func r14(f *fixture) {
	hold := map[string]int{"netlink socket": 300} // ms
	for _, c := range []struct {
		kind    string
		mb      int    // that is tried
		most    string // MiB that it gets, if it is not ended for memory
		stopped string // what stops it then
		control int    // MiB that it gets without the sandbox
	}{
		{"netlink", 192, "<=1", "", 48},
		{"udp", 96, "<=40", "", 48},
		{"tcp", 192, "<=80", "", 48},
		{"file lock", 96, "<=8", "", 24},
		{"left lock", 96, "0", "EPERM", 24},
		{"netlink socket", 24, "<=16", "", 16},
		{"socket filter", 16, "0", "ENOPROTOOPT", 1},
		{"huge page", 4, "0", "ENOMEM", 0},
		{"huge memfd", 4, "0", "EINVAL", 0},
		// What a cgroup counts, and what other limits bound.
		{"unix", 192, "0", "", 0}, {"pipe", 192, "0", "", 0}, {"epoll", 192, "<=64", "", 0}, {"page table", 192, "<=64", "", 0},
		{"System V queue", 192, "<=64", "", 0}, {"System V semaphore", 192, "<=64", "", 0}, {"System V memory", 192, "0", "", 0},
		{"memfd", 192, "0", "", 0}, {"timer", 192, "<=48", "EAGAIN", 0}, {"terminal", 64, "<=8", "ENOSPC", 0}, {"key", 16, "0", "EPERM", 0},
		{"system call filter", 64, "<=8", "ENOMEM", 0}, {"dentry", 96, "0", "", 0},
		// No more than private storage, which is no more than the limit of memory.
		{"symbolic link", 72, "<=64", "ENOSPC", 0},
	} {
		if c.control == 0 && f.who.name != "root" {
			continue // the same for each user
		}
		args := func(mb int) []string {
			// They are taken before anybody looks.
			return []string{f.attack, "R14", "kind=" + c.kind, fmt.Sprintf("mb=%d", mb), "procs=4", fmt.Sprintf("hold=%d", hold[c.kind])}
		}
		o := f.do(call{args: f.strict([]string{"--json", "--memory", "64m", "--timeout", "150s"}, args(c.mb)...)})
		// On v1 the kernel ends one process of the sandbox, which may be a child.
		r := f.result(o)
		f.Logf("%s: %s, %d MiB at the peak, %.100s", c.kind, r.Reason, r.Usage.MemoryPeak>>20, r.Stdout)
		if r.Reason != "oom" && r.Usage.OOMKills == 0 {
			rep := f.report(&outcome{stdout: r.Stdout})
			if o.code != 0 || !match(c.most, rep.got("taken")) || c.stopped != "" && rep.got("stopped by") != c.stopped {
				f.Errorf("%s: want %s MiB at most, or the end: %v", c.kind, c.most, o)
			}
		}
		if c.control == 0 {
			continue // a host without huge pages has none to give
		}
		f.step("control: "+c.kind+" without the sandbox", func() {
			o := f.do(call{args: f.jail(ownUser, nil, args(c.control)...)})
			// It gets that, or as far as the kernel: Linux 6.1 has less room for filters.
			if r := f.report(o); !match(fmt.Sprintf(">=%d", c.control), r.got("taken")) && (c.stopped == "" || r.got("stopped by") == c.stopped) {
				f.Errorf("%v", o)
			}
		})
	}
	// Who sleeps first finds the watch as awake as who does not, and who sleeps only is left alone.
	var sleepers sync.WaitGroup
	for _, kind := range []string{"netlink", "file lock"} {
		sleepers.Go(func() {
			o := f.do(call{args: f.strict([]string{"--json", "--memory", "64m", "--timeout", "150s"}, f.attack, "R14", "kind="+kind, "mb=192", "procs=4", "sleep=4000")})
			if r := f.result(o); r.Reason != "oom" {
				f.Errorf("after a sleep: %s: %v", kind, o)
			}
		})
	}
	sleepers.Go(func() {
		o := f.do(call{args: f.strict([]string{"--json", "--memory", "64m"}, f.attack, "R14", "kind=netlink", "procs=1", "mb=1", "sleep=4000", "hold=300")})
		if r := f.report(&outcome{stdout: f.result(o).Stdout}); o.code != 0 || r.got("taken") != "1" {
			f.Errorf("neighbour: a sleep: %v", o)
		}
	})
	sleepers.Wait()
	f.step("control: symbolic links within a higher limit", func() {
		o := f.do(call{args: f.strict([]string{"--json", "--memory", "512m"}, f.attack, "R14", "kind=symbolic link", "mb=72", "procs=4"), timeout: 3 * time.Minute})
		if r := f.report(&outcome{stdout: f.result(o).Stdout}); o.code != 0 || r.got("stopped by") != "nothing" || r.got("taken") != "72" {
			f.Errorf("%v", o)
		}
	})
	f.step("neighbour: an answer of netlink's", func() {
		o := f.do(call{args: f.strict([]string{"--json", "--memory", "64m"}, f.attack, "R14", "kind=netlink", "procs=1", "mb=1", "hold=300")})
		if r := f.report(&outcome{stdout: f.result(o).Stdout}); o.code != 0 || r.got("stopped by") != "nothing" || r.got("taken") != "1" {
			f.Errorf("%v", o)
		}
	})
}

// r03 is R03.
func r03(f *fixture) {
	dirs := "dirs=/tmp,/dev/shm," + f.home + ",/run,/var/tmp"
	o := f.attackIn([]string{"--disk", "16m"}, "R03", dirs, "mb=64", "inodes=400000", "ws="+f.ws)
	e := entry{id: "R03", deny: "ENOSPC", want: map[string]string{"files": "<=399999"}}
	for d := range strings.SplitSeq(strings.TrimPrefix(dirs, "dirs="), ",") {
		e.want["MiB in "+d] = "<=16"
	}
	e.judge(f, f.report(o), e.inside)
	f.wantUnchanged()
	f.step("control in a tmpfs without limits", func() {
		// 64 MiB, and few files: the jail's tmpfs is the host's memory.
		o := f.do(call{args: f.jail(ownUser, []string{"-tmpfs", "/mnt"}, f.attack, "R03", "dirs=/mnt", "mb=64", "inodes=2000", "ws="+f.ws)})
		if r := f.report(o); r.got("bytes in /mnt") != "ok" || r.got("inodes") != "ok" {
			f.Errorf("full without limits, too: %v", o)
		}
	})
}

// r05 is R05: the output is cut, the command is not held up, and sbxrun stays
// small.
func r05(f *fixture) {
	size := "mb=10240"
	if testing.Short() {
		size = "mb=1024"
	}
	for _, stream := range []string{"stdout", "stderr"} {
		o := f.do(call{args: f.strict([]string{"--json", "--max-output", "1m", "--timeout", "4m"}, f.attack, "R05", size, "to="+stream, "code=3"), timeout: 5 * time.Minute})
		r := f.result(o)
		cut, other := r.StdoutTruncated, r.StderrTruncated
		text := r.Stdout
		if stream == "stderr" {
			cut, other, text = other, cut, r.Stderr
		}
		if o.code != 3 || r.Reason != "exit" || !cut || other {
			f.Errorf("%s: want it cut and the command's own end: code %d, reason %s, truncated %v, the other %v, stderr %.300q", stream, o.code, r.Reason, cut, other, o.stderr)
		}
		if len(text) > 1<<20+4096 || len(text) < 1<<19 {
			f.Errorf("%s: %d bytes kept of a limit of 1 MiB", stream, len(text))
		}
		if !strings.HasPrefix(text, "0123456789abcde\n") {
			f.Errorf("%s: its head is not the head of what was written: %.40q", stream, text)
		}
		// The largest process of sbxrun and all that it waited for, KiB.
		if rss := o.state.SysUsage().(*syscall.Rusage).Maxrss; rss > 128<<10 {
			f.Errorf("%s: sbxrun grew to %d KiB", stream, rss)
		}
		size = "mb=1024"
	}
	f.step("control: without --json nothing is cut", func() {
		o := f.do(call{args: f.strict(nil, f.attack, "R05", "mb=8", "code=3")})
		if len(o.stdout) != 8<<20 || o.code != 3 {
			f.Errorf("%d bytes of 8 MiB, code %d", len(o.stdout), o.code)
		}
	})
	f.step("control without the sandbox", func() {
		if o := f.do(call{args: f.jail(ownUser, nil, f.attack, "R05", "mb=8", "code=3")}); len(o.stdout) != 8<<20 || o.code != 3 {
			f.Errorf("%d bytes of 8 MiB, code %d", len(o.stdout), o.code)
		}
	})
}

// r07 is R07: a tree too deep for a path name goes with the sandbox.
func r07(f *fixture) {
	o := f.attackIn([]string{"--disk", "1g", "--memory", "2g"}, "R07", "dir=/tmp", "depth=100000")
	if r := f.report(o); o.code != 0 || r.got("descend") != "ok" || r.got("depth") != "100000" {
		// Private storage may be full of inodes first: then the tree is as deep as
		// that allows.
		if r.got("descend") != "ENOSPC" || !match(">=1000", r.got("depth")) {
			f.Errorf("the tree: %v", o)
		}
	}
	if o.took > 30*time.Second {
		f.Errorf("the end took %v", o.took)
	}
	f.gone(f.ws)
	f.step("control in a tmpfs of a jail", func() {
		o := f.do(call{args: f.jail(ownUser, []string{"-tmpfs", "/mnt"}, f.attack, "R07", "dir=/mnt", "depth=100000")})
		if r := f.report(o); r.got("depth") != "100000" {
			f.Errorf("the tree: %v", o)
		}
	})
}

// r10 is R10: two burning threads get what the limit gives, which the kernel's
// count of throttled time shows better than a clock on a busy machine. It is little,
// so that they reach it beside others.
func r10(f *fixture) {
	o := f.do(call{args: f.strict([]string{"--json", "--cpus", "0.1"}, f.attack, "R10", "threads=2", "ms=1500")})
	r := f.result(o)
	// Of all the time that it took: what the kernel lets through too much, on a
	// machine with others, it takes back from what comes next.
	if percent := 100 * (r.Usage.UserMS + r.Usage.SystemMS) / r.DurationMS; !(percent <= 30) {
		f.Errorf("the command had %.0f%% of a processor, of 10: %v", percent, o)
	}
	if r.Usage.ThrottledMS == 0 {
		f.Errorf("it was never throttled: %v", o)
	}
	f.step("control without the limit", func() {
		// How much it gets is for the machine's other work to say; that it was
		// not throttled is for the kernel, and what it asked for is told alike on
		// a busy machine and an idle one.
		o := f.do(call{args: f.strict([]string{"--json", "--cpus", "none"}, f.attack, "R10", "threads=2", "ms=1000")})
		if r := f.result(o); r.Usage.ThrottledMS != 0 {
			f.Errorf("throttled for %v ms without a limit: %v", r.Usage.ThrottledMS, o)
		}
		if r := f.report(f.do(call{args: f.jail(ownUser, nil, f.attack, "R10", "threads=2", "ms=1000")})); !match(">=150", r.got("wanted")) {
			f.Errorf("two threads asked for %s%% of a processor and had %s%%", r.got("wanted"), r.got("percent"))
		}
	})
}
