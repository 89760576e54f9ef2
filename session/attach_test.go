//go:build unix

package session

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// seated is a command with a terminal, of which the test says how it ends.
type seated struct {
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
