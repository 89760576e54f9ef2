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

// TestSockets installs each filter in a process of its own, and tries.
func TestSockets(t *testing.T) {
	filters := map[string]func() (Program, error){"none": NoSockets, "clients": ClientSockets}
	if f, ok := filters[os.Getenv("SECCOMP_TEST_SOCKETS")]; ok {
		trySockets(t, f)
		return
	}
	common := "unix EPERM, udp EPERM, raw EPERM, netlink EPERM, mptcp EPERM, stream pair ok, packet pair ok, datagram pair EPERM, uring ENOSYS, pipe ok"
	for name, want := range map[string]string{
		"none":    common + ", tcp EPERM, tcp6 EPERM, named tcp EPERM, flags EPERM",
		"clients": common + ", tcp ok, tcp6 ok, named tcp ok, flags ok, bind EPERM, listen EPERM, fast open EPERM, fast open msg EPERM, fast open msgs EPERM, connect goes on, sent ok, sent msg ok",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestSockets$", "-test.v")
			cmd.Env = append(os.Environ(), "SECCOMP_TEST_SOCKETS="+name)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), want+"\n") {
				t.Errorf("%v\n%swant %s", err, out, want)
			}
		})
	}
}

func trySockets(t *testing.T, filter func() (Program, error)) {
	f, err := filter()
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
	var got []string
	try := func(name string, err error) {
		if err == nil {
			got = append(got, name+" ok")
		} else {
			got = append(got, name+" "+unix.ErrnoName(err.(unix.Errno)))
		}
	}
	socket := func(family, typ, proto int) error { _, err := unix.Socket(family, typ, proto); return err }
	pair := func(typ int) error { _, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0); return err }
	try("unix", socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
	try("udp", socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	try("raw", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP))
	try("netlink", socket(unix.AF_NETLINK, unix.SOCK_RAW, 0))
	try("mptcp", socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP))
	try("stream pair", pair(unix.SOCK_STREAM))
	try("packet pair", pair(unix.SOCK_SEQPACKET))
	try("datagram pair", pair(unix.SOCK_DGRAM))
	_, _, uring := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	try("uring", uring)
	try("pipe", unix.Pipe(make([]int, 2)))
	try("tcp", socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	try("tcp6", socket(unix.AF_INET6, unix.SOCK_STREAM, 0))
	try("named tcp", socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	try("flags", err)
	if err == nil {
		nobody := &unix.SockaddrInet4{Port: 1, Addr: [4]byte{127, 0, 0, 1}}
		try("bind", unix.Bind(fd, &unix.SockaddrInet4{}))
		try("listen", unix.Listen(fd, 1))
		try("fast open", unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, nobody))
		_, err := unix.SendmsgN(fd, []byte("x"), nil, nobody, unix.MSG_FASTOPEN)
		try("fast open msg", err)
		_, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), 0, 0, unix.MSG_FASTOPEN, 0, 0)
		try("fast open msgs", e)
		blocking, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if unix.Connect(blocking, nobody) != unix.EPERM {
			got = append(got, "connect goes on")
		}
		p, _ := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		try("sent", unix.Sendto(p[0], []byte("x"), unix.MSG_NOSIGNAL, nil))
		_, err = unix.SendmsgN(p[0], []byte("x"), nil, nil, unix.MSG_NOSIGNAL)
		try("sent msg", err)
	}
	t.Log(strings.Join(got, ", "))
}
