package holder

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat returns when a process began, and its parent; see proc_pid_stat(5).
func Stat(pid int) (began uint64, parent int) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	// The second field, a name, may hold anything; the last ")" ends it.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(f[1])
	began, _ = strconv.ParseUint(f[19], 10, 64)
	return began, parent
}

// Ended returns a channel that is closed when a process has ended.
func (p Process) Ended() (<-chan struct{}, error) {
	fd, err := unix.PidfdOpen(p.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, &os.SyscallError{Syscall: "pidfd_open", Err: err}
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	gone := make(chan struct{})
	if began, _ := Stat(p.Pid); began != p.Began {
		f.Close()
		close(gone)
		return gone, nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	go func() {
		defer close(gone)
		defer f.Close()
		// Readable when it has ended; see pidfd_open(2).
		conn.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
	}()
	return gone, nil
}
