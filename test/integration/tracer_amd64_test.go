//go:build linux

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/test/survivors"
)

// A traced is a run of sbxrun whose supervisor stops, in whichever of its
// threads, at every system call that does something to the host or asks for
// something. So faults come where the shipped binary can meet them, and need no
// hook in it. The second stage, which has steps of its own and tests of its own
// (package native), is not traced and runs on.
//
// See ptrace(2); the registers are those of amd64.
type traced struct {
	args []string // as for call
	env  []string

	// child says that what is followed is not this program, but the one that it
	// starts by vfork(2): the holder of a session.
	child bool

	// at is asked at the entry of call n, counted from 1: what to do with it.
	at func(n int, nr uint64) fault
}

// A fault is what happens to a system call instead: nothing for the zero value.
type fault struct {
	errno syscall.Errno // it fails with this
	kill  bool          // the supervisor is killed before it
}

// A tracedOutcome is how it ended.
type tracedOutcome struct {
	outcome
	pid   int    // of the supervisor
	of    int    // whose calls are counted: pid, or its child's, 0 before there is one
	calls int    // that were counted
	hit   string // the call that the fault hit, "" if there was none
	child bool   // when it was hit there was a second stage
}

// uncounted are the calls of Go's scheduler, allocator and signal handling,
// those that cannot fail, and those whose failure ends or stops a process
// whatever it does. A kill before one of them is a kill before the next that is
// counted.
var uncounted = map[uint64]bool{}

func init() {
	for _, nr := range []uint64{
		unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_BRK, unix.SYS_FUTEX, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK,
		unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_ARCH_PRCTL, unix.SYS_SET_TID_ADDRESS, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_TGKILL,
		unix.SYS_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT,
		unix.SYS_EVENTFD2, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_CLOSE, unix.SYS_EXECVE, unix.SYS_RESTART_SYSCALL, unix.SYS_RSEQ, unix.SYS_SET_ROBUST_LIST,
		unix.SYS_GETUID, unix.SYS_GETGID, unix.SYS_GETEUID, unix.SYS_GETEGID, unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_UNAME, unix.SYS_CLONE,
	} {
		uncounted[nr] = true
	}
}

var callNames = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_FSTAT: "fstat", unix.SYS_READLINKAT: "readlinkat",
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_CLONE3: "clone3", unix.SYS_SENDTO: "sendto",
	unix.SYS_RECVMSG: "recvmsg", unix.SYS_WRITE: "write", unix.SYS_READ: "read", unix.SYS_FCNTL: "fcntl", unix.SYS_PRLIMIT64: "prlimit64", unix.SYS_PIPE2: "pipe2",
	unix.SYS_GETRANDOM: "getrandom", unix.SYS_GETDENTS64: "getdents64", unix.SYS_STATFS: "statfs", unix.SYS_GETGROUPS: "getgroups", unix.SYS_SETGROUPS: "setgroups",
	unix.SYS_PIDFD_OPEN: "pidfd_open", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal", unix.SYS_GETRLIMIT: "getrlimit", unix.SYS_PRCTL: "prctl", unix.SYS_IOCTL: "ioctl",
}

func callName(nr uint64) string {
	if s, ok := callNames[nr]; ok {
		return s
	}
	return fmt.Sprintf("call %d", nr)
}

// trace runs it. The tracer is a thread of its own: what it traces is its child,
// and nobody else may wait for that.
func (f *fixture) trace(tr traced) *tracedOutcome {
	f.Helper()
	type answer struct {
		o   *tracedOutcome
		err error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its tracees
		o, err := f.traceHere(tr)
		done <- answer{o, err}
	}()
	a := <-done
	if a.err != nil {
		f.Fatalf("%s: %v", strings.Join(tr.args, " "), a.err)
	}
	return a.o
}

