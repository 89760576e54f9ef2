package pool_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/profiles"
)

// strict is the strict policy; no directory is no workspace.
func strict(t testing.TB, dir string) *policy.Policy {
	t.Helper()
	req := &profiles.Request{Command: []string{"none"}, Dir: dir, Degrade: policy.LayerCgroup}
	if dir == "" {
		req.Dir, req.Workspace = "/usr", "none"
	}
	r, err := profiles.Resolve(req, &profiles.Facts{Home: "/nonexistent", Cwd: "/usr", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	return r.Policy
}

func newPool(t testing.TB, s pool.Settings) *pool.Pool {
	t.Helper()
	if err := (native.Driver{}).Available(context.Background()); err != nil {
		t.Skip("the native driver is needed: ", err)
	}
	p, err := pool.New(pool.Config{Driver: native.Driver{}, Policy: strict(t, ""), Settings: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// run runs a script and returns what it printed.
func run(b driver.Sandbox, script string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	p, err := b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", script}}, driver.Stdio{Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		return "", err
	}
	out, _ := io.ReadAll(r)
	_, err = p.Wait()
	return string(out), err
}

// TestWorkspaces: each owner has a workspace of its own, and nothing of another.
func TestWorkspaces(t *testing.T) {
	p := newPool(t, pool.Settings{})
	if err := p.Ready(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		dir := t.TempDir()
		b, err := p.Acquire(t.Context(), strict(t, dir))
		if err != nil {
			t.Fatal(err)
		}
		out, err := run(b, "cat /tmp/left ~/left 2>/dev/null; echo left > /tmp/left; echo left > ~/left; sleep 1000 >/dev/null 2>&1 & pwd; echo "+strconv.Itoa(i)+" > mine; ls")
		if err != nil || !b.Pooled || out != dir+"\nmine\n" {
			t.Errorf("%q, pooled %t, %v", out, b.Pooled, err)
		}
		if got, err := os.ReadFile(dir + "/mine"); err != nil || string(got) != strconv.Itoa(i)+"\n" {
			t.Errorf("%q, %v", got, err)
		}
		b.Close()
	}
	// A workspace that is put into the policy by hand.
	dir := t.TempDir()
	b, err := p.Acquire(t.Context(), pool.WithWorkspace(p.Policy(), dir, policy.Read))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if out, err := run(b, "pwd; touch x || echo read-only"); err != nil || !b.Pooled || !strings.HasPrefix(out, dir+"\n") || !strings.HasSuffix(out, "read-only\n") {
		t.Errorf("%q, pooled %t, %v", out, b.Pooled, err)
	}
}

// children are the processes that this one has cloned: the members of pools.
func children(t *testing.T) (pids []int) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestKilledAtRandom kills members while sandboxes are handed out and used. Who is
// given one gets on with it or sees that it is gone; the pool goes on, and nothing
// is left in the end.
func TestKilledAtRandom(t *testing.T) {
	p := newPool(t, pool.Settings{})
	dir := t.TempDir()
	pol := strict(t, dir)
	stop := make(chan struct{})
	var killer, owners sync.WaitGroup
	kills := 0
	killer.Go(func() {
		for kills < 200 {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
			}
			// Not reaped before its pid is read: this process is the parent.
			if pids := children(t); len(pids) > 0 {
				syscall.Kill(pids[rand.IntN(len(pids))], syscall.SIGKILL)
				kills++
			}
		}
	})
	fine, gone := 0, 0
	var mu sync.Mutex
	for i := range 4 {
		owners.Go(func() {
			for j := range 40 {
				b, err := p.Acquire(context.Background(), pol)
				if err != nil {
					continue // a sandbox that was being built was killed
				}
				want := fmt.Sprintf("%d %d\n", i, j)
				out, err := run(b, fmt.Sprintf("echo %d %d", i, j))
				mu.Lock()
				if err == nil && out == want {
					fine++
				} else {
					gone++
					if out != "" && out != want {
						t.Errorf("%q, want %q", out, want)
					}
				}
				mu.Unlock()
				b.Close()
			}
		})
	}
	owners.Wait()
	close(stop)
	killer.Wait()
	if kills == 0 || fine == 0 {
		t.Errorf("%d kills, %d commands ran, %d did not", kills, fine, gone)
	}
	// It recovers.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Ready(ctx, 5); err != nil {
		t.Fatal(err, p.Stats())
	}
	b, err := p.Acquire(ctx, pol)
	if err != nil || !b.Pooled {
		t.Fatalf("%+v, %v", b, err)
	}
	if out, err := run(b, "echo fine"); err != nil || out != "fine\n" {
		t.Errorf("%q, %v", out, err)
	}
	b.Close()
	s := p.Stats()
	t.Logf("%d kills, %d commands ran, %d did not: %+v", kills, fine, gone, s)
	if s.Out != 0 {
		t.Errorf("%+v", s)
	}
	p.Close()
	if pids := children(t); len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
}

func BenchmarkAcquireExec(b *testing.B) {
	p := newPool(b, pool.Settings{TargetSize: 10})
	pol := strict(b, b.TempDir())
	for b.Loop() {
		b.StopTimer()
		if err := p.Ready(b.Context(), 10); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		s, err := p.Acquire(b.Context(), pol)
		if err != nil {
			b.Fatal(err)
		}
		proc, err := s.Exec(b.Context(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{})
		if err != nil {
			b.Fatal(err)
		}
		proc.Wait()
		b.StopTimer()
		s.Close()
		b.StartTimer()
	}
}

func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		p.Wait()
	}
}
