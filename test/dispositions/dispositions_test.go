//go:build linux

package dispositions

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// TestDefault: a program ignores SIGHUP if this process does, and does not after
// Default.
func TestDefault(t *testing.T) {
	if os.Getenv("DISPOSITIONS_TEST") == "" {
		cmd := exec.Command("sh", "-c", `trap "" HUP; exec "$0" -test.run TestDefault -test.v`, os.Args[0])
		cmd.Env = append(os.Environ(), "DISPOSITIONS_TEST=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "before: ended, after: HUP") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if !signal.Ignored(syscall.SIGHUP) {
		t.Fatal("the shell did not ignore SIGHUP")
	}
	ends := func() string {
		cmd := exec.Command("sh", "-c", "kill -HUP $$; :")
		cmd.Run()
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() && ws.Signal() == syscall.SIGHUP {
			return "HUP"
		}
		return "ended"
	}
	before := ends()
	Default()
	t.Logf("before: %s, after: %s", before, ends())
}
