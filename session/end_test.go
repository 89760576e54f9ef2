//go:build unix

package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// slow is a keeper whose sandboxes open and close when the test says so.
type slow struct {
	keeper
	open, close chan struct{} // nil: at once
}

func (k slow) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	if k.open != nil {
		<-k.open
	}
	b, err := k.keeper.Open(ctx, p)
	if err != nil || k.close == nil {
		return b, err
	}
	return slowBox{b.(*box), k.close}, nil
}

type slowBox struct {
	*box
	may chan struct{}
}

func (b slowBox) Close() error {
	<-b.may
	return b.box.Close()
}

// eventually waits for what another goroutine does.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// wantKept wants a session that is not to be removed, by whatever way.
func wantKept(t *testing.T, st *Store, id string, state State) {
	t.Helper()
	if info, err := st.Lookup(id); err != nil || info.State != state {
		t.Errorf("%+v, %v, want %s", info, err, state)
	}
	if err := st.Remove(id); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("removed: %v", err)
	}
	if gone, err := st.Prune(0); err != nil || len(gone) != 0 {
		t.Errorf("pruned %v, %v", gone, err)
	}
	if err := st.Record(&Info{ID: id, State: Failed}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("another wrote its record: %v", err)
	}
}

// TestEnding: a session whose sandbox takes its time to end says so until it has, takes
// no command, and is not removed meanwhile.
func TestEnding(t *testing.T) {
	for _, dies := range []bool{false, true} {
		st, may := store(t), make(chan struct{})
		var b *box
		c, ended := holdIn(t, st, "one", slow{keeper: keeper{opened: &b}, close: may})
		stops := make(chan error, 2)
		if dies {
			b.Close()
		} else {
			go func() { stops <- c.Stop(0) }()
		}
		eventually(t, "it does not say that it ends", func() bool {
			info, err := st.Recorded("one")
			return err == nil && info.State == Stopping
		})
		wantKept(t, st, "one", Stopping)
		if info, _, err := c.Info(); err != nil || info.State != Stopping {
			t.Errorf("%+v, %v", info, err)
		}
		if _, _, err := run(t, c, "true"); !errors.Is(err, ErrEnding) || !errors.Is(err, ErrNotRunning) || !errors.Is(err, driver.ErrSandboxGone) {
			t.Errorf("a command: %v", err)
		}
		if _, err := c.Start(&specs.Process{Args: []string{"true"}}); !errors.Is(err, ErrEnding) {
			t.Errorf("a command in the background: %v", err)
		}
		go func() { stops <- c.Stop(0) }()
		select {
		case err := <-stops:
			t.Errorf("stopped before it had ended: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(may)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := <-stops; err != nil {
			t.Error(err)
		}
		want := Stopped
		if dies {
			want = Failed
		}
		if info, err := st.Lookup("one"); err != nil || info.State != want || info.Pid != 0 {
			t.Errorf("%+v, %v, want %s", info, err, want)
		}
		if err := st.Remove("one"); err != nil {
			t.Error(err)
		}
	}
}

// TestStopTooLate: who asks for the end of a session when it is all but over is told
// that it has ended.
func TestStopTooLate(t *testing.T) {
	st := store(t)
	if err := st.Create(&Info{ID: "one", State: Stopped}, &policy.Policy{}); err != nil {
		t.Fatal(err)
	}
	l, err := st.listen("one")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}()
	c, err := st.Connect("one")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(0); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
}

// TestSlowStart: a session that is still being opened when its holder would count as
// dead is not taken for one whose holder is.
func TestSlowStart(t *testing.T) {
	st, may := store(t), make(chan struct{})
	p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}}}
	if err := st.Create(&Info{ID: "one", State: Created, Created: time.Now().Add(-time.Hour)}, p); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Hold(ctx, st, slow{open: may}, &Spec{ID: "one", Policy: p}, nil)
	}()
	eventually(t, "it does not begin", func() bool {
		info, err := st.Recorded("one")
		return err == nil && info.State == Initializing
	})
	wantKept(t, st, "one", Initializing)
	if err := Hold(ctx, st, keeper{}, &Spec{ID: "one", Policy: p}, nil); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("held twice: %v", err)
	}
	close(may)
	eventually(t, "it does not become ready", func() bool {
		info, err := st.Lookup("one")
		return err == nil && info.State == Ready
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := st.Remove("one"); err != nil {
		t.Error(err)
	}
}

// TestNameAgain: a holder whose directory was taken from it by force writes nothing into
// that of another session by its name.
func TestNameAgain(t *testing.T) {
	st := store(t)
	c, ended := hold(t, st, "one")
	info, _, err := c.Info()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(st.dir, "one")
	if err := os.Rename(filepath.Join(dir, socketFile), filepath.Join(st.dir, socketFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	again := &Info{ID: "one", State: Created, Created: info.Created.Add(time.Hour)}
	if err := st.Create(again, &policy.Policy{}); err != nil {
		t.Fatal(err)
	}
	// The old one is reached once more, by its own socket.
	if err := os.Rename(filepath.Join(st.dir, socketFile), filepath.Join(dir, socketFile)); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(0); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its last record: %v", err)
	}
	if now, err := st.Recorded("one"); err != nil || now.State != Created || !now.Created.Equal(again.Created) {
		t.Errorf("%+v, %v", now, err)
	}
}

// TestRemoveRechecks: who waited for a session's directory to be free removes neither
// one that was made since by that name, nor anything at all once it is gone.
func TestRemoveRechecks(t *testing.T) {
	st := store(t)
	if err := st.Create(&Info{ID: "one", State: Stopped}, &policy.Policy{}); err != nil {
		t.Fatal(err)
	}
	d, err := st.hold("one", 0)
	if err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- st.Remove("one") }()
	time.Sleep(50 * time.Millisecond) // it waits
	if err := os.RemoveAll(filepath.Join(st.dir, "one")); err != nil {
		t.Fatal(err)
	}
	if err := st.Create(&Info{ID: "one", State: Created, Created: time.Now()}, &policy.Policy{}); err != nil {
		t.Fatal(err)
	}
	d.close()
	if err := <-removed; !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if info, err := st.Lookup("one"); err != nil || info.State != Created {
		t.Errorf("%+v, %v", info, err)
	}
}

// startsLate is a keeper whose commands start when the test says so.
type startsLate struct {
	keeper
	may chan struct{}
}

func (k startsLate) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	b, err := k.keeper.Open(ctx, p)
	if err != nil {
		return nil, err
	}
	return lateBox{b.(*box), k.may}, nil
}

