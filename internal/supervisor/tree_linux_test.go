package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A script must not go on because what it waited for was ended before it.
func TestParentsAreSignalledFirst(t *testing.T) {
	c := exec.Command("sh", "-c", `sh -c 'echo begun; sleep 60; echo went on'; echo went on`)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	want := []int{c.Process.Pid}
	for end := time.Now().Add(10 * time.Second); len(want) < 3 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		want = append(want, Children(want[len(want)-1])...)
	}
	var got []int
	for _, fd := range below(nil, syscall.Getpid()) {
		got = append(got, pidOf(t, fd))
		unix.Close(fd)
	}
	if len(want) != 3 || !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	if err := SignalTree(syscall.Getpid(), c.Process.Pid, syscall.SIGTERM, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || strings.Contains(string(rest), "went on") {
		t.Fatalf("%q, %v", rest, err)
	}
	if c.Wait(); c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Fatal(c.ProcessState)
	}
	if err := SignalBelow(c.Process.Pid, syscall.SIGTERM); !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

func pidOf(t *testing.T, pidfd int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var pid int
		if _, err := fmt.Sscanf(line, "Pid:\t%d", &pid); err == nil {
			return pid
		}
	}
	t.Fatalf("%s", b)
	return 0
}

// What the first signal ended was reached, also if it is gone before the second.
func TestTheFirstSignalDecides(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := signalAll(fd, []syscall.Signal{syscall.SIGTERM, 65}); err != nil { // 65 is no signal
		t.Error(err)
	}
	c.Wait()
	if err := signalAll(fd, []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT}); !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
}
