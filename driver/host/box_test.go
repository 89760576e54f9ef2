package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// TestBox: commands run beside each other, as said, and Close ends them.
func TestBox(t *testing.T) {
	dir := t.TempDir()
	b := (&Driver{}).Box(&policy.Policy{OCI: &specs.Spec{Version: specs.Version, Process: &specs.Process{Args: []string{"/"}, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/"}}})
	start := func(args ...string) driver.Process {
		t.Helper()
		p, err := b.Exec(t.Context(), &specs.Process{Args: args, Cwd: dir}, driver.Stdio{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start("sh", "-c", "pwd > here; exit 7")
	if st, err := p.Wait(); err != nil || st.ExitCode != 7 {
		t.Errorf("%+v, %v", st, err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "here")); err != nil || string(got) != real+"\n" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := b.Exec(t.Context(), &specs.Process{Args: []string{"no-such-command"}}, driver.Stdio{}); driver.ExitCodeOf(err) != driver.ExitNotFound {
		t.Error(err)
	}
	long := start("sleep", "1000")
	waited := make(chan *driver.Status, 1)
	go func() { st, _ := long.Wait(); waited <- st }()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if st := <-waited; st == nil || st.Signal == 0 {
		t.Errorf("not ended: %+v", st)
	}
	select {
	case <-b.Done():
	default:
		t.Error("closed, and not done")
	}
	if _, err := b.Exec(t.Context(), &specs.Process{Args: []string{"true"}}, driver.Stdio{}); !errors.Is(err, driver.ErrSandboxGone) {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
