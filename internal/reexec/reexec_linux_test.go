package reexec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv("REEXEC_TEST_SUPERVISOR"); mode != "" {
		supervisor(mode)
		return
	}
	os.Exit(m.Run())
}

// config is a stage in user and pid namespaces, without mounts, that runs a
// command of the host.
func config(argv ...string) *Config {
	init := &sys.Program{}
	write := func(path, s string) {
		fd := init.NewReg()
		init.Call(fd, sys.Step{Op: "open", Object: path}, unix.SYS_OPENAT, sys.Imm(unix.AT_FDCWD), init.Str(path), sys.Imm(unix.O_WRONLY|unix.O_CLOEXEC), sys.Imm(0))
		init.Call(0, sys.Step{Op: "write", Object: path}, unix.SYS_WRITE, fd.Value(), init.Data(s), sys.Imm(len(s)))
	}
	write("/proc/self/setgroups", "deny")
	write("/proc/self/uid_map", fmt.Sprintf("1000 %d 1\n", os.Geteuid()))
	write("/proc/self/gid_map", fmt.Sprintf("1000 %d 1\n", os.Getegid()))
	cmd := &sys.Program{}
	cmd.Call(0, sys.Step{Op: "setsid"}, unix.SYS_SETSID)
	cmd.Call(0, sys.Step{Op: "rt_sigprocmask"}, unix.SYS_RT_SIGPROCMASK, sys.Imm(unix.SIG_SETMASK), sys.Ptr(cmd, new(uint64)), sys.Imm(0), sys.Imm(8))
	return &Config{
		CloneFlags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID,
		Init:       init, Start: &sys.Program{}, Command: cmd,
		Keep: []int{0, 1, 2},
		Argv: argv, Paths: []string{argv[0]}, Env: []string{"PATH=/usr/bin:/bin"},
	}
}

func run(t *testing.T, cfg *Config) (*Exit, error) {
	t.Helper()
	c, err := Start(cfg)
	if err != nil {
		return nil, err
	}
	if err := c.Go(); err != nil {
		t.Error(err)
	}
	exit, err := c.Wait()
	if e := c.Close(true); e != nil {
		t.Errorf("Close: %v", e)
	}
	return exit, err
}

func TestExit(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   syscall.WaitStatus
	}{
		{"exit 0", 0},
		{"exit 7", 7 << 8},
		{"kill -TERM $$", syscall.WaitStatus(syscall.SIGTERM)},
		{"kill -KILL $$", syscall.WaitStatus(syscall.SIGKILL)},
		// Orphans are reaped and ended, whatever they hold.
		{"(setsid sleep 60 &) ; trap '' TERM; sleep 60 & exit 3", 3 << 8},
	} {
		exit, err := run(t, config("/bin/sh", "-c", tt.script))
		if err != nil {
			t.Errorf("%s: %v", tt.script, err)
			continue
		}
		if exit.Status != tt.want {
			t.Errorf("%s: status %#x, want %#x", tt.script, exit.Status, tt.want)
		}
		if exit.ExecNS == 0 || exit.Usage.MaxRSSKiB == 0 {
			t.Errorf("%s: nothing recorded: %+v", tt.script, exit)
		}
	}
}

func TestExecFails(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		paths []string
		want  syscall.Errno
	}{
		{[]string{"/nonexistent"}, syscall.ENOENT},
		{[]string{"/nonexistent", "/dev/null/x"}, syscall.ENOENT},
		// What cannot be executed is remembered, and the search goes on.
		{[]string{plain, "/nonexistent"}, syscall.EACCES},
		{nil, syscall.ENOENT},
	} {
		cfg := config("x")
		cfg.Paths = tt.paths
		_, err := run(t, cfg)
		var e *ExecError
		if !errors.As(err, &e) || e.Errno != tt.want {
			t.Errorf("%v: error %v, want %v", tt.paths, err, tt.want)
		}
	}
	cfg := config("/bin/sh", "-c", "exit 4")
	cfg.Paths = []string{"/nonexistent", plain, "/bin/sh"}
	if exit, err := run(t, cfg); err != nil || exit.Status.ExitStatus() != 4 {
		t.Errorf("search: %v, %v", exit, err)
	}
}

