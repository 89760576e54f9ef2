//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// threads starts n threads that stay, so that what holds for every thread can
// be seen on more than one.
func threads(n int) {
	var up sync.WaitGroup
	up.Add(n)
	for range n {
		go func() {
			runtime.LockOSThread()
			up.Done()
			select {}
		}()
	}
	up.Wait()
}

// everyThread is what a status field holds, over all threads, each value once.
func everyThread(field string) string {
	files, _ := filepath.Glob("/proc/self/task/*/status")
	var values []string
	for _, f := range files {
		tid := filepath.Base(filepath.Dir(f))
		if v := statusOf("self/task/"+tid, field); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return strings.Join(values, ",")
}

// p01 reads the five capability sets and tries to fill them.
func p01(r *report) {
	threads(4)
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		r.got(set, everyThread(set))
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	r.err("neighbour: capget", unix.Capget(&hdr, &data[0]))
	data[0] = unix.CapUserData{Effective: 1 << unix.CAP_CHOWN, Permitted: 1 << unix.CAP_CHOWN}
	r.err("capset", unix.Capset(&hdr, &data[0]))
	r.err("raise an ambient capability", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_CHOWN, 0, 0))
	r.err("chown to root", unix.Chown(r.arg("file"), 0, 0))
}

// p02 reads no_new_privs and the filter mode of every thread and of a child.
func p02(r *report) {
	threads(4)
	r.got("NoNewPrivs", everyThread("NoNewPrivs"))
	r.got("Seccomp", everyThread("Seccomp"))
	m, err := askSelf(self("ids"))
	if err != nil {
		r.err("run a child", err)
	}
	r.got("NoNewPrivs of a child", m["NoNewPrivs"])
	r.err("clear no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0))
	r.err("switch to strict mode and back", unix.Prctl(unix.PR_SET_SECCOMP, 0, 0, 0, 0))
	v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	r.err("neighbour: read no_new_privs", err)
	r.got("no_new_privs by prctl", fmt.Sprint(v))
}

// p03 takes the ways to another user: system calls, su, sudo, file capabilities.
func p03(r *report) {
	uid := uintptr(r.number("uid", 0))
	r.forked("setuid", unix.SYS_SETUID, uid)
	r.forked("setresuid", unix.SYS_SETRESUID, uid, uid, uid)
	r.forked("setgid", unix.SYS_SETGID, uid)
	r.forked("setgroups", unix.SYS_SETGROUPS, 0, 0)
	for _, c := range []string{"su", "sudo"} {
		// Closed input: neither may wait for a password.
		cmd := exec.Command("/usr/bin/"+c, "-n", "id")
		if c == "su" {
			cmd.Args = []string{"su", "-c", "id"}
		}
		out, err := cmd.Output()
		switch {
		case err == nil && strings.Contains(string(out), "uid=0"):
			r.got(c, "root")
		case err == nil:
			r.got(c, "ran")
		default:
			r.got(c, "refused")
		}
	}
	cmd := self("ids")
	cmd.Path = r.arg("withcaps")
	m, err := askSelf(cmd)
	if err != nil {
		// A program whose capabilities may not be had is refused with EPERM
		// when its effective bit is set; see capabilities(7).
		r.err("file capabilities", err)
	} else {
		r.got("file capabilities", m["CapEff"])
	}
	r.forked("neighbour: setuid to itself", unix.SYS_SETUID, uintptr(os.Getuid()))
	r.err("neighbour: run a program", execAsChild("/proc/self/exe"))
}

// p05 signals everything in sight. It first looks whether what it would hit is
// its own sandbox's only, and says so before it does anything.
func p05(r *report) {
	others := pids()
	r.got("processes in sight", fmt.Sprint(len(others)))
	if n := r.number("atmost", 64); len(others) > n {
		r.got("kill everything", "not tried: "+fmt.Sprint(len(others))+" processes in sight")
		return
	}
	victim := self("sleep")
	if err := victim.Start(); err != nil {
		r.err("start a child", err)
		return
	}
	for _, t := range []struct {
		name string
		pid  int
	}{{"1", 1}, {"parent", os.Getppid()}, {"bystander", r.number("bystander", 1)}} {
		r.err("TERM to "+t.name, unix.Kill(t.pid, unix.SIGTERM))
		r.err("KILL to "+t.name, unix.Kill(t.pid, unix.SIGKILL))
	}
	r.call("KILL to 1 by pidfd", unix.SYS_PIDFD_SEND_SIGNAL, pidfd(1), uintptr(unix.SIGKILL), 0, 0)
	r.err("KILL to everything", unix.Kill(-1, unix.SIGKILL))
	err := victim.Wait()
	ws := victim.ProcessState.Sys().(syscall.WaitStatus)
	if err != nil && ws.Signaled() {
		r.got("neighbour: its own child", "killed:"+unix.SignalName(ws.Signal()))
	} else {
		r.got("neighbour: its own child", "lives")
	}
	// Let a signal that is on its way arrive before the end is reported.
	time.Sleep(50 * time.Millisecond)
	r.exit = r.number("code", 0)
}

func pidfd(pid int) uintptr {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ^uintptr(0)
	}
	return uintptr(fd)
}

