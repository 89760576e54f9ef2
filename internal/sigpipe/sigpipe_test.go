package sigpipe

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain: handlers are the process's, so each test has one of its own.
func TestMain(m *testing.M) {
	if os.Getenv("SIGPIPE_TEST") != "" {
		c := make(chan os.Signal, 8)
		Notify(c, syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGHUP)
		os.Stdout.WriteString("ready\n")
		if os.Getenv("SIGPIPE_TEST") == "slow" {
			time.Sleep(500 * time.Millisecond)
		}
		for {
			select {
			case s := <-c:
				os.Stdout.WriteString(s.String() + "\n")
				if s == syscall.SIGTERM {
					os.Exit(7)
				}
			case <-time.After(10 * time.Second):
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

func start(t *testing.T, argv ...string) (*exec.Cmd, func() string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"SIGPIPE_TEST=1"}, os.Environ()...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	next := func() string {
		buf := make([]byte, 64)
		n, _ := out.Read(buf)
		return strings.TrimSpace(string(buf[:n]))
	}
	if s := next(); s != "ready" {
		t.Fatalf("%q", s)
	}
	return cmd, next
}

func TestNotify(t *testing.T) {
	cmd, next := start(t, "/proc/self/exe")
	for range 50 {
		cmd.Process.Signal(syscall.SIGUSR1)
		if s := next(); s != syscall.SIGUSR1.String() {
			t.Fatalf("got %q", s)
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if s := next(); s != syscall.SIGTERM.String() {
		t.Errorf("got %q", s)
	}
	cmd.Wait()
	if c := cmd.ProcessState.ExitCode(); c != 7 {
		t.Errorf("exit code %d", c)
	}
}

// TestFlood: no number of signals keeps another out, where who acts on them has no turn.
func TestFlood(t *testing.T) {
	t.Setenv("SIGPIPE_TEST", "slow")
	cmd, next := start(t, "/proc/self/exe")
	for range 400 {
		cmd.Process.Signal(syscall.SIGUSR1)
		time.Sleep(time.Millisecond / 2)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	for next() != "" {
	}
	cmd.Wait()
	if c := cmd.ProcessState.ExitCode(); c != 7 {
		t.Errorf("exit code %d", c)
	}
}

// TestOthers: a signal that was not asked for does what it does without this.
func TestOthers(t *testing.T) {
	cmd, _ := start(t, "/proc/self/exe")
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGINT {
		t.Errorf("got %v", cmd.ProcessState)
	}
}

// TestIgnored: what was ignored at the start stays ignored.
func TestIgnored(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, next := start(t, "sh", "-c", `trap "" HUP; exec "$0"`, exe)
	cmd.Process.Signal(syscall.SIGHUP)
	time.Sleep(50 * time.Millisecond)
	cmd.Process.Signal(syscall.SIGUSR1)
	if s := next(); s != syscall.SIGUSR1.String() {
		t.Errorf("got %q", s)
	}
}
