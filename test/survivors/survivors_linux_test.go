package survivors

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// running lists a process until it has been waited for.
func running(t *testing.T, name string, args ...string) func() []string {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	return func() []string {
		select {
		case <-done:
			return nil
		default:
			return []string{fmt.Sprint(cmd.Process.Pid, " ", name)}
		}
	}
}

func TestGone(t *testing.T) {
	if err := Gone(running(t, "true")); err != nil {
		t.Error(err)
	}
	if err := Gone(func() []string { return nil }); err != nil {
		t.Error(err)
	}
}

// TestSlow: who sleeps, and who is busy, is not excused by a busy machine. It sleeps
// for long, because the time in which Gone itself has no processor is.
func TestSlow(t *testing.T) {
	for _, args := range [][]string{{"sleep", "6"}, {"sh", "-c", "ulimit -t 2; while :; do :; done"}} {
		err := Gone(running(t, args[0], args[1:]...))
		if err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
