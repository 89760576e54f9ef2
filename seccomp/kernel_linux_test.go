package seccomp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childEnv makes the test binary, run again, install a filter and then do what
// the variable says: "calls PROFILE", or "exec PROFILE" with a command.
const childEnv = "SBXRUN_SECCOMP_TEST"

func TestMain(m *testing.M) {
	if what, name, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		os.Unsetenv(childEnv)
		if err := child(what, name); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(99)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// install puts a filter on all threads.
func install(name string) error {
	p, err := Builtin(name)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(p.Len()), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.StringData(p.Filter)))}
	if r, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 || r != 0 {
		return fmt.Errorf("seccomp: %d, %w", r, e)
	}
	return nil
}

func child(what, name string) error {
	begin := time.Now()
	if name != "none" {
		if err := install(name); err != nil {
			return err
		}
	}
	switch what {
	case "bench":
		measure(time.Since(begin))
		return nil
	case "exec":
		return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	case "x32":
		_, _, e := unix.RawSyscall(0x40000000|unix.SYS_GETPID, 0, 0, 0)
		return fmt.Errorf("the process lives: %w", e)
	case "calls":
		for _, c := range kernelCalls {
			r, _, e := unix.Syscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], 0, 0)
			fmt.Printf("%s %d\n", c.name, e)
			if e == 0 && c.fd {
				unix.Close(int(r))
			}
		}
		return nil
	}
	return errors.New("unknown request")
}

const noFD = ^uintptr(0)

// kernelCalls can be made without a filter as well: whatever a kernel lets them
// do has no effect. The last number is the errno that a filter gives; 0 is a
// call that the filter lets through and that succeeds.
var kernelCalls = []struct {
	name  string
	nr    uintptr
	args  [4]uintptr
	fd    bool
	errno syscall.Errno
}{
	{"getpid", unix.SYS_GETPID, [4]uintptr{}, false, 0},
	{"unshare nothing", unix.SYS_UNSHARE, [4]uintptr{}, false, unix.EPERM},
	{"setns", unix.SYS_SETNS, [4]uintptr{noFD}, false, unix.EPERM},
	{"clone3", unix.SYS_CLONE3, [4]uintptr{}, false, unix.ENOSYS},
	{"clone NEWUSER", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWUSER | unix.CLONE_FS}, false, unix.EPERM},
	{"umount", unix.SYS_UMOUNT2, [4]uintptr{}, false, unix.EPERM},
	{"fsopen", unix.SYS_FSOPEN, [4]uintptr{}, false, unix.EPERM},
	{"bpf", unix.SYS_BPF, [4]uintptr{999}, false, unix.EPERM},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, [4]uintptr{}, false, unix.EPERM},
	{"keyctl", unix.SYS_KEYCTL, [4]uintptr{999}, false, unix.EPERM},
	{"userfaultfd", unix.SYS_USERFAULTFD, [4]uintptr{noFD}, false, unix.EPERM},
	{"memfd_create", unix.SYS_MEMFD_CREATE, [4]uintptr{uintptr(unsafe.Pointer(&[]byte("x\x00")[0]))}, true, 0},
	{"AF_UNIX", unix.SYS_SOCKET, [4]uintptr{unix.AF_UNIX, unix.SOCK_STREAM}, true, 0},
	{"TCP", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, true, 0},
	{"UDP", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK, unix.IPPROTO_UDP}, true, 0},
	{"NETLINK_ROUTE", unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, 0}, true, 0},
	{"NETLINK_NETFILTER", unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, true, unix.EAFNOSUPPORT},
	{"AF_PACKET", unix.SYS_SOCKET, [4]uintptr{unix.AF_PACKET, unix.SOCK_RAW}, true, unix.EAFNOSUPPORT},
	{"AF_ALG", unix.SYS_SOCKET, [4]uintptr{unix.AF_ALG, unix.SOCK_SEQPACKET}, true, unix.EAFNOSUPPORT},
	{"AF_VSOCK", unix.SYS_SOCKET, [4]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}, true, unix.EAFNOSUPPORT},
	{"raw", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, true, unix.EPERM},
	{"MPTCP", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, true, unix.EPROTONOSUPPORT},
	{"TIOCSTI", unix.SYS_IOCTL, [4]uintptr{noFD, unix.TIOCSTI}, false, unix.EPERM},
	{"TIOCSTI with a high bit", unix.SYS_IOCTL, [4]uintptr{noFD, 1<<32 | unix.TIOCSTI}, false, unix.EPERM},
	{"TIOCGWINSZ of nothing", unix.SYS_IOCTL, [4]uintptr{noFD, unix.TIOCGWINSZ}, false, unix.EBADF},
	{"personality", unix.SYS_PERSONALITY, [4]uintptr{0xffffffff}, false, 0},
	{"personality without randomisation", unix.SYS_PERSONALITY, [4]uintptr{0x40000}, false, unix.EPERM},
	{"sched_setscheduler batch", unix.SYS_SCHED_SETSCHEDULER, [4]uintptr{noFD, 3}, false, unix.EINVAL},
	{"sched_setscheduler fifo", unix.SYS_SCHED_SETSCHEDULER, [4]uintptr{noFD, 1}, false, unix.EPERM},
	{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, [4]uintptr{}, false, unix.EPERM},
	{"unknown", 600, [4]uintptr{}, false, unix.ENOSYS},
}