type lateBox struct {
	*box
	may chan struct{}
}

func (b lateBox) Exec(ctx context.Context, pr *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	<-b.may
	return b.box.Exec(ctx, pr, stdio)
}

func (b lateBox) ExecWithin(ctx context.Context, pr *specs.Process, limits *specs.LinuxResources, stdio driver.Stdio) (driver.Process, error) {
	<-b.may
	return b.box.ExecWithin(ctx, pr, limits, stdio)
}

// TestKillWhileStarting: a command that is killed before it has started is killed.
func TestKillWhileStarting(t *testing.T) {
	st, may := store(t), make(chan struct{})
	c, _ := holdIn(t, st, "one", startsLate{keeper{}, may})
	go c.Start(&specs.Process{Args: []string{"/bin/sleep", "600"}})
	eventually(t, "the command is not there", func() bool {
		info, _, err := c.Info()
		return err == nil && len(info.Commands) == 1
	})
	killed := make(chan error, 1)
	go func() { killed <- c.KillCommand(1) }()
	select {
	case err := <-killed:
		t.Fatalf("killed before it was there: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(may)
	if err := <-killed; err != nil {
		t.Error(err)
	}
	if info, _, err := c.Info(); err != nil || len(info.Commands) != 1 || info.Commands[0].Running {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestStopWhileStarting: a command that is just starting when its session is stopped gets
// SIGTERM and its grace, as those that run. It was killed at once. One that does not begin
// in that time is told not to have run.
func TestStopWhileStarting(t *testing.T) {
	for _, background := range []bool{false, true} {
		st, may := store(t), make(chan struct{})
		c, ended := holdIn(t, st, "one", startsLate{keeper{}, may})
		seen := t.TempDir() + "/seen"
		process := &specs.Process{Args: []string{"/bin/sh", "-c",
			`trap 'echo term >"$0"; exit 9' TERM; echo ready >"$0"; sleep 60 & wait`, seen}}
		status := make(chan *driver.Status, 1)
		go func() {
			if background {
				c.Start(process)
				status <- nil
				return
			}
			p, err := c.Exec(context.Background(), process, driver.Stdio{})
			if err != nil {
				t.Error(err)
				status <- nil
				return
			}
			s, err := p.Wait()
			if err != nil {
				t.Error(err)
			}
			status <- s
		}()
		eventually(t, "the command is not there", func() bool {
			info, _, err := c.Info()
			return err == nil && len(info.Commands) == 1
		})
		stopped := make(chan error, 1)
		begin := time.Now()
		go func() { stopped <- c.Stop(20 * time.Second) }()
		eventually(t, "it is not stopping", func() bool {
			info, _, err := c.Info()
			return err == nil && info.State == Stopping
		})
		select {
		case err := <-stopped:
			t.Fatalf("stopped before the command could begin: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(may)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("took %v", took)
		}
		// The trap may not have been there yet.
		if s := <-status; s != nil && s.ExitCode != 9 && s.Signal != syscall.SIGTERM {
			t.Errorf("%+v", s)
		}
		if b, err := os.ReadFile(seen); err == nil && string(b) != "term\n" {
			t.Errorf("%q", b)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestStopNeverBegun: whoever asked for a command that does not begin before the session
// ends is told that nothing ran.
func TestStopNeverBegun(t *testing.T) {
	st, failing := store(t), make(chan struct{})
	c, ended := holdIn(t, st, "one", endsStarts{keeper{}, failing})
	failed := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{})
		failed <- err
	}()
	eventually(t, "the command is not there", func() bool {
		info, _, err := c.Info()
		return err == nil && len(info.Commands) == 1
	})
	if err := c.Stop(100 * time.Millisecond); err != nil {
		t.Error(err)
	}
	// The holder's process ends with this.
	<-ended
	select {
	case <-failing:
	default:
		t.Error("the holder does not wait until it can answer")
	}
	if err := <-failed; driver.ExitCodeOf(err) != driver.ExitSetup {
		t.Errorf("%v", err)
	}
}

// endsStarts is a keeper in which no command starts; those that were to have an error when
// the sandbox has been gone for a moment.
type endsStarts struct {
	keeper
	failing chan struct{} // closed when a start fails
}

func (k endsStarts) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	b, err := k.keeper.Open(ctx, p)
	if err != nil {
		return nil, err
	}
	return endsBox{b.(*box), k.failing}, nil
}

type endsBox struct {
	*box
	failing chan struct{}
}

func (b endsBox) ExecWithin(context.Context, *specs.Process, *specs.LinuxResources,
	driver.Stdio) (driver.Process, error) {
	<-b.done
	time.Sleep(100 * time.Millisecond)
	close(b.failing)
	return nil, fmt.Errorf("not begun: %w", driver.ErrSandboxGone)
}

func (b endsBox) Exec(ctx context.Context, pr *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	return b.ExecWithin(ctx, pr, nil, stdio)
}