func (f *fixture) traceHere(tr traced) (*tracedOutcome, error) {
	// Files, not pipes: nobody is there to read.
	dir, err := os.MkdirTemp(f.dir, "trace")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var files [3]*os.File
	for i := range files {
		if files[i], err = os.Create(filepath.Join(dir, fmt.Sprint(i))); err != nil {
			return nil, err
		}
		defer files[i].Close()
	}
	p, err := os.StartProcess(tr.args[0], tr.args, &os.ProcAttr{
		Dir: f.ws, Env: f.environ(tr.env...), Files: files[:], Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return nil, err
	}
	o := &tracedOutcome{outcome: outcome{args: tr.args}, pid: p.Pid}
	if !tr.child {
		o.of = o.pid
	}
	p.Release()
	// One that hangs is a failure of its own: it ends by this signal.
	defer time.AfterFunc(limit, func() { syscall.Kill(o.pid, syscall.SIGKILL) }).Stop()
	err = o.follow(tr.at)
	if err != nil {
		syscall.Kill(o.pid, syscall.SIGKILL)
	}
	if tr.child && o.of != 0 {
		// A holder stays. It is not left to the end of this thread, because who
		// looks for survivors has to find it gone.
		syscall.Kill(o.of, syscall.SIGKILL)
		for {
			if _, err := unix.Wait4(-1, nil, unix.WALL|unix.WNOTHREAD, nil); err == unix.ECHILD {
				break
			}
		}
	}
	if err != nil {
		return nil, err
	}
	for i, to := range []*string{nil, &o.stdout, &o.stderr} {
		if to != nil {
			b, err := os.ReadFile(files[i].Name())
			if err != nil {
				return nil, err
			}
			*to = string(b)
		}
	}
	return o, nil
}

// follow resumes the tracees from stop to stop, until the last has ended.
func (o *tracedOutcome) follow(at func(int, uint64) fault) error {
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	followed := o.of
	of := func(tid int) bool { // a thread of the program that is followed
		if followed == 0 || followed == o.pid {
			return followed != 0
		}
		_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", followed, tid))
		return err == nil
	}
	inside := map[int]bool{}           // threads that are in a call
	failing := map[int]syscall.Errno{} // threads whose call is to fail
	counting, first := false, true
	for {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait4: %w", err)
		}
		if ws.Exited() || ws.Signaled() {
			if tid != o.pid {
				continue // a thread
			}
			o.code = ws.ExitStatus()
			if ws.Signaled() {
				o.code = 128 + int(ws.Signal())
			}
			return nil
		}
		sig := 0
		switch s := ws.StopSignal(); {
		case first:
			first = false
			all := options
			if followed == 0 {
				all |= unix.PTRACE_O_TRACEVFORK
			}
			if err := unix.PtraceSetOptions(tid, all); err != nil {
				return fmt.Errorf("ptrace options: %w", err)
			}
			counting = isSbxrun(tid)
		case s == syscall.SIGTRAP|0x80:
			inside[tid] = !inside[tid]
			if err := o.syscallStop(tid, inside[tid], counting && of(tid), failing, at); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		case s == syscall.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_EXEC:
			if o.of == o.pid {
				clear(inside)
			}
			inside[tid] = true
			counting = isSbxrun(tid)
			if o.of == 0 && tid != o.pid {
				o.of, followed = tid, tid
			}
		case s == syscall.SIGTRAP && ws.TrapCause() > 0:
		case s == syscall.SIGSTOP:
			// A new thread's first stop. Nobody else sends this.
		default:
			sig = int(s)
		}
		if err := unix.PtraceSyscall(tid, sig); err != nil && err != unix.ESRCH {
			return fmt.Errorf("ptrace: %w", err)
		}
	}
}

func (o *tracedOutcome) syscallStop(tid int, entry, counting bool, failing map[int]syscall.Errno, at func(int, uint64) fault) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	if !entry {
		if e, ok := failing[tid]; ok {
			delete(failing, tid)
			regs.Rax = uint64(-int64(e))
			return unix.PtraceSetRegs(tid, &regs)
		}
		return nil
	}
	if !counting || uncounted[regs.Orig_rax] || ofRuntime(tid, &regs) {
		return nil
	}
	o.calls++
	switch v := at(o.calls, regs.Orig_rax); {
	case v.kill:
		o.hit = callName(regs.Orig_rax)
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", o.of))
		for _, file := range tasks {
			if b, _ := os.ReadFile(file); len(b) > 0 {
				o.child = true
			}
		}
		return syscall.Kill(o.of, syscall.SIGKILL)
	case v.errno != 0:
		o.hit = callName(regs.Orig_rax)
		failing[tid] = v.errno
		regs.Orig_rax = ^uint64(0) // no call
		return unix.PtraceSetRegs(tid, &regs)
	}
	return nil
}