// pids are the processes in sight.
func pids() []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	var out []int
	for _, n := range names {
		if pid, err := strconv.Atoi(filepath.Base(n)); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// sleep stays for at most a minute. It carries its arguments, by which it can
// be found.
func sleep(r *report) {
	if r.arg("deaf") != "" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	}
	if f := r.arg("ready"); f != "" {
		os.WriteFile(f, []byte(fmt.Sprint(os.Getpid())), 0o644)
	}
	time.Sleep(time.Minute)
}

// daemon starts a sleeper in a session of its own and leaves it an orphan.
func daemon(r *report) {
	cmd := self("sleep", "deaf=yes", "token="+r.arg("token"), "ready="+r.arg("ready"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if r.arg("stdout") != "" {
		cmd.Stdout = os.Stdout
	}
	r.err("start a sleeper", cmd.Start())
}

// waitFor says that it is ready, by a file, and waits until another appears.
func waitFor(ready, file string) bool {
	if ready != "" {
		os.WriteFile(ready, nil, 0o644)
	}
	for range 2000 {
		if _, err := os.Lstat(file); err == nil {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// p06 leaves a daemon behind: forked twice, in a session of its own, deaf to
// TERM.
func p06(r *report) {
	cmd := self("daemon", "token="+r.arg("token"), "ready="+r.arg("ready"), "stdout="+r.arg("stdout"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if r.arg("stdout") != "" {
		// The daemon gets this stdout; what the forks themselves report goes
		// with it, and is for nobody.
		cmd.Stdout = os.Stdout
	}
	r.err("neighbour: fork twice", cmd.Run())
	if waitFor("", r.arg("ready")) {
		r.got("neighbour: the daemon", "up")
	}
	if r.arg("stay") != "" {
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Minute)
	}
	r.exit = r.number("code", 0)
}

// p07 leaves a grandchild behind that holds stdout open.
func p07(r *report) {
	r.args["stdout"] = "yes"
	p06(r)
}

// p08 stops its children, in sessions of their own, and waits for its end.
func p08(r *report) {
	for i := range 3 {
		ready := r.arg("ready") + fmt.Sprint(i)
		cmd := self("sleep", "token="+r.arg("token"), "ready="+ready)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if cmd.Start() != nil || !waitFor("", ready) {
			continue
		}
		unix.Kill(cmd.Process.Pid, unix.SIGSTOP)
	}
	os.WriteFile(r.arg("ready"), nil, 0o644)
	time.Sleep(time.Minute)
}

// stopped shows that a stopped process does not act on SIGTERM.
func stopped(r *report) {
	cmd := self("sleep", "token="+r.arg("token"), "ready="+r.arg("ready"))
	if err := cmd.Start(); err != nil || !waitFor("", r.arg("ready")) {
		r.err("start", err)
		return
	}
	unix.Kill(cmd.Process.Pid, unix.SIGSTOP)
	time.Sleep(50 * time.Millisecond)
	unix.Kill(cmd.Process.Pid, unix.SIGTERM)
	time.Sleep(100 * time.Millisecond)
	r.got("state after TERM", strings.Fields(statusOf(fmt.Sprint(cmd.Process.Pid), "State"))[0])
	cmd.Process.Kill()
	cmd.Wait()
}

// newNamespaces are the flags of clone(2) that make namespaces.
var newNamespaces = []struct {
	name string
	flag uintptr
}{
	{"NEWUSER", unix.CLONE_NEWUSER}, {"NEWNS", unix.CLONE_NEWNS}, {"NEWPID", unix.CLONE_NEWPID}, {"NEWNET", unix.CLONE_NEWNET},
	{"NEWIPC", unix.CLONE_NEWIPC}, {"NEWUTS", unix.CLONE_NEWUTS}, {"NEWCGROUP", unix.CLONE_NEWCGROUP},
}

// p09 makes namespaces by every call that can.
func p09(r *report) {
	for _, ns := range newNamespaces {
		r.forked("unshare "+ns.name, unix.SYS_UNSHARE, ns.flag)
		r.cloned("clone "+ns.name, ns.flag)
	}
	r.forked("unshare NEWTIME", unix.SYS_UNSHARE, unix.CLONE_NEWTIME)
	r.cloned("clone NEWUSER|NEWNS|NEWNET", unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWNET)
	r.cloned3("clone3 NEWUSER", unix.CLONE_NEWUSER)
	r.cloned3("clone3", 0)
	r.cloned("neighbour: clone", 0)
	threads(2)
	r.got("neighbour: threads", "ok")
	// The limit that holds should a filter not.
	limit, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err != nil {
		r.err("limit of user namespaces", err)
	} else {
		r.got("limit of user namespaces", strings.TrimSpace(string(limit)))
	}
}

// cloned makes a process by clone(2) and records the call's errno.
func (r *report) cloned(name string, flags uintptr) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	r.made(name, pid, errno)
}

// cloned3 does so by clone3(2), whose flags no filter can see.
func (r *report) cloned3(name string, flags uint64) {
	args := [11]uint64{0: flags, 4: uint64(unix.SIGCHLD)}
	pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno == 0 && pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	r.made(name, pid, errno)
}

func (r *report) made(name string, pid uintptr, errno syscall.Errno) {
	if errno != 0 {
		r.err(name, errno)
		return
	}
	r.got(name, ending(int(pid)))
}

// p10 joins namespaces: its own, those of process 1, and by pidfd.
func p10(r *report) {
	for _, ns := range []string{"net", "uts", "ipc", "mnt", "pid", "user", "cgroup"} {
		fd, err := unix.Open("/proc/self/ns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			r.err("setns "+ns, err)
			continue
		}
		r.forked("setns "+ns, unix.SYS_SETNS, uintptr(fd), 0)
		unix.Close(fd)
		fd, err = unix.Open("/proc/1/ns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			r.err("setns "+ns+" of 1", err)
			continue
		}
		r.forked("setns "+ns+" of 1", unix.SYS_SETNS, uintptr(fd), 0)
		unix.Close(fd)
	}
	r.forked("setns by pidfd", unix.SYS_SETNS, pidfd(os.Getpid()), unix.CLONE_NEWUTS|unix.CLONE_NEWNET)
	_, err := os.Readlink("/proc/self/ns/net")
	r.err("neighbour: name a namespace", err)
}

// p12 looks for variables in its environment.
func p12(r *report) {
	for name := range strings.SplitSeq(r.arg("names"), ",") {
		v := "absent"
		if _, ok := os.LookupEnv(name); ok {
			v = "present"
		}
		r.got(name, v)
	}
}

// p14 looks who is in sight.
func p14(r *report) {
	list := pids()
	few := "more than 8"
	if len(list) <= 8 {
		few = "few"
	}
	r.got("processes", few)
	r.got("neighbour: itself", map[bool]string{true: "listed", false: "absent"}[slices.Contains(list, os.Getpid())])
	found := "absent"
	for _, pid := range list {
		if pid == os.Getpid() {
			continue
		}
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(b), r.arg("token")) && strings.Contains(string(b), "sleep") {
			found = "in sight"
		}
	}
	r.got("the host's canary", found)
}

// p16 crashes a child, after it asked for a core file as large as it gets.
func p16(r *report) {
	r.err("raise the core limit", unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}))
	var lim unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_CORE, &lim)
	r.got("hard limit", fmt.Sprint(lim.Max))
	cmd := self("crash")
	cmd.Run()
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	r.got("neighbour: the crash", unix.SignalName(ws.Signal()))
	r.got("core", map[bool]string{true: "dumped", false: "none"}[ws.CoreDump()])
	left, _ := filepath.Glob("core*")
	r.got("files", fmt.Sprint(len(left)))
}

// crash ends by a signal that dumps core.
func crash(r *report) {
	var lim unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_CORE, &lim)
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: lim.Max, Max: lim.Max})
	r.args["signal"] = fmt.Sprint(int(unix.SIGSEGV))
	exit(r)
}

