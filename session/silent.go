//go:build unix

package session

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
)

// A SilentError says that a session's holder is there and does not answer: somebody
// stopped it, or it gets no turn.
type SilentError struct {
	Session string
	Holder  int // its process
}

func (e *SilentError) Error() string { return "session " + e.Session + ": " + e.Notice() }

// Notice is what to say of the session.
func (e *SilentError) Notice() string {
	return "its holder, process " + strconv.Itoa(e.Holder) + ", does not answer"
}

// Hint says what to do.
func (e *SilentError) Hint() string {
	return "if somebody stopped it: kill -CONT " + strconv.Itoa(e.Holder) + "; otherwise sbxrun session rm --force " +
		e.Session + " ends it and its commands"
}

// A holder on a busy machine may take long to answer. It is asked how it is once a
// request took firstLook, then now and again, and given up if it says nothing for
// holderPatience.
const (
	firstLook      = 2 * time.Second
	holderPatience = 20 * time.Second
)

// heed ends the reading of a connection when the session's holder does not answer,
// which it is asked after a while and then again and again, until the caller calls
// stop. The error of the reading is a deadline's then; see [Client.unheard].
func (c *Client) heed(conn *conn, after time.Duration) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(after, func() {
		var silent *SilentError
		_, _, err := c.InfoWithin(holderPatience)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case stopped:
		case errors.As(err, &silent):
			conn.SetReadDeadline(time.Unix(1, 0))
		default: // or it is gone, which the connection tells
			timer.Reset(holderPatience)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// unheard is the error of a session that told nothing, by that of a connection to it.
func (c *Client) unheard(conn *conn, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &SilentError{c.id, conn.peer}
	}
	return fmt.Errorf("session %s: %w", c.id, driver.ErrSandboxGone)
}

// KillHolder kills the process that holds the session, for one that does not answer. The
// kernel kills what is in the sandbox then.
func (c *Client) KillHolder() error {
	conn, err := c.store.dial(c.id)
	if err != nil {
		return err
	}
	pid := conn.peer
	conn.Close()
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer p.Release()
	// As long as somebody listens, the number is that holder's, and no other process's.
	if conn, err = c.store.dial(c.id); err != nil {
		return err
	}
	defer conn.Close()
	if conn.peer != pid {
		return fmt.Errorf("session %s: %w", c.id, syscall.EAGAIN)
	}
	if err := p.Kill(); err != nil {
		return err
	}
	for end := time.Now().Add(startPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if conn, err := c.store.dial(c.id); err == nil {
			conn.Close()
			continue
		}
		break // nobody listens any more
	}
	return nil
}
