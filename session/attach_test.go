//go:build unix

package session

import (
	"bytes"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// seated is a command with a terminal, of which the test says how it ends.
type seated struct {
	driver.Fixed
	proc
	pty   *os.File
	term  error         // what Terminate says
	asked chan struct{} // closed by Terminate
}

func (p *seated) Pty() *os.File    { return p.pty }
func (p *seated) Terminate() error { close(p.asked); return p.term }

// TestLeftVerdict: how a command ended that was detached from is told as of any
// other.
func TestLeftVerdict(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout bool  // its time is up
		term    error // what is found then
		st      driver.Status
		reason  driver.Reason
		code    int
	}{
		{"exit", false, nil, driver.Status{ExitCode: 3}, driver.ReasonExit, 3},
		{"signal", false, nil, driver.Status{Signal: syscall.SIGKILL}, driver.ReasonSignal, 137},
		{"memory", false, nil, driver.Status{Signal: syscall.SIGKILL, OOMKilled: true}, driver.ReasonOOM, 137},
		{"processes", false, nil, driver.Status{ExitCode: 2, PidsDenied: 1}, driver.ReasonPids, 2},
		{"time", true, nil, driver.Status{Signal: syscall.SIGTERM}, driver.ReasonTimeout, driver.ExitTimeout},
		{"ended before the time", true, syscall.ESRCH, driver.Status{}, driver.ReasonExit, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w, err := os.Pipe() // for a terminal: it is only read here
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			h := &Holder{pol: &policy.Policy{}}
			cmd, err := h.add([]string{"x"}, false)
			if err != nil {
				t.Fatal(err)
			}
			p := &seated{pty: r, term: tt.term, asked: make(chan struct{})}
			h.started(cmd, p, nil)
			l := &limits{KillAfterMS: 60_000}
			if tt.timeout {
				l.WallMS = 1
			}
			if err := h.adopt(cmd, p, l); err != nil {
				t.Fatal(err)
			}
			if tt.timeout {
				select {
				case <-p.asked:
				case <-time.After(10 * time.Second):
					t.Fatal("its time is not seen to")
				}
			}
			h.ended(cmd, &tt.st)
			h.left(cmd, &tt.st)
			out, _ := cmd.out.since([2]int{})
			if res := out.Result; res == nil || res.Reason != tt.reason || res.ExitCode != tt.code {
				t.Errorf("%+v, want %s, %d", res, tt.reason, tt.code)
			}
		})
	}
}

// TestAttachUnread: who attaches and does not read, with a pipe that takes less than was
// shown last, stops nobody but the command; and is shown all of it, in order, when he
// does.
func TestAttachUnread(t *testing.T) {
	// More than any pipe takes.
	last := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	begin := func(t *testing.T) (s *screen, shows *os.File) {
		r, w, err := os.Pipe() // for a terminal
		if err != nil {
			t.Fatal(err)
		}
		s, err = newScreen(r, newOutputs(0))
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		s.last = slices.Clone(last)
		t.Cleanup(func() { w.Close(); s.master.Close() })
		return s, w
	}
	attach := func(t *testing.T, s *screen) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		soon(t, "attach waits for the reader", func() { s.attach(w) })
		return r
	}
	want := func(t *testing.T, r *os.File, want string) {
		t.Helper()
		r.SetReadDeadline(time.Now().Add(10 * time.Second))
		if got, err := io.ReadAll(r); err != nil || string(got) != want {
			t.Errorf("%d bytes that end in %q, %v; want %d", len(got), got[max(len(got)-10, 0):], err, len(want))
		}
	}
	t.Run("goes on", func(t *testing.T) {
		s, shows := begin(t)
		r := attach(t, s)
		s.start()
		shows.WriteString("after")
		soon(t, "the screen is locked", func() {
			s.mu.Lock()
			defer s.mu.Unlock()
		})
		shows.Close()
		want(t, r, string(last)+"after")
	})
	t.Run("has ended", func(t *testing.T) {
		s, _ := begin(t)
		s.end()
		want(t, attach(t, s), string(last))
	})
	t.Run("ends unread", func(t *testing.T) {
		s, _ := begin(t)
		r := attach(t, s)
		soon(t, "the end waits for the reader", s.end)
		want(t, r, string(last))
	})
	t.Run("somebody else attaches", func(t *testing.T) {
		s, shows := begin(t)
		first := attach(t, s)
		second := attach(t, s)
		first.SetReadDeadline(time.Now().Add(10 * time.Second))
		if got, err := io.ReadAll(first); err != nil || !bytes.HasPrefix(last, got) || len(got) == len(last) {
			t.Errorf("the first: %d bytes, %v", len(got), err)
		}
		s.start()
		shows.WriteString("after")
		shows.Close()
		want(t, second, string(last)+"after")
	})
	t.Run("the reader goes", func(t *testing.T) {
		s, shows := begin(t)
		attach(t, s).Close()
		s.start()
		shows.WriteString("after")
		shows.Close()
		soon(t, "the command waits for nobody", func() { <-s.stream.Done() })
	})
}

// soon wants a function to return.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal(what)
	}
}
