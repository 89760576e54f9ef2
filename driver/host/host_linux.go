package host

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const maxrssUnit = 1024 // ru_maxrss is in KiB; see getrusage(2)

// sweepTime bounds how long a tree that forks as fast as it is killed can hold
// the result up.
const sweepTime = 5 * time.Second

// adopt lets this process inherit the orphans of what it starts, and has the
// kernel kill the command if this process dies.
func adopt(sys *syscall.SysProcAttr) error {
	// prctl(PR_SET_CHILD_SUBREAPER, 1), Linux 3.4.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	sys.Pdeathsig = syscall.SIGKILL
	// Nor are descriptors that were left open for this process the command's.
	// EINVAL: before Linux 5.11; then they are, as with any shell.
	unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
	return nil
}

// awaitExit returns when the child has ended, and leaves it to be reaped.
func awaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// hasExited reports whether the child has ended. It is not reaped.
func hasExited(pid int) bool {
	var info unix.Siginfo
	return unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil) == nil && info.Signo != 0
}

// signalDescendants sends sig to every process below this one.
func signalDescendants(sig syscall.Signal) {
	for _, pid := range descendants(os.Getpid(), parents()) {
		syscall.Kill(pid, sig)
	}
}

// sweepDescendants kills and reaps every process below this one. Orphans of a
// killed process become children of this one (it is their subreaper), so
// nothing gets out of sight between two rounds.
func sweepDescendants() {
	for end := time.Now().Add(sweepTime); time.Now().Before(end); {
		// ECHILD: without a child there is no descendant either, and no need to
		// read all of /proc.
		if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == syscall.ECHILD {
			return
		}
		left := descendants(os.Getpid(), parents())
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if pid <= 0 {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// descendants returns all processes below root, given each one's parent.
func descendants(root int, parent map[int]int) []int {
	children := map[int][]int{}
	for pid, ppid := range parent {
		children[ppid] = append(children[ppid], pid)
	}
	var out []int
	for queue := children[root]; len(queue) > 0; {
		pid := queue[0]
		queue = append(queue[1:], children[pid]...)
		out = append(out, pid)
	}
	return out
}

// parents reads every process's parent from /proc.
func parents() map[int]int {
	out := map[int]int{}
	dir, err := os.Open("/proc")
	if err != nil {
		return out
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it ended meanwhile
		}
		if ppid, ok := parentOf(stat); ok {
			out[pid] = ppid
		}
	}
	return out
}

// parentOf returns the fourth field of /proc/PID/stat. The second is the
// program's name in parentheses, and may hold spaces and parentheses itself;
// see proc_pid_stat(5).
func parentOf(stat []byte) (int, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, false
	}
	fields := bytes.Fields(stat[i+1:])
	if len(fields) < 2 {
		return 0, false
	}
	ppid, err := strconv.Atoi(string(fields[1]))
	return ppid, err == nil
}