// TestEveryStepFails injects a fault into each step of each program: the report
// names that step, and nothing is left.
func TestEveryStepFails(t *testing.T) {
	programs := func(c *Config) []*sys.Program {
		return []*sys.Program{c.Init, c.Start, c.Command}
	}
	build := func() *Config {
		c := config("/bin/sh", "-c", "exit 0")
		// Something in each program.
		c.Start.Call(0, sys.Step{Op: "getpid"}, unix.SYS_GETPID)
		return c
	}
	before := openFDs(t)
	for which := range programs(build()) {
		n := programs(build())[which].Len()
		for i := range n {
			cfg := build()
			p := programs(cfg)[which]
			want := p.Step(i)
			p.InjectFault(i, syscall.ENOMEM)
			_, err := run(t, cfg)
			var e *StepError
			if !errors.As(err, &e) {
				t.Errorf("program %d step %d: error %v, want a StepError", which, i, err)
				continue
			}
			if e.Index != i || e.Op != want.Op || e.Object != want.Object || !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("program %d step %d: %+v, want %+v", which, i, e, want)
			}
		}
	}
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func TestCloneFails(t *testing.T) {
	cfg := config("/bin/true")
	cfg.CloneFlags |= unix.CLONE_FS // EINVAL together with CLONE_NEWUSER; see clone(2)
	before := openFDs(t)
	_, err := Start(cfg)
	var e *StepError
	if !errors.As(err, &e) || e.Op != "clone3" || e.Errno != syscall.EINVAL {
		t.Errorf("error %v, want EINVAL of clone3", err)
	}
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

// TestNamespacesRequired: without a pid namespace of its own the stage would
// signal the host's processes.
func TestNamespacesRequired(t *testing.T) {
	for _, flags := range []uint64{0, unix.CLONE_NEWUSER, unix.CLONE_NEWPID} {
		cfg := config("/bin/true")
		cfg.CloneFlags = flags
		if c, err := Start(cfg); err == nil {
			c.Close(true)
			t.Errorf("flags %#x: started", flags)
		}
	}
}

func TestSignalAndKill(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	start := func(script string) *Child {
		cfg := config("/bin/sh", "-c", script)
		cfg.Keep = append(cfg.Keep, int(w.Fd()))
		cfg.Command.Call(0, sys.Step{Op: "dup3"}, unix.SYS_DUP3, sys.Imm(w.Fd()), sys.Imm(1), sys.Imm(0))
		c, err := Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.Go()
		buf := make([]byte, 16)
		if n, err := r.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		return c
	}
	c := start(`trap "exit 9" USR1; echo ready; while :; do sleep 0.01; done`)
	c.Signal(syscall.SIGUSR1)
	if exit, err := c.Wait(); err != nil || exit.Status.ExitStatus() != 9 {
		t.Errorf("USR1: %+v, %v", exit, err)
	}
	c.Close(true)
	if err := c.Signal(syscall.SIGTERM); err != syscall.ESRCH {
		t.Errorf("signal after the end: %v, want ESRCH", err)
	}
	if err := c.Kill(); err != syscall.ESRCH {
		t.Errorf("kill after the end: %v, want ESRCH", err)
	}

	c = start(`trap "exit 8" TERM; sh -c 'kill -STOP $$' & echo ready; while :; do sleep 0.01; done`)
	c.Terminate()
	if exit, err := c.Wait(); err != nil || exit.Status.ExitStatus() != 8 {
		t.Errorf("terminate: %+v, %v", exit, err)
	}
	c.Close(true)

	c = start(`trap "" TERM; echo ready; while :; do sleep 0.01; done`)
	c.Kill()
	_, err = c.Wait()
	var p *ProtocolError
	if !errors.As(err, &p) {
		t.Errorf("kill: %v, want no report", err)
	}
	c.Close(true)
}

// TestGate: Start runs after the first Go, the command after the second.
func TestGate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	cfg := config("/bin/sh", "-c", "exec echo ran >"+file)
	cfg.Gate = true
	dir := filepath.Dir(file)
	cfg.Start.Call(0, sys.Step{Op: "mkdir"}, unix.SYS_MKDIRAT, sys.Imm(unix.AT_FDCWD), cfg.Start.Str(dir+"/started"), sys.Imm(0o755))
	c, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(true)
	exists := func(name string) bool { _, err := os.Lstat(name); return err == nil }
	time.Sleep(20 * time.Millisecond)
	if exists(dir + "/started") {
		t.Error("Start ran before Go")
	}
	if err := c.Go(); err != nil {
		t.Fatal(err)
	}
	for !exists(dir + "/started") {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if exists(file) {
		t.Error("the command ran before its Go")
	}
	if err := c.Go(); err != nil {
		t.Fatal(err)
	}
	if exit, err := c.Wait(); err != nil || exit.Status != 0 || !exists(file) {
		t.Errorf("%+v, %v; it ran: %v", exit, err, exists(file))
	}
}

// supervisor is the process that TestSupervisorKilled kills.
func supervisor(mode string) {
	cfg := config("/bin/sh", "-c", `trap "" TERM; setsid sleep 1.2345 & sleep 1.2345 & echo up; wait; sleep 1.2345`)
	mode, isTree := strings.CutSuffix(mode, " tree")
	cfg.Gate = mode == "at the gate"
	if isTree {
		cfg.CloneFlags, cfg.Tree, cfg.Init = 0, true, &sys.Program{}
	}
	dir, err := unix.Open(os.Getenv("REEXEC_TEST_DIR"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	cfg.Keep = append(cfg.Keep, dir)
	cfg.Dirs = []Dir{{ParentFD: dir, Name: "n", From: 98, N: 904}, {ParentFD: dir, Name: "group"}}
	c, err := Start(cfg)
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"group", "n", "n97", "n98", "n99", "n100", "n1001", "n1002", "n98x"} {
		unix.Mkdirat(dir, name, 0o755)
	}
	switch mode {
	case "before go":
		fmt.Println("up")
	case "at the gate":
		c.Go()
		fmt.Println("up")
	case "running":
		c.Go()
	}
	time.Sleep(time.Minute)
}

// TestSupervisorKilled: nothing survives a supervisor that is SIGKILLed, and the
// directories that it would have removed are removed.
func TestSupervisorKilled(t *testing.T) {
	for _, mode := range []string{"before go", "at the gate", "running", "before go tree", "at the gate tree", "running tree"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "REEXEC_TEST_SUPERVISOR="+mode, "REEXEC_TEST_DIR="+dir)
			// Whatever is left reparents to us, where it can be counted.
			if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
				t.Fatal(err)
			}
			defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 8)
			if n, _ := out.Read(buf); string(buf[:n]) != "up\n" {
				t.Fatalf("%q", buf[:n])
			}
			children := descendants(cmd.Process.Pid)
			if len(children) == 0 {
				t.Fatal("no second stage to begin with")
			}
			cmd.Process.Kill()
			cmd.Wait()
			deadline := time.Now().Add(time.Second)
			for _, pid := range children {
				for alive(pid) {
					if time.Now().After(deadline) {
						t.Fatalf("process %d is still there", pid)
					}
					unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
					time.Sleep(5 * time.Millisecond)
				}
			}
			var left []string
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				left = append(left, e.Name())
			}
			if want := []string{"n", "n1002", "n97", "n98x"}; !slices.Equal(left, want) {
				t.Errorf("%q are there, want %q", left, want)
			}
		})
	}
}

