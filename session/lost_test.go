//go:build unix

package session

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// losing is a driver that loses commands: at their start, at their end, or without a
// terminal that can be used.
type losing struct {
	keeper
	start, end error
	pty        *os.File
}

func (d losing) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	b, err := d.keeper.Open(ctx, p)
	return losingBox{b.(*box), d}, err
}

type losingBox struct {
	*box
	losing
}

func (b losingBox) ExecWithin(ctx context.Context, pr *specs.Process, _ *specs.LinuxResources, stdio driver.Stdio) (driver.Process, error) {
	if b.start != nil {
		return nil, b.start
	}
	p, err := b.box.Exec(ctx, pr, stdio)
	return losingProc{p, b.losing}, err
}

func (b losingBox) Exec(ctx context.Context, pr *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	return b.ExecWithin(ctx, pr, nil, stdio)
}

type losingProc struct {
	driver.Process
	losing
}

func (p losingProc) Pty() *os.File { return p.pty }
func (p losingProc) Wait() (*driver.Status, error) {
	st, err := p.Process.Wait()
	if p.end != nil {
		return nil, p.end
	}
	return st, err
}

// TestLost: whoever waits for a command that may have run learns that, whichever side
// lost it. After any other error it is started again.
func TestLost(t *testing.T) {
	lost := &driver.LostError{Err: driver.ErrSandboxGone, Fix: "do something"}
	closed, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, tt := range []struct {
		name       string
		driver     losing
		terminal   bool
		exec, back int // exit codes
	}{
		{"at its start", losing{start: lost}, false, driver.ExitLost, driver.ExitLost},
		{"its end", losing{end: lost}, false, driver.ExitLost, 0},
		{"its end, for another reason", losing{end: &driver.SetupError{Driver: "bare", Err: syscall.EIO}}, false, driver.ExitLost, 0},
		{"its terminal", losing{pty: closed}, true, 0, driver.ExitLost},
		{"never begun", losing{start: &driver.SetupError{Driver: "bare", Err: syscall.EIO}}, false, driver.ExitSetup, driver.ExitSetup},
		{"no command", losing{end: &driver.CommandError{Command: "x", Err: syscall.EACCES}}, false, driver.ExitNotExecutable, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st := store(t)
			c, _ := holdIn(t, st, "one", tt.driver)
			code := func(err error) int {
				if err == nil {
					return 0
				}
				return driver.ExitCodeOf(err)
			}
			if !tt.terminal {
				_, _, err := run(t, c, "/bin/true")
				if got := code(err); got != tt.exec {
					t.Errorf("exec: %d, want %d: %v", got, tt.exec, err)
				}
				if l := new(driver.LostError); tt.driver.start == lost && (!errors.As(err, &l) || l.Fix != lost.Fix || err.Error() != lost.Error()) {
					t.Errorf("exec: %q, %q", err, driver.HintOf(err))
				}
			}
			_, err := c.Start(&specs.Process{Args: []string{"/bin/true"}, Terminal: tt.terminal})
			if got := code(err); got != tt.back {
				t.Errorf("in the background: %d, want %d: %v", got, tt.back, err)
			}
		})
	}
}

// TestLostHolder: a holder that is gone before it answers may have started the command.
func TestLostHolder(t *testing.T) {
	st := store(t)
	if err := st.Create(&Info{ID: "one", State: Ready}, &policy.Policy{}); err != nil {
		t.Fatal(err)
	}
	l, err := st.listen("one")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			u, err := l.AcceptUnix()
			if err != nil {
				return
			}
			var req request
			c := &conn{UnixConn: u}
			files, _ := c.receive(&req)
			closeFiles(files)
			c.Close()
		}
	}()
	c, err := st.Connect("one")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := run(t, c, "/bin/true"); driver.ExitCodeOf(err) != driver.ExitLost {
		t.Errorf("exec: %v", err)
	}
	if _, err := c.Start(&specs.Process{Args: []string{"/bin/true"}}); driver.ExitCodeOf(err) != driver.ExitLost {
		t.Errorf("in the background: %v", err)
	}
	if err := c.KillCommand(1); driver.ExitCodeOf(err) != driver.ExitSetup {
		t.Errorf("nothing was to begin: %v", err)
	}
}

// TestStartingFirst: the caller has in place what it wants, threads above all, before a
// command can begin: what fails then fails before anything ran.
func TestStartingFirst(t *testing.T) {
	file := t.TempDir() + "/begun"
	process := &specs.Process{Args: []string{"/bin/sh", "-c", ": > " + file}}
	starting := func() {
		time.Sleep(50 * time.Millisecond) // for what is wrong here to show
		if _, err := os.Stat(file); err == nil {
			t.Error("the command had begun")
		}
	}
	c, _ := hold(t, store(t), "one")
	socket, _ := lender(t, &Lender{Version: "1", Birth: "user: me\n"})
	loan, err := Borrow(socket, "1", "user: me\n", somePolicy())
	if err != nil {
		t.Fatal(err)
	}
	for _, exec := range []func(driver.Stdio) (driver.Process, error){
		func(s driver.Stdio) (driver.Process, error) { return c.Exec(t.Context(), process, s) },
		func(s driver.Stdio) (driver.Process, error) { return loan.Exec(t.Context(), process, s, true) },
	} {
		p, err := exec(driver.Stdio{Starting: starting})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := p.Wait(); err != nil || st.ExitCode != 0 {
			t.Errorf("%+v, %v", st, err)
		}
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	}
}