// ofRuntime reports whether a call that programs make too is one of Go's runtime,
// which ends the process if it fails: the check of the standard streams before
// main, and the write that wakes its poller.
func ofRuntime(tid int, r *unix.PtraceRegs) bool {
	switch r.Orig_rax {
	case unix.SYS_FCNTL:
		return r.Rdi <= 2 && r.Rsi == unix.F_GETFD
	case unix.SYS_WRITE:
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, r.Rdi))
		return to == "anon_inode:[eventfd]"
	}
	return false
}

// isSbxrun reports whether a process runs the binary under test: before it, an
// ordinary user's run is stage.
func isSbxrun(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && exe == sbxrun
}

// remains are what a supervisor that is gone left: processes and mounts of the
// fixture, and its cgroups.
func (f *fixture) remains(pid int) []string {
	left := processes(f.dir)
	left = append(left, mountsOf(f.dir)...)
	roots, _ := cgroupRoots()
	for _, root := range roots {
		for _, pattern := range []string{"/sbxrun/", "/sbxrun-test-*/sbxrun/", "/sbxrun-test-*/*/sbxrun/"} {
			dirs, _ := filepath.Glob(fmt.Sprintf("%s%sr-*-%d-*", root, pattern, pid))
			left = append(left, dirs...)
		}
	}
	return left
}

// eachUser runs a test as each user, one after the other: tests that trace take
// the machine for themselves.
func eachUser(t *testing.T, test func(*fixture)) {
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) { test(newFixture(t, w)) })
	}
}

// supervised are the runs whose supervisor is killed, and whose calls fail: one
// with a guard of protected paths, and one with that and the network by name.
var supervised = []struct {
	name  string
	flags []string
}{
	{"guard", nil},
	{"egress", []string{"--net", "proxy", "--allow-host", "www.example.com:443"}},
}

// TestSupervisorKilledAtEveryCall is V01 for the supervisor's own steps: killed
// before any of its system calls, from its start to its last, it leaves no
// process, cgroup or mount behind after a second.
func TestSupervisorKilledAtEveryCall(t *testing.T) {
	eachUser(t, func(f *fixture) {
		for _, s := range supervised {
			args := f.strict(s.flags, f.attack, "exit")
			f.do(call{args: args}) // the self-test of the first run is not what is tried
			killed, busy := 0, 0
			for n := 1; ; n++ {
				o := f.trace(traced{args: args, at: func(i int, _ uint64) fault { return fault{kill: i == n} }})
				if o.hit == "" {
					if o.code != 0 {
						f.Errorf("%s: a run that was only watched: %v", s.name, &o.outcome)
					}
					break
				}
				killed++
				if o.child {
					busy++
				}
				if err := survivors.Gone(func() []string { return f.remains(o.pid) }); err != nil {
					f.Errorf("%s: killed before call %d (%s): %v", s.name, n, o.hit, err)
				}
			}
			// The control: there is something that could survive.
			if killed < 50 || busy < 10 {
				f.Errorf("%s: it was killed %d times, %d of them with a second stage", s.name, killed, busy)
			}
			f.Logf("%s: killed before each of %d calls, at %d of which it had a second stage", s.name, killed, busy)
		}
		f.wantUnchanged()
	})
}

// TestEveryCallFails is R13 for the supervisor's own steps: each of its system
// calls fails in turn, as on a host that is short of something. Either sbxrun
// says what failed, and with 125 that the command did not run; or the command is
// confined all the same; and nothing is left.
func TestEveryCallFails(t *testing.T) {
	errnos := []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.ENOSPC, syscall.EPERM}
	confined := map[string]entry{}
	for _, e := range processTests() {
		confined[e.id] = e
	}
	for round, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			for _, s := range supervised {
				f := newFixture(t, w)
				args := f.strict(s.flags, f.attack, "P02")
				f.do(call{args: args})
				e := confined["P02"]
				failed, survived := 0, 0
				for n := 1; ; n++ {
					errno := errnos[(n+round)%len(errnos)]
					o := f.trace(traced{args: args, at: func(i int, _ uint64) fault {
						if i == n {
							return fault{errno: errno}
						}
						return fault{}
					}})
					if o.hit == "" {
						if o.code != 0 {
							f.Errorf("%s: a run that was only watched: %v", s.name, &o.outcome)
						}
						break
					}
					what := fmt.Sprintf("%s: call %d (%s) failed with %v", s.name, n, o.hit, errno)
					switch {
					case o.code == 0:
						survived++
						e.judge(f, f.report(&o.outcome), e.inside)
					case o.code == 125 && o.stdout == "" && strings.HasPrefix(o.stderr, "sbxrun: error: "):
						failed++
					case o.code == 123 && strings.Contains(o.stderr, "sbxrun: error: "):
						failed++ // it may have run, and sbxrun says so
					default:
						f.Errorf("%s: %v", what, &o.outcome)
					}
					for _, bad := range []string{"panic", "goroutine", "fatal error", "0x"} {
						if strings.Contains(o.stderr, bad) {
							f.Errorf("%s: not an error for people: %v", what, &o.outcome)
						}
					}
					if err := survivors.Gone(func() []string { return f.remains(o.pid) }); err != nil {
						f.Errorf("%s: %v", what, err)
					}
				}
				if failed < 20 || survived == 0 {
					f.Errorf("%s: only %d calls ended a run, %d did not", s.name, failed, survived)
				}
				f.Logf("%s: %d failed calls ended a run, %d did not", s.name, failed, survived)
				f.wantUnchanged()
			}
		})
	}
}

