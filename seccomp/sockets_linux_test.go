package seccomp

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestNoSockets installs the filter in a process of its own, and tries.
func TestNoSockets(t *testing.T) {
	if os.Getenv("SECCOMP_TEST_SOCKETS") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestNoSockets$", "-test.v")
		cmd.Env = append(os.Environ(), "SECCOMP_TEST_SOCKETS=1")
		out, err := cmd.CombinedOutput()
		want := "unix EPERM, inet EPERM, netlink EPERM, pair ok, uring ENOSYS, pipe ok"
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v\n%swant %s", err, out, want)
		}
		return
	}
	f, err := NoSockets()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	prog := unix.SockFprog{Len: uint16(f.Len()), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.StringData(f.Filter)))}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		t.Fatal(e)
	}
	got := func(name string, err error) string {
		if err == nil {
			return name + " ok"
		}
		return name + " " + unix.ErrnoName(err.(unix.Errno))
	}
	socket := func(family int) error { _, err := unix.Socket(family, unix.SOCK_STREAM, 0); return err }
	_, pair := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	_, _, uring := unix.Syscall(425, 1, 0, 0)
	_, netlink := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)
	t.Log(strings.Join([]string{got("unix", socket(unix.AF_UNIX)), got("inet", socket(unix.AF_INET)), got("netlink", netlink),
		got("pair", pair), got("uring", uring), got("pipe", unix.Pipe(make([]int, 2)))}, ", "))
}