func start(t testing.TB, what, profile string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+profile)
	cmd.WaitDelay = time.Second
	return cmd
}

// TestKernel: the kernel takes each program and decides as it says.
func TestKernel(t *testing.T) {
	results := func(profile string) map[string]syscall.Errno {
		out, err := start(t, "calls", profile).Output()
		if err != nil {
			t.Fatalf("%s: %v", profile, err)
		}
		m := map[string]syscall.Errno{}
		for line := range strings.Lines(string(out)) {
			i := strings.LastIndexByte(line, ' ')
			n, err := strconv.Atoi(strings.TrimSpace(line[i+1:]))
			if err != nil {
				t.Fatal(err)
			}
			m[line[:i]] = syscall.Errno(n)
		}
		return m
	}
	control := results("none")
	for _, profile := range names {
		got := results(profile)
		differ := 0
		for _, c := range kernelCalls {
			if got[c.name] != c.errno {
				t.Errorf("%s: %s: %v, want %v (without a filter: %v)", profile, c.name, got[c.name], c.errno, control[c.name])
			}
			if got[c.name] != control[c.name] {
				differ++
			}
		}
		// Each denial has a reason in the filter, not in the machine. Some
		// families and calls may be missing from a kernel.
		if differ < 10 {
			t.Errorf("%s: only %d calls behave in another way than without a filter", profile, differ)
		}
	}
}

// TestKernelForeign: K01 and K02 on the machine.
func TestKernelForeign(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs an x86-64 processor")
	}
	killed := func(cmd *exec.Cmd) {
		t.Helper()
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
			t.Errorf("%v, want death by SIGSYS", err)
		}
	}
	killed(start(t, "x32", "strict"))

	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Fatal("gcc is missing, so int 0x80 cannot be tested: apt-get install gcc")
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "a.c"), filepath.Join(dir, "a")
	// 20 is getpid and 102 socketcall of i386.
	if err := os.WriteFile(src, []byte(`#include <stdlib.h>
int main(int n, char **v) { int r = atoi(v[1]); __asm__ volatile("int $0x80" : "+a"(r) : "b"(0), "c"(0) : "memory"); return 7; }`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, nr := range []string{"20", "102"} {
		var exit *exec.ExitError
		if err := start(t, "exec", "none", bin, nr).Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			// Some virtual machines have none: it is a fault there, whoever tries it.
			t.Skipf("int 0x80 does not work here without a filter either: %v", err)
		}
		killed(start(t, "exec", "strict", bin, nr))
	}
}