// descendants lists all processes below pid.
func descendants(pid int) []int {
	var out []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for _, s := range strings.Fields(string(b)) {
			p, _ := strconv.Atoi(s)
			out = append(append(out, p), descendants(p)...)
		}
	}
	return out
}

func alive(pid int) bool { return unix.Kill(pid, 0) == nil }

// TestThreadExit is V03: the thread that cloned the stage ends, the stage does
// not.
func TestThreadExit(t *testing.T) {
	started := make(chan *Child)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
		c, err := Start(config("/bin/sh", "-c", "sleep 0.3; exit 5"))
		if err != nil {
			t.Error(err)
		}
		c.Go()
		started <- c
	}()
	c := <-started
	if c == nil {
		return
	}
	exit, err := c.Wait()
	if err != nil || exit.Status.ExitStatus() != 5 {
		t.Errorf("%+v, %v", exit, err)
	}
	c.Close(true)
}

// TestOrder: a message that found no room is read before those that come after it.
func TestOrder(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	c := &Child{fd: pair[0], pid: os.Getpid(), cfg: config("x")}
	waits := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.unsent) > 0
	}
	full := 0
	for ; !waits(); full++ {
		if err := c.Signal(unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	c.Signal(unix.SIGHUP)
	c.Signal(unix.SIGUSR1) // waits already
	var got []syscall.Signal
	for n := 0; n < full+2; n++ {
		var b [messageSize]byte
		if _, _, err := unix.Recvfrom(pair[1], b[:], 0); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			c.Signal(unix.SIGTERM) // there is room by now
		}
		got = append(got, syscall.Signal(binary.NativeEndian.Uint32(b[4:])))
	}
	if end := got[len(got)-3:]; !slices.Equal(end, []syscall.Signal{unix.SIGUSR1, unix.SIGHUP, unix.SIGTERM}) || len(got) != full+2 {
		t.Errorf("%d messages, the last %v", len(got), end)
	}
}

