package guard

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAcceptNoRoom: where this process has room for the listener and not for the root,
// the listener is closed: calls that wait at it would never be answered.
func TestAcceptNoRoom(t *testing.T) {
	for _, room := range []int{0, 1, 2} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendmsg(pair[1], []byte{'g'}, unix.UnixRights(int(w.Fd()), int(w.Fd())), nil, 0); err != nil {
			t.Fatal(err)
		}
		w.Close()
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		fill := full(t, room, was.Max)
		wk := &worker{g: &Guard{}, root: -1}
		wk.l.FD = -1
		err = wk.accept(pair[0])
		if serr := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); serr != nil {
			t.Fatal(serr)
		}
		for _, fd := range fill {
			unix.Close(fd)
		}
		if (err == nil) != (room == 2) {
			t.Errorf("room for %d: %v", room, err)
		}
		// If nobody holds the other end, the pipe has ended.
		polls := []unix.PollFd{{Fd: int32(r.Fd()), Events: unix.POLLIN}}
		unix.Poll(polls, 0)
		if held := polls[0].Revents&unix.POLLHUP == 0; held != (room == 2) {
			t.Errorf("room for %d: held %t", room, held)
		}
		for _, fd := range []int{pair[0], pair[1], wk.l.FD, wk.root} {
			unix.Close(fd)
		}
		r.Close()
	}
}

// full leaves this process room for so many descriptors, up to the limit that was.
func full(t *testing.T, room int, most uint64) (fill []int) {
	t.Helper()
	last, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 200)
	if err != nil {
		t.Fatal(err)
	}
	fill = append(fill, last)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(last), Max: most}); err != nil {
		t.Fatal(err)
	}
	for {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err == unix.EMFILE || err == unix.EINVAL {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fill = append(fill, fd)
	}
	for range room {
		unix.Close(fill[len(fill)-1])
		fill = fill[:len(fill)-1]
	}
	return fill
}
