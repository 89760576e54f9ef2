package session

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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
	var b strings.Builder
	line := func(name string, values ...string) {
		b.WriteString(name + ": " + strings.Join(values, " ") + "\n")
	}
	num := func(n uint64) string { return strconv.FormatUint(n, 10) }
	for _, ns := range []string{"mnt", "user", "net", "pid", "ipc", "uts", "time"} {
		l, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil && (ns != "time" || !os.IsNotExist(err)) { // Linux 5.6
			return "", err
		}
		line(ns+" namespace", l)
	}
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: "/", Err: err}
	}
	line("root", num(st.Dev), num(st.Ino))
	line("user", strconv.Itoa(unix.Getuid()), strconv.Itoa(unix.Geteuid()), strconv.Itoa(unix.Getgid()), strconv.Itoa(unix.Getegid()))
	groups, err := unix.Getgroups()
	if err != nil {
		return "", os.NewSyscallError("getgroups", err)
	}
	list := make([]string, len(groups))
	for i, g := range groups {
		list[i] = strconv.Itoa(g)
	}
	line("groups", list...)
	mask := unix.Umask(0o077)
	unix.Umask(mask)
	line("umask", strconv.FormatInt(int64(mask), 8))
	for i := range 16 { // RLIM_NLIMITS
		var r unix.Rlimit
		if unix.Prlimit(0, i, nil, &r) == nil {
			line("resource limit "+strconv.Itoa(i), num(r.Cur), num(r.Max))
		}
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return "", os.NewSyscallError("sched_getaffinity", err)
	}
	var words []string
	for _, w := range cpus {
		words = append(words, strconv.FormatUint(uint64(w), 16))
	}
	line("processors", words...)
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return "", os.NewSyscallError("getpriority", err)
	}
	line("priority", strconv.Itoa(nice))
	nnp, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	line("no_new_privs", strconv.Itoa(nnp))
	if l, err := os.ReadFile("/proc/self/attr/current"); err == nil {
		line("label", strings.TrimRight(string(l), "\n\x00"))
	}
	return b.String(), nil
}