// TestForgedMessages is V02: whatever a stage that was taken over may send, the
// supervisor ends with an error.
func TestForgedMessages(t *testing.T) {
	good := message{Kind: msgExited}.encode()
	for name, packet := range map[string][]byte{
		"empty":                 {},
		"short":                 good[:len(good)-1],
		"long":                  append(append([]byte{}, good...), 0),
		"zeros":                 make([]byte, messageSize),
		"supervisor's own kind": message{Kind: msgGo}.encode(),
		"unknown program":       message{Kind: msgFailed, A: stageTree + 1, C: 1}.encode(),
		"failure without errno": message{Kind: msgFailed}.encode(),
		"errno out of range":    message{Kind: msgFailed, C: 5000}.encode(),
		"stopped, not ended":    message{Kind: msgExited, A: 0x137f}.encode(),
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pair[0])
			unix.Sendto(pair[1], packet, 0, nil)
			unix.Close(pair[1])
			c := &Child{fd: pair[0], cfg: config("x")}
			exit, err := c.Wait()
			var p *ProtocolError
			if exit != nil || !errors.As(err, &p) {
				t.Errorf("%+v, %v: want a ProtocolError", exit, err)
			}
		})
	}
	// A step that does not exist is reported without a panic.
	c := &Child{cfg: config("x")}
	if err := c.failure(message{Kind: msgFailed, B: 1 << 30, C: 1}); err == nil {
		t.Error("no error")
	}
}

// TestDescriptors is V05 for the stage itself: it holds nothing but what it was
// given.
func TestDescriptors(t *testing.T) {
	for range 50 {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // not close-on-exec
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	cfg := config("/bin/sh", "-c", "sleep 10")
	c, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Go()
	defer c.Close(true)
	defer c.Kill()
	deadline := time.Now().Add(5 * time.Second)
	for {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		// The control socket and the signal descriptor.
		if len(open) == 2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors open in PID 1: %v", len(open), open)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestConcurrent(t *testing.T) {
	before := openFDs(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range 10 {
				want := (i*10 + j) % 200
				exit, err := run(t, config("/bin/sh", "-c", "exit "+strconv.Itoa(want)))
				if err != nil || exit.Status.ExitStatus() != want {
					t.Errorf("%+v, %v: want exit code %d", exit, err, want)
				}
			}
		}()
	}
	// Garbage is made and collected meanwhile: the stage must not care.
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	wg.Wait()
	close(stop)
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestSocket: sockets come from the network namespace of the stage, before Go
// and while the command runs, and their creator's rights there go with them.
func TestSocket(t *testing.T) {
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own)
	cookie := func(fd int) uint64 {
		v, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := openFDs(t)
	cfg := config("/bin/sh", "-c", "while :; do sleep 0.01; done")
	cfg.CloneFlags |= unix.CLONE_NEWNET
	cfg.Sockets = true
	c, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		fd, err := c.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer unix.Close(fd)
		if cookie(fd) == cookie(own) {
			t.Errorf("%s: the socket is in the supervisor's own network", when)
		}
		if flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: not close-on-exec", when)
		}
		// A port that only root may have, also for who is not root here.
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 80}); err != nil {
			t.Errorf("%s: bind: %v", when, err)
		}
		if _, err := c.Socket(unix.AF_INET, 77, 0); err != unix.EINVAL && err != unix.ESOCKTNOSUPPORT {
			t.Errorf("%s: a socket of no type: %v", when, err)
		}
	}
	check("before Go")
	c.Go()
	check("after Go")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				fd, err := c.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
				if err != nil {
					t.Error(err)
					return
				}
				unix.Close(fd)
			}
		})
	}
	wg.Wait()
	c.Kill()
	c.Wait()
	if _, err := c.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != syscall.ESRCH {
		t.Errorf("after the end: %v, want ESRCH", err)
	}
	c.Close(true)
	if _, err := c.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != syscall.ESRCH {
		t.Errorf("after Close: %v, want ESRCH", err)
	}
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