// TestToolchains: what has to run does, under the strictest filters.
func TestToolchains(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	goMain := file("main.go", "package main\nimport \"net\"\nfunc main() { l, err := net.Listen(\"tcp\", \"127.0.0.1:0\"); if err != nil { panic(err) }; l.Close(); _, err = net.Interfaces(); if err != nil { panic(err) }; print(\"fine\") }\n")
	cMain := file("main.c", "#include <pthread.h>\n#include <stdio.h>\nstatic void *f(void *p) { puts(\"fine\"); return p; }\nint main(void) { pthread_t t; return pthread_create(&t, 0, f, 0) || pthread_join(t, 0); }\n")
	java := file("Main.java", "public class Main { public static void main(String[] a) throws Exception { java.net.NetworkInterface.getNetworkInterfaces(); new ProcessBuilder(\"true\").start().waitFor(); System.out.println(\"fine\"); } }\n")
	rust := file("main.rs", "fn main() { std::thread::spawn(|| println!(\"fine\")).join().unwrap(); std::process::Command::new(\"true\").status().unwrap(); }\n")
	node := "const c=require('child_process');c.execFileSync('true');require('os').networkInterfaces();new (require('worker_threads').Worker)('require(\"worker_threads\").parentPort.postMessage(1)',{eval:true}).on('message',()=>{const s=require('net').createServer().listen(0,'127.0.0.1',()=>{s.close();console.log('fine')})})"
	python := "import asyncio,multiprocessing,socket,subprocess,threading,tempfile,ssl\nsubprocess.check_call(['true'])\nt=threading.Thread(target=lambda:0);t.start();t.join()\nmultiprocessing.Lock();asyncio.run(asyncio.sleep(0));socket.create_server(('127.0.0.1',0)).close();socket.if_nameindex()\nprint('fine')"
	tests := []struct{ tool, script string }{
		{"sh", "echo fine | cat"},
		{"python3", `exec python3 -c "$ARG"`},
		{"node", `exec node -e "$ARG"`},
		{"npm", `npm --version >/dev/null && echo fine`},
		{"git", `git init -q g && cd g && echo a >a && git add a && git -c user.name=a -c user.email=a@b commit -qm a && git clone -q . ../g2 && git -C ../g2 log --oneline | grep -q a && echo fine`},
		{"gcc", "gcc -pthread -o c " + cMain + " && ./c"},
		{"go", "exec go run " + goMain + " 2>&1"},
		{"java", "exec java " + java},
		{"rustc", "rustc -o r " + rust + " && ./r"},
	}
	for _, profile := range []string{"strict", "production"} {
		for _, tt := range tests {
			t.Run(profile+"/"+tt.tool, func(t *testing.T) {
				if _, err := exec.LookPath(tt.tool); err != nil {
					t.Fatalf("%s is not installed: make test installs it", tt.tool)
				}
				cmd := start(t, "exec", profile, "/bin/sh", "-c", tt.script)
				cmd.Dir = t.TempDir()
				cmd.Env = append(cmd.Env, "ARG="+map[string]string{"python3": python, "node": node}[tt.tool])
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "fine") {
					t.Errorf("%v: %s", err, out.String())
				}
			})
		}
	}
}

// BenchmarkInstall reports what a filter costs: the system call that installs
// it, at each start, and afterwards a plainly allowed call (the kernel's cache
// answers), one that arguments decide about, and a denied one. Times are
// the medians of all iterations, each a process of its own.
func BenchmarkInstall(b *testing.B) {
	for _, name := range append([]string{"none"}, Names()...) {
		b.Run(name, func(b *testing.B) {
			metrics := map[string][]float64{}
			for b.Loop() {
				out, err := start(b, "bench", name).Output()
				if err != nil {
					b.Fatal(err)
				}
				f := strings.Fields(string(out))
				for i := 0; i+1 < len(f); i += 2 {
					v, err := strconv.ParseFloat(f[i+1], 64)
					if err != nil {
						b.Fatal(err)
					}
					metrics[f[i]] = append(metrics[f[i]], v)
				}
			}
			for unit, v := range metrics {
				slices.Sort(v)
				b.ReportMetric(v[len(v)/2], unit)
			}
		})
	}
}

// measure prints the values that BenchmarkInstall reports. installed is how
// long the installation took.
func measure(installed time.Duration) {
	fmt.Println("us/install", float64(installed.Nanoseconds())/1e3)
	loop := func(unit string, nr, a, b uintptr) {
		const n = 20000
		begin := time.Now()
		for range n {
			unix.RawSyscall(nr, a, b, 0)
		}
		fmt.Println(unit, float64(time.Since(begin).Nanoseconds())/n)
	}
	loop("ns/getppid", unix.SYS_GETPPID, 0, 0)
	loop("ns/ioctl", unix.SYS_IOCTL, noFD, unix.TIOCGWINSZ)
	loop("ns/sendto", unix.SYS_SENDTO, noFD, 0)
	loop("ns/bpf", unix.SYS_BPF, 999, 0)
}
