package native

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// hostMounts are the changes of the mounts in this process's namespace. Process 1 of a
// sandbox that is prepared has the mounts of the time at which it was made, so that
// what is mounted later, below what is shown or above it, is not there.
var hostMounts mountLog

type mountLog struct {
	mu    sync.Mutex
	list  int             // the open list, for as long as the process lives; 0 before
	lines map[string]bool // when it was read last, nil before
	dirty bool            // it has changed since
	first int             // number of the first of points; those before are forgotten
	point []string        // where something was mounted or unmounted
}

// keepPoints bounds the changes that are remembered.
const keepPoints = 4096

// since returns the number of the next change, and where, of those from a number on,
// one was on the way to one of the paths, at it, or below it; "" for none.
func (l *mountLog) since(n int, paths map[string]sight) (next int, at string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.look(); err != nil {
		return 0, "", err
	}
	next = l.first + len(l.point)
	if len(paths) == 0 || n == next {
		return next, "", nil
	}
	if n < l.first {
		return next, "many places", nil
	}
	for _, at := range l.point[n-l.first:] {
		for p := range paths {
			if below(p, at) || below(at, p) {
				return next, at, nil
			}
		}
	}
	return next, "", nil
}

func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// look notes what has changed. The kernel tells those who have the list open that it
// has, once; see "/proc/pid/mounts" in proc_pid_mounts(5).
func (l *mountLog) look() (err error) {
	if l.list == 0 {
		// Not os.Open: what the runtime's poller is told, nobody else is.
		if l.list, err = unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			l.list = 0
			return &os.PathError{Op: "open", Path: "/proc/self/mountinfo", Err: err}
		}
	} else {
		poll := []unix.PollFd{{Fd: int32(l.list), Events: unix.POLLPRI}}
		n, err := unix.Poll(poll, 0)
		if err != nil && err != unix.EINTR { // after which it is read to no purpose
			return os.NewSyscallError("poll", err)
		}
		l.dirty = l.dirty || n != 0
	}
	if l.lines != nil && !l.dirty {
		return nil
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	now := map[string]bool{}
	for line := range bytes.Lines(b) {
		now[string(line)] = true
	}
	was := l.lines
	for _, of := range [2][2]map[string]bool{{was, now}, {now, was}} {
		for line := range of[0] {
			if was == nil || of[1][line] {
				continue
			}
			f := strings.Fields(line)
			if len(f) < 5 {
				return fmt.Errorf("/proc/self/mountinfo: %q", line)
			}
			l.point = append(l.point, unescape(f[4]))
		}
	}
	if more := len(l.point) - keepPoints; more > 0 {
		l.first += more
		l.point = append([]string(nil), l.point[more:]...)
	}
	l.lines, l.dirty = now, false
	return nil
}

// unescape undoes what the kernel does to names in mountinfo. That is rare, and a
// variable would be made at each start.
func unescape(name string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(name)
}