// tree is a stage without any namespace.
func tree(script string) *Config {
	cfg := config("/bin/sh", "-c", script)
	cfg.CloneFlags, cfg.Tree, cfg.Init = 0, true, &sys.Program{}
	return cfg
}

// TestTree: without a pid namespace the end of the command is the end of all
// that descends from it, daemons, stopped and deaf processes included, and of
// nothing else.
func TestTree(t *testing.T) {
	neighbour := exec.Command("sleep", "60")
	if err := neighbour.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { neighbour.Process.Kill(); neighbour.Wait() }()
	mark := fmt.Sprintf("60.%d", os.Getpid())
	for _, tt := range []struct {
		script string
		want   syscall.WaitStatus
	}{
		{"exit 0", 0},
		{"exit 7", 7 << 8},
		{"kill -TERM $$", syscall.WaitStatus(syscall.SIGTERM)},
		{"(setsid sh -c 'sleep MARK & sleep MARK' &); trap '' TERM; sleep MARK & (sleep MARK & kill -STOP $!); sleep 0.1; exit 3", 3 << 8},
		{"for i in 1 2 3 4 5; do (setsid setsid sh -c '(sleep MARK &) & sleep MARK' &) & done; sleep 0.1; exit 4", 4 << 8},
	} {
		exit, err := run(t, tree(strings.ReplaceAll(tt.script, "MARK", mark)))
		if err != nil {
			t.Errorf("%s: %v", tt.script, err)
			continue
		}
		if exit.Status != tt.want {
			t.Errorf("%s: status %#x, want %#x", tt.script, exit.Status, tt.want)
		}
		if left := running(mark); left != "" {
			t.Errorf("%s: left behind: %s", tt.script, left)
		}
	}
	if err := neighbour.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process of somebody else's is gone: %v", err)
	}
}

func TestTreeKill(t *testing.T) {
	mark := fmt.Sprintf("61.%d", os.Getpid())
	c, err := Start(tree(strings.ReplaceAll("trap '' TERM; (setsid sleep MARK &); sleep MARK & while :; do sleep MARK; done", "MARK", mark)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Go(); err != nil {
		t.Fatal(err)
	}
	for running(mark) == "" {
		time.Sleep(time.Millisecond)
	}
	if err := c.Kill(); err != nil {
		t.Error(err)
	}
	exit, err := c.Wait()
	if err != nil || !exit.Status.Signaled() || exit.Status.Signal() != syscall.SIGKILL {
		t.Errorf("%+v, %v", exit, err)
	}
	if err := c.Close(true); err != nil {
		t.Error(err)
	}
	if left := running(mark); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// running lists the processes that have a word in their command line.
func running(mark string) string {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), mark) && !strings.Contains(string(b), ".test") {
			return name + " " + strings.ReplaceAll(string(b), "\x00", " ")
		}
	}
	return ""
}

// TestStoppedAtItsEnd: a stage that somebody stops once it has reported how the command
// ended is not waited for: nothing else would end the wait.
func TestStoppedAtItsEnd(t *testing.T) {
	t.Parallel()
	for _, cfg := range []*Config{config("/bin/true"), tree("exit 0")} {
		c, err := Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Go(); err != nil {
			t.Fatal(err)
		}
		if exit, err := c.Wait(); err != nil || exit.Status != 0 {
			t.Fatal(exit, err)
		}
		if err := unix.Kill(c.Pid(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close(true) }()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Error("it is waited for")
			unix.Kill(c.Pid(), unix.SIGKILL)
			<-closed
		}
	}
}
