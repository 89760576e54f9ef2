package session

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// checkPeer refuses whoever is not the owner, or root. The socket's directory
// keeps others out already; this holds also if somebody opens that. A sandboxed
// command is its owner's too, wherever the directory came into its sight. It is
// refused for its namespaces and, where it has none of its own, for being confined
// more than this process is.
//
// Who has ended meanwhile is ESRCH, if it was the owner, or root.
func checkPeer(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	pidfd := -1
	if cerr := raw.Control(func(fd uintptr) {
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		// Linux 6.5. Before that there is the number alone.
		if pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); errors.Is(err, unix.ENOPROTOOPT) {
			pidfd, err = -1, nil
		}
	}); cerr != nil {
		return 0, cerr
	}
	if pidfd >= 0 {
		defer unix.Close(pidfd)
	}
	if cred != nil && int(cred.Uid) != os.Geteuid() && cred.Uid != 0 {
		return 0, fmt.Errorf("user %d: %w", cred.Uid, unix.EACCES)
	}
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // what kernels say of a pidfd for one that is gone
		return 0, fmt.Errorf("who is at the other end has ended: %w", unix.ESRCH)
	}
	if err != nil {
		return 0, err
	}
	// Whoever connects and dies at once, and leaves the socket to a child, has none.
	var peer confinement
	err = peer.read("/proc/"+strconv.Itoa(int(cred.Pid)), cred.Uid == 0)
	if pidfd >= 0 && errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.ESRCH) ||
		pidfd < 0 && err != nil && errors.Is(unix.Kill(int(cred.Pid), 0), unix.ESRCH) {
		// The number may be another's by now.
		return 0, fmt.Errorf("process %d has ended: %w", cred.Pid, unix.ESRCH)
	}
	if err != nil {
		return 0, fmt.Errorf("process %d is not known to be outside of a sandbox, because %v: %w", cred.Pid, err, unix.EACCES)
	}
	own, err := ownNamespaces()
	if err == nil && (peer.noNewPrivs > 0 || peer.filters > 0) {
		own, err = ownConfinement() // otherwise it cannot have more than this process
	}
	if err != nil {
		return 0, err
	}
	if why := peer.beyond(own); why != "" {
		return 0, &confinedError{cred.Pid, why}
	}
	return int(cred.Pid), nil
}

// A confinement is what tells a sandboxed process from another of the same user. It
// can be inherited and added to, but never shed.
type confinement struct {
	user, pid  string // namespaces, see namespaces(7); "" is not known, or none in this kernel
	noNewPrivs int
	filters    int // of system calls
}

// ownConfinement is that of this process, ownNamespaces that without the rest: reading
// a process's status takes the kernel longer than all else here.
var (
	ownNamespaces = sync.OnceValues(func() (c confinement, err error) {
		err = c.namespaces("/proc/self", false)
		return c, err
	})
	ownConfinement = sync.OnceValues(func() (c confinement, err error) {
		err = c.read("/proc/self", false)
		return c, err
	})
)

// read reads that of the process of a directory in /proc. A mere user may not look at
// the namespaces of root's processes, but may read all the rest.
func (c *confinement) read(proc string, roots bool) error {
	if err := c.namespaces(proc, roots); err != nil {
		return err
	}
	return c.status(proc)
}

func (c *confinement) namespaces(proc string, roots bool) (err error) {
	for _, ns := range [...]struct {
		name string
		to   *string
	}{{"/ns/user", &c.user}, {"/ns/pid", &c.pid}} {
		*ns.to, err = readLink(proc + ns.name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && proc == "/proc/self": // the kernel has none
		case errors.Is(err, unix.EACCES) && roots:
		case err != nil:
			return err
		}
	}
	return nil
}

func (c *confinement) status(proc string) error {
	b, err := readProc(proc + "/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":\t")
		number := func() int { n, _ := strconv.Atoi(strings.TrimSuffix(value, "\n")); return n }
		switch name {
		case "NoNewPrivs": // Linux 4.10
			c.noNewPrivs = number()
		case "Seccomp":
			c.filters = max(c.filters, number()/2) // a filter, if it is 2
		case "Seccomp_filters": // Linux 5.9
			c.filters = max(c.filters, number())
		}
	}
	return nil
}

// readLink and readProc are os.Readlink and os.ReadFile for short files of /proc. Those
// make eight system calls more, for files that can block.
func readLink(name string) (string, error) {
	var buf [64]byte
	n, err := unix.Readlink(name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func readProc(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4<<10)
	for n := 0; n < len(buf); {
		more, err := unix.Read(fd, buf[n:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case more == 0:
			return buf[:n], nil
		}
		n += more
	}
	return os.ReadFile(name) // the process is in many groups
}

// beyond says what a process has that another has not, "" if there is nothing.
// A process with more filters may be in the same container; it may as well be in a
// sandbox in that container.
func (c confinement) beyond(own confinement) string {
	switch {
	case own.user != "" && c.user != "" && c.user != own.user:
		return "in another user namespace"
	case own.pid != "" && c.pid != "" && c.pid != own.pid:
		return "in another pid namespace, as in a container"
	case c.noNewPrivs > own.noNewPrivs:
		return "confined by no_new_privs, which the other side is not"
	case c.filters > own.filters:
		return "confined by more system call filters than the other side"
	}
	return ""
}

// confinedError says why a process at the other end is refused.
type confinedError struct {
	pid int32
	why string
}

func (e *confinedError) Error() string {
	return fmt.Sprintf("process %d is %s: %v", e.pid, e.why, unix.EACCES)
}

func (e *confinedError) Unwrap() error { return unix.EACCES }

// Hint says what to do.
func (e *confinedError) Hint() string {
	return "a sandboxed command gets at no server and no session; start both sides from the same place"
}
