package session

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const peerEnv = "SBXRUN_TEST_PEER" // what a helper process is to do to itself, and the socket

// A helper works in its first thread: that is the one whose status /proc shows.
func init() {
	what, ok := os.LookupEnv(peerEnv)
	if !ok {
		return
	}
	runtime.LockOSThread()
	if err := bePeer(strings.Fields(what)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func bePeer(todo []string) error {
	fd := -1
	for _, what := range todo {
		how, arg, _ := strings.Cut(what, "=")
		var err error
		switch how {
		case "groups":
			n, _ := strconv.Atoi(arg)
			list := make([]int, n)
			for i := range list {
				list[i] = 1_000_000 + i
			}
			err = syscall.Setgroups(list)
		case "name":
			name, _ := unix.BytePtrFromString(strings.NewReplacer("N", "\n", "T", "\t").Replace(arg))
			err = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
		case "nnp":
			err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		case "filter":
			allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000} // SECCOMP_RET_ALLOW
			prog := unix.SockFprog{Len: 1, Filter: &allow}
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
		case "connect":
			if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); err == nil {
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: arg})
			}
		case "leave": // to a child, and end
			_, err = os.StartProcess("/bin/cat", []string{"cat"}, &os.ProcAttr{Files: []*os.File{os.Stdin, nil, nil, os.NewFile(uintptr(fd), "")}})
			return err
		case "exec": // the socket stays open
			return unix.Exec("/bin/cat", []string{"cat"}, nil)
		case "thread": // the first ends, another goes on
			go func() {
				io.Copy(io.Discard, os.Stdin)
				os.Exit(0)
			}()
			// Not by a raw call: the thread would keep the only processor of a small machine.
			unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// TestPeer: a process that is confined more than this one is refused, however it looks,
// and one that is not is let in.
func TestPeer(t *testing.T) {
	own, err := ownConfinement()
	if err != nil {
		t.Fatal(err)
	}
	if own.noNewPrivs > 0 {
		t.Skip("this process has no_new_privs itself")
	}
	root := os.Geteuid() == 0
	for _, tt := range []struct {
		name  string
		does  string // before it connects
		after string
		flags uintptr
		root  bool
		why   string     // it is refused, "" for one that is not
		errno unix.Errno // then; 0 is EACCES
	}{
		{name: "another process"},
		{name: "one that executes another program", after: "exec"},
		{name: "one whose first thread has ended", after: "thread"},
		{name: "no_new_privs", does: "nnp", why: "no_new_privs"},
		{name: "no_new_privs, and another program", does: "nnp", after: "exec", why: "no_new_privs"},
		{name: "no_new_privs, and the first thread has ended", does: "nnp", after: "thread", why: "no_new_privs"},
		{name: "a filter", does: "filter", root: true, why: "filters"},
		{name: "no_new_privs and a filter", does: "nnp filter", why: "no_new_privs"},
		{name: "hundreds of groups", does: "groups=900", root: true},
		{name: "hundreds of groups and no_new_privs", does: "groups=900 nnp", root: true, why: "no_new_privs"},
		{name: "hundreds of groups and a filter", does: "groups=900 filter", root: true, why: "filters"},
		{name: "a name that says no_new_privs", does: "name=NNoNewPrivs:T1"},
		{name: "a name that denies no_new_privs", does: "nnp name=NNoNewPrivs:T0", why: "no_new_privs"},
		{name: "a name with parentheses", does: "nnp name=a)NSeccomp:T0N", why: "no_new_privs"},
		{name: "a name that denies a filter", does: "filter name=NSeccomp:T0N", root: true, why: "filters"},
		{name: "a user namespace", flags: unix.CLONE_NEWUSER, why: "user namespace"},
		{name: "a pid namespace", flags: unix.CLONE_NEWPID, root: true, why: "pid namespace"},
		{name: "one that is gone", after: "leave", why: "has ended", errno: unix.ESRCH},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root && !root {
				t.Skip("needs root")
			}
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			l.SetDeadline(time.Now().Add(time.Minute))
			stdin, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			var stderr bytes.Buffer
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), peerEnv+"="+tt.does+" connect="+socket+" "+tt.after)
			cmd.Stdin, cmd.Stderr = stdin, &stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: tt.flags}
			err = cmd.Start()
			stdin.Close()
			if errors.Is(err, unix.EPERM) && tt.flags != 0 {
				t.Skip("no user namespaces for this user")
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := l.AcceptUnix()
			if err != nil {
				t.Fatalf("%v: %s", err, &stderr)
			}
			defer c.Close()
			switch tt.after {
			case "leave":
				if err := cmd.Wait(); err != nil {
					t.Fatalf("%v: %s", err, &stderr)
				}
			case "exec", "thread":
				for {
					b, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/status")
					if err != nil || bytes.HasPrefix(b, []byte("Name:\tcat\n")) || bytes.Contains(b, []byte("State:\tZ")) {
						break
					}
					time.Sleep(time.Millisecond)
				}
			}
			_, err = checkPeer(c)
			errno := cmp.Or(tt.errno, unix.EACCES)
			if tt.why == "" && err != nil || tt.why != "" && (!errors.Is(err, errno) || !strings.Contains(err.Error(), tt.why)) {
				t.Errorf("got %v, want %q", err, tt.why)
			}
			w.Close() // they all end
			if err := cmd.Wait(); err != nil && tt.after != "leave" {
				t.Errorf("%v: %s", err, &stderr)
			}
		})
	}
}

// TestReadProc: a file is read whole, whatever its size.
func TestReadProc(t *testing.T) {
	for _, n := range []int{0, 1, 4<<10 - 1, 4 << 10, 4<<10 + 1, 64 << 10} {
		name, want := filepath.Join(t.TempDir(), "f"), bytes.Repeat([]byte("0123456789\n"), n)[:n]
		if err := os.WriteFile(name, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readProc(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
}
