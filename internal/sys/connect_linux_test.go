package sys_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// TestConnectSignalled: signals while a server is too busy to take a connection do
// not end connecting to it. Without a second try the call fails with EINTR.
func TestConnectSignalled(t *testing.T) {
	server, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(server)
	if err := unix.Bind(server, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(server, 0); err != nil {
		t.Fatal(err)
	}
	to, err := unix.Getsockname(server)
	if err != nil {
		t.Fatal(err)
	}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	// A backlog of 0 holds one connection: the next one waits.
	if err := sys.Connect(socket(), to, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := sys.Connect(socket(), to, 50*time.Millisecond); err != unix.EINPROGRESS && err != unix.ETIMEDOUT {
		t.Fatalf("a server that takes no connection: %v", err)
	}
	fd, thread, done := socket(), make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		done <- sys.Connect(fd, to, time.Minute)
	}()
	tid := <-thread
	for range 20 {
		time.Sleep(5 * time.Millisecond)
		unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
	}
	// Where the machine is busy, the last one is taken before its connect returns.
	if err := unix.SetNonblock(server, true); err != nil {
		t.Fatal(err)
	}
	for connected := false; !connected; {
		c, _, err := unix.Accept(server) // the first, then the one that waited
		if err == nil {
			unix.Close(c)
		} else if err != unix.EAGAIN {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("connecting while signals came: %v", err)
			}
			connected = true
		case <-time.After(20 * time.Millisecond):
		}
	}
}
