//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// r01 is the polite probe that goes before a fork bomb: it forks n processes
// that only wait, says how many it got, and ends them.
func r01(r *report) {
	var children []int
	last := unix.Errno(0)
	for range r.number("n", 40) {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			last = unix.Errno(errno)
			break
		}
		if pid == 0 {
			for {
				unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		}
		children = append(children, int(pid))
	}
	for _, pid := range children {
		unix.Kill(pid, unix.SIGKILL)
		unix.Wait4(pid, nil, 0, nil)
	}
	r.got("forks", fmt.Sprint(len(children)))
	r.got("the next fork", errnoName(last))
	r.err("neighbour: fork after they ended", execAsChild("/proc/self/exe"))
}

// bomb is the fork bomb: every process forks until its time is up. Both a
// deadline and a bound on the generations end it where no limit does.
func bomb(r *report) {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	deadline := now.Sec + int64(r.number("seconds", 1)) + 1
	depth := r.number("depth", 10)
	denied, root := uintptr(0), true
	pause := heap(unix.Timespec{Nsec: 1e8})
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&now)), 0)
		if now.Sec >= deadline {
			break
		}
		if depth == 0 {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, pause, 0, 0, 0)
			continue
		}
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		switch {
		case errno != 0:
			denied = uintptr(errno)
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		case pid == 0:
			root = false
			depth--
		}
	}
	if !root {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	r.err("fork", unix.Errno(denied))
}

// r02 takes memory, a MiB at a time and every page of it, up to mb.
func r02(r *report) {
	if r.arg("child") != "" {
		cmd := self("R02", "mb="+r.arg("mb"))
		r.err("a child that takes memory", cmd.Run())
		time.Sleep(2 * time.Second)
		return
	}
	if dir := r.arg("dir"); dir != "" {
		r.err("fill "+dir, fill(filepath.Join(dir, "hog"), r.number("mb", 256), nil))
		return
	}
	for range r.number("mb", 256) {
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			r.err("take memory", err)
			return
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
	}
	r.got("take memory", "ok")
}

// fill writes mb MiB to a file and counts them.
func fill(path string, mb int, n *int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for range mb {
		if _, err := f.Write(block); err != nil {
			return err
		}
		if n != nil {
			*n++
		}
	}
	return nil
}

// r03 fills private storage with bytes, and then with files.
func r03(r *report) {
	for dir := range strings.SplitSeq(r.arg("dirs"), ",") {
		file, n := filepath.Join(dir, "sbxrun-fill"), 0
		r.err("bytes in "+dir, fill(file, r.number("mb", 64), &n))
		r.got("MiB in "+dir, fmt.Sprint(n))
		os.Remove(file)
	}
	dir := filepath.Join(strings.Split(r.arg("dirs"), ",")[0], "sbxrun-inodes")
	os.Mkdir(dir, 0o755)
	var err error
	n := 0
	for ; n < r.number("inodes", 1000) && err == nil; n++ {
		err = unix.Mknod(fmt.Sprintf("%s/%d", dir, n), unix.S_IFREG|0o600, 0)
	}
	r.err("inodes", err)
	r.got("files", fmt.Sprint(n))
	r.err("neighbour: write the workspace", os.WriteFile(filepath.Join(r.arg("ws"), "after"), []byte("x"), 0o644))
}

// r04 opens files until none is left.
func r04(r *report) {
	n := 0
	var err error
	for ; n < r.number("n", 4096); n++ {
		if _, err = unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			break
		}
	}
	r.err("open", err)
	r.got("descriptors", fmt.Sprint(n))
	for fd := 3; fd < n; fd++ {
		unix.Close(fd)
	}
	r.err("neighbour: open after closing", openFor("/dev/null", unix.O_RDONLY))
}

// r05 writes mb MiB to a standard stream and ends with its code. Its report
// would be lost in what it wrote.
func r05(r *report) {
	block := []byte(strings.Repeat("0123456789abcde\n", 1<<16))
	out := os.Stdout
	if r.arg("to") == "stderr" {
		out = os.Stderr
	}
	for range r.number("mb", 1) {
		if _, err := out.Write(block); err != nil {
			os.Exit(97)
		}
	}
	os.Exit(r.number("code", 0))
}

// r07 makes a directory in a directory in a directory… Landlock asks for every
// directory up to the root at every step, which makes a deep one quadratic: so it
// makes short chains near the root and hangs each below the one before.
func r07(r *report) {
	const link = 1000
	top, err := unix.Open(r.arg("dir"), unix.O_PATH|unix.O_DIRECTORY, 0)
	bottom, n := top, 0
	for err == nil && n < r.number("depth", 1000) {
		var end int
		if end, err = chain(top, link); err != nil {
			break
		}
		if bottom != top {
			err = unix.Renameat(top, "chain", bottom, "chain")
		}
		bottom = end
		n += link
		if bottom != top && n == link {
			err = unix.Renameat(top, "chain", top, "first")
		}
	}
	r.err("descend", err)
	r.got("depth", fmt.Sprint(n))
}

// chain makes directories in one another below dir, the first named chain, and
// returns the last.
func chain(dir, n int) (int, error) {
	name := "chain"
	for range n {
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			return -1, err
		}
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return -1, err
		}
		if name != "chain" {
			unix.Close(dir)
		}
		dir, name = next, "d"
	}
	return dir, nil
}

// r10 burns processor time on several threads and says what it got, in percent
// of one processor.
func r10(r *report) {
	wall := time.Duration(r.number("ms", 1000)) * time.Millisecond
	runtime.GOMAXPROCS(r.number("threads", 2)) // so many, however many processors there are
	start := time.Now()
	for range r.number("threads", 2) - 1 {
		go func() {
			for time.Since(start) < wall {
			}
		}()
	}
	for time.Since(start) < wall {
	}
	took := time.Since(start)
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	cpu := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	r.got("percent", fmt.Sprint(int(100*cpu/took)))
	// What it would have had of an idle machine: the time that its threads ran,
	// and that they were ready to (Documentation/scheduler/sched-stats.rst).
	var wanted time.Duration
	threads, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, t := range threads {
		var ran, waited time.Duration
		text, _ := os.ReadFile(t)
		fmt.Sscan(string(text), &ran, &waited)
		wanted += ran + waited
	}
	r.got("wanted", fmt.Sprint(int(100*wanted/took)))
}

// r11 raises limits, its own and those of process 1.
func r11(r *report) {
	for _, l := range []struct {
		name string
		res  int
	}{{"NOFILE", unix.RLIMIT_NOFILE}, {"CORE", unix.RLIMIT_CORE}} {
		var lim unix.Rlimit
		unix.Getrlimit(l.res, &lim)
		up := unix.Rlimit{Cur: lim.Cur, Max: lim.Max + 1}
		if lim.Max == unix.RLIM_INFINITY {
			// There is nothing to raise: nothing held it.
			r.got("raise "+l.name, "unlimited")
			continue
		}
		r.forked("raise "+l.name, unix.SYS_PRLIMIT64, 0, uintptr(l.res), heap(up), 0)
	}
	r.forked("limits of 1", unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, heap(unix.Rlimit{Cur: 1 << 10, Max: 1 << 10}), 0)
	r.forked("neighbour: lower NOFILE", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, heap(unix.Rlimit{Cur: 16, Max: 16}), 0)
}