// p18 asks for more of the processor than others get. Every act is its own
// process's alone, and ends with it.
func p18(r *report) {
	prio := make([]byte, 4)
	prio[0] = 1
	r.forked("SCHED_FIFO", unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, ptr(prio))
	r.forked("SCHED_RR", unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_RR, ptr(prio))
	r.forked("negative nice", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, ^uintptr(4))
	r.forked("real-time io", unix.SYS_IOPRIO_SET, 1, 0, 1<<13)
	r.forked("neighbour: be nicer", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, 19)
}

// p20 reaches for what of the host has a number or a name and is no file: shared
// memory, queues and semaphores, and the host's own name.
func p20(r *report) {
	id := func(key string) uintptr { return uintptr(r.number(key, -1)) }
	buf := make([]byte, 256) // larger than any of the kernel's structures
	keep = append(keep, &buf[0])
	p := uintptr(unsafe.Pointer(&buf[0]))
	r.call("shmat of a segment", unix.SYS_SHMAT, id("shm"), 0, 0)
	r.call("shmctl of a segment", unix.SYS_SHMCTL, id("shm"), ipcStat, p)
	r.call("shmget of a key", unix.SYS_SHMGET, id("key"), 0, 0)
	r.call("msgctl of a queue", unix.SYS_MSGCTL, id("msg"), ipcStat, p)
	r.call("msgsnd to a queue", unix.SYS_MSGSND, id("msg"), heap([2]int64{1, 2}), 8, ipcNoWait)
	r.call("semctl of semaphores", unix.SYS_SEMCTL, id("sem"), 0, ipcStat, p)
	name := append([]byte(r.arg("mq")), 0)
	keep = append(keep, &name[0])
	r.call("mq_open of a queue", unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_RDWR, 0, 0)
	var u unix.Utsname
	r.err("uname", unix.Uname(&u))
	r.got("its name", map[bool]string{true: "the host's", false: "another"}[unix.ByteSliceToString(u.Nodename[:]) == r.arg("host")])
	own, _, errno := unix.Syscall(unix.SYS_SHMGET, ipcPrivate, 4096, ipcCreate|0o600)
	if errno != 0 {
		r.err("neighbour: a segment of its own", errno)
		return
	}
	r.call("neighbour: a segment of its own", unix.SYS_SHMAT, own, 0, 0)
	unix.Syscall(unix.SYS_SHMCTL, own, ipcRemove, 0)
}

// See linux/ipc.h.
const (
	ipcPrivate = 0
	ipcCreate  = 0o1000
	ipcNoWait  = 0o4000
	ipcRemove  = 0
	ipcStat    = 2
)
