//go:build unix

package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// KillHolder kills the process that holds a session, for one that does not answer, and what
// is in the sandbox with it. It does nothing if nobody holds the session.
func (s *Store) KillHolder(id string) error {
	pid, err := s.holderOf(id)
	if err != nil || pid == 0 {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer p.Release()
	// Asked again: if the answer is the same, p is that process, whatever its number is
	// used for later.
	if again, err := s.holderOf(id); err != nil || again != pid {
		return err
	}
	var inside []*os.Process
	for _, n := range children(pid) {
		if c, err := os.FindProcess(n); err == nil {
			defer c.Release()
			inside = append(inside, c)
		}
	}
	if err := p.Kill(); err != nil {
		return err
	}
	for _, c := range inside {
		c.Kill() // its first process, which does not end by itself if it is stopped, too
	}
	for end := time.Now().Add(startPatience); s.isHeld(id) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// holderOf is the process that holds a session, 0 for none: who listens there or, if it
// cannot be reached, who is on record and still has the directory locked.
func (s *Store) holderOf(id string) (pid int, err error) {
	conn, err := s.dial(id)
	if err == nil {
		conn.Close()
		return conn.peer, nil
	}
	info, err := s.Recorded(id)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil || info.Pid == 0 || !s.isHeld(id) {
		return 0, err
	}
	// A copy of the lock can outlive the holder.
	line, err := os.ReadFile("/proc/" + strconv.Itoa(info.Pid) + "/cmdline")
	if err != nil || !strings.Contains(string(line), "\x00"+HolderCommand+"\x00") {
		return 0, nil
	}
	return info.Pid, nil
}

// HolderCommand is the first argument of a process that holds a session.
const HolderCommand = "session-holder"

// children are those of a process, by all its threads; see proc_pid_task(5).
func children(pid int) (list []int) {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}
