package session

import (
	"bytes"
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// Birth is what a process passes on to what it starts, beside what a policy says:
// the namespaces and the root that paths are looked up in, who it is, umask, limits,
// processors and priority. A sandbox that one process starts for another is the
// same sandbox only if this is. It is text, a line for each, so that what differs
// can be named.
//
// It changes the umask for a moment: it is called before other goroutines make
// files.
func Birth() (string, error) {
	// Plain calls and one buffer: every run that finds a server asks.
	b := make([]byte, 0, 1024)
	var buf [256]byte
	begin := func(name string) { b = append(append(b, name...), ':') }
	num := func(n uint64, base int) { b = strconv.AppendUint(append(b, ' '), n, base) }
	end := func() { b = append(b, '\n') }
	for _, ns := range [...]string{"mnt", "user", "net", "pid", "ipc", "uts", "time"} {
		path := "/proc/self/ns/" + ns
		n, err := unix.Readlink(path, buf[:])
		if err != nil && (ns != "time" || err != unix.ENOENT) { // Linux 5.6
			return "", &os.PathError{Op: "readlink", Path: path, Err: err}
		}
		begin(ns + " namespace")
		b = append(append(b, ' '), buf[:max(n, 0)]...)
		end()
	}
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: "/", Err: err}
	}
	begin("root")
	num(st.Dev, 10)
	num(st.Ino, 10)
	end()
	begin("user")
	for _, id := range [...]int{unix.Getuid(), unix.Geteuid(), unix.Getgid(), unix.Getegid()} {
		num(uint64(id), 10)
	}
	end()
	groups, err := unix.Getgroups()
	if err != nil {
		return "", os.NewSyscallError("getgroups", err)
	}
	begin("groups")
	for _, g := range groups {
		num(uint64(g), 10)
	}
	end()
	mask := unix.Umask(0o077)
	unix.Umask(mask)
	begin("umask")
	num(uint64(mask), 8)
	end()
	for i := range 16 { // RLIM_NLIMITS
		var r unix.Rlimit
		if unix.Prlimit(0, i, nil, &r) == nil {
			b = append(b, "resource limit"...)
			num(uint64(i), 10)
			begin("")
			num(r.Cur, 10)
			num(r.Max, 10)
			end()
		}
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return "", os.NewSyscallError("sched_getaffinity", err)
	}
	begin("processors")
	for _, w := range cpus {
		num(uint64(w), 16)
	}
	end()
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return "", os.NewSyscallError("getpriority", err)
	}
	begin("priority")
	num(uint64(nice), 10)
	end()
	begin("scheduling")
	// Without the slice of time, which the kernel adapts.
	if a, err := unix.SchedGetAttr(0, 0); err == nil {
		for _, n := range [...]uint64{uint64(a.Policy), a.Flags, uint64(a.Priority), uint64(a.Util_min), uint64(a.Util_max)} {
			num(n, 10)
		}
	}
	// int syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0); see ioprio_set(2).
	io, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, 0, 0)
	slack, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	num(uint64(io), 10)
	num(uint64(slack), 10)
	end()
	begin("core scheduling")
	num(sys.CoreCookie(), 16)
	end()
	begin("memory policy")
	mode, nodes := sys.MemoryPolicy()
	num(uint64(mode), 16)
	for _, n := range nodes {
		num(n, 16)
	}
	for _, ask := range [...]int{unix.PR_GET_MDWE, unix.PR_GET_MEMORY_MERGE, unix.PR_MCE_KILL_GET} {
		is, _ := unix.PrctlRetInt(ask, 0, 0, 0, 0)
		num(uint64(is), 16)
	}
	end()
	begin("capabilities")
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return "", os.NewSyscallError("capget", err)
	}
	for _, c := range caps {
		num(uint64(c.Effective), 16)
		num(uint64(c.Permitted), 16)
	}
	end()
	begin("personality")
	// int personality(0xffffffff): asks and changes nothing.
	persona, _, _ := unix.Syscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
	num(uint64(persona), 16)
	end()
	// Of ignored signals, those that a Go program passes on: see os/signal.
	begin("ignored signals")
	for _, sig := range [...]unix.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(sig) {
			num(uint64(sig), 10)
		}
	}
	end()
	begin("huge pages")
	huge, _ := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0)
	num(uint64(huge), 10)
	end()
	begin("speculation")
	for i := range 3 { // PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_L1D_FLUSH
		spec, _ := unix.PrctlRetInt(unix.PR_GET_SPECULATION_CTRL, uintptr(i), 0, 0, 0)
		num(uint64(spec), 16)
	}
	end()
	nnp, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	begin("no_new_privs")
	num(uint64(nnp), 10)
	end()
	// Not os.ReadFile, which asks the poller about it.
	for _, f := range [...]struct{ name, path string }{
		{"place in the out-of-memory killer's order", "/proc/self/oom_score_adj"},
		{"label", "/proc/self/attr/current"},
		{"core dumps", "/proc/self/coredump_filter"},
		{"audit session", "/proc/self/sessionid"}, // there is another for each login
	} {
		fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		n, err := unix.Read(fd, buf[:])
		unix.Close(fd)
		if err == nil {
			begin(f.name)
			b = append(append(b, ' '), bytes.TrimRight(buf[:n], "\n\x00")...)
			end()
		}
	}
	return string(b), nil
}