// holders are what in a session's runtime directory, and as its holder, a killed
// one left.
func (f *fixture) holders(run string, pid int) []string {
	left := f.remains(pid)
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if b, _ := os.ReadFile(file); bytes.Contains(b, []byte("XDG_RUNTIME_DIR="+run+"\x00")) {
			left = append(left, filepath.Base(filepath.Dir(file))+" of the session")
		}
	}
	return left
}

// TestHolderKilledAtEveryCall is V01 for sessions: the holder of a new one is
// killed before one of its system calls, until it serves. Who creates the session
// is told, no process is left after a second, and nothing else once prune has
// looked.
func TestHolderKilledAtEveryCall(t *testing.T) {
	eachUser(t, func(f *fixture) {
		run := f.path("run")
		if err := os.Mkdir(run, 0o700); err != nil {
			f.Fatal(err)
		}
		f.own()
		env := []string{"XDG_RUNTIME_DIR=" + run}
		cli := func(args ...string) *outcome {
			return f.do(call{args: f.who.command(append([]string{sbxrun}, args...)...), env: env})
		}
		own := f.who.sessionFlags()
		args := append(append(f.who.command(sbxrun, "session", "create", "-C", f.ws), own...), "held")
		// The self-test of the first is not what is tried.
		if o := f.do(call{args: args, env: env}); o.code != 0 {
			f.Fatal(o)
		}
		if o := cli("session", "rm", "--force", "held"); o.code != 0 {
			f.Fatal(o)
		}
		killed, busy, late := 0, 0, 0
		// Each user has every fourth call.
		for n := 1 + 2*min(f.who.uid, 1); ; n += 4 {
			o := f.trace(traced{args: args, env: env, child: true, at: func(i int, _ uint64) fault { return fault{kill: i == n} }})
			if o.of == 0 {
				f.Fatalf("there was no holder: %v", &o.outcome)
			}
			if o.hit == "" {
				if o.code != 0 {
					f.Errorf("a holder that was only watched: %v", &o.outcome)
				}
			} else {
				killed++
				if o.child {
					busy++
				}
				switch {
				case o.code == 0:
					late++ // it had said that it serves
				case o.code != 125 || !strings.HasPrefix(o.stderr, "sbxrun: error: "):
					f.Errorf("killed before call %d (%s): %v", n, o.hit, &o.outcome)
				}
			}
			what := fmt.Sprintf("killed before call %d (%s)", n, o.hit)
			if err := survivors.Gone(func() []string {
				var left []string
				for _, l := range f.holders(run, o.of) {
					if !strings.HasPrefix(l, "/") { // what prune is for
						left = append(left, l)
					}
				}
				return left
			}); err != nil {
				f.Errorf("%s: %v", what, err)
			}
			if p := cli("prune", "--older-than", "0s"); p.code != 0 {
				f.Errorf("%s: %v", what, p)
			}
			if left := f.holders(run, o.of); len(left) > 0 {
				f.Errorf("%s: after prune: %v", what, left)
			}
			if l := cli("session", "ls", "--json"); l.code != 0 || strings.Contains(l.stdout, "held") {
				f.Errorf("%s: %v", what, l)
			}
			if o.hit == "" {
				break
			}
		}
		// The control: there is something that could survive.
		if killed < 25 || busy < 5 {
			f.Errorf("it was killed %d times, %d of them with a second stage", killed, busy)
		}
		f.Logf("killed before each of %d calls, at %d of which it had a second stage, and at %d served already", killed, busy, late)
		f.wantUnchanged()
	})
}
