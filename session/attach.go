//go:build unix

package session

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// ErrDetached says that a command was left to itself: it goes on in its session.
var ErrDetached = errors.New("detached from the command, which goes on")

// keepScreen is how much of a terminal's last output is kept for who attaches,
// bytes.
const keepScreen = 32 << 10

// screen is the terminal of a command that needs no client. What it shows is read
// here, kept, and passed on to who is attached.
type screen struct {
	master *os.File
	out    *outputs // what logs show
	stream *driver.Stream

	mu     sync.Mutex // guards what follows
	last   []byte
	to     *viewer   // who is attached, or nil
	over   bool      // the command has ended
	queue  []func()  // what is still to be shown, in order
	passed sync.Cond // on mu: the queue is empty
}

// viewer is who is attached to a screen, by a pipe. As long as that is not read it may
// take nothing: a new one of a user who has many holds two pages only; see
// /proc/sys/fs/pipe-user-pages-soft in pipe(7).
type viewer struct {
	pipe *os.File
	mu   sync.Mutex // one writer at a time, and what was shown last is the first
}

func (v *viewer) write(b []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := v.pipe.Write(b)
	return err
}

// finish closes the pipe once all that was written is in it. It waits for its reader,
// or for the end of that.
func (v *viewer) finish() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pipe.Close()
}

// newScreen takes over a terminal, of which it makes a descriptor of its own.
func newScreen(pty *os.File, out *outputs) (*screen, error) {
	raw, err := pty.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if cerr := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 3) }); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, err
	}
	unix.SetNonblock(fd, true) // so that Close ends a Read
	s := &screen{master: os.NewFile(uintptr(fd), "pty"), out: out}
	s.passed.L = &s.mu
	return s, nil
}

// start reads until no process has the terminal open any more; see pty(7).
func (s *screen) start() {
	s.stream = driver.NewStream(s.master, s.show, s.pace)
	go func() {
		<-s.stream.Done()
		s.end()
		s.stream.Close()
	}()
}

// show keeps what the terminal shows, and has it passed on to who is attached.
func (s *screen) show(b []byte) {
	s.out.add(0, b)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = append(s.last, b...)
	if more := len(s.last) - keepScreen; more > 0 {
		s.last = append(s.last[:0], s.last[more:]...)
	}
	if to, b := s.to, slices.Clone(b); to != nil {
		s.later(func() {
			if err := to.write(b); err != nil {
				s.leave(to)
			}
		})
	}
}

// pace waits for who is attached: as long as he does not read, the command waits, as
// at any terminal.
func (s *screen) pace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		s.passed.Wait()
	}
}

// later calls a function after those that were given before.
//
// Preconditions: the caller holds mu.
func (s *screen) later(f func()) {
	s.queue = append(s.queue, f)
	if len(s.queue) > 1 {
		return
	}
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(s.queue) > 0 {
			next := s.queue[0]
			s.mu.Unlock()
			next()
			s.mu.Lock()
			s.queue = s.queue[1:]
		}
		s.passed.Broadcast()
	}()
}

// attach passes on to a pipe what was shown last, and what is shown from now on.
// Who was attached before is not any more. It does not wait for the pipe's reader.
func (s *screen) attach(pipe *os.File) *viewer {
	v := &viewer{pipe: pipe}
	v.mu.Lock() // before run can write
	s.mu.Lock()
	before, last, over := s.to, slices.Clone(s.last), s.over
	s.to = v
	if over {
		s.to = nil
	}
	s.mu.Unlock()
	if before != nil {
		before.pipe.Close()
	}
	go func() {
		_, err := v.pipe.Write(last)
		v.mu.Unlock()
		if err != nil || over {
			s.leave(v)
		}
	}()
	return v
}

// leave lets go of who is attached, at once.
func (s *screen) leave(v *viewer) {
	s.mu.Lock()
	if s.to == v {
		s.to = nil
	}
	s.mu.Unlock()
	v.pipe.Close()
}

// end lets go of who is attached when what it was shown is in the pipe, for the
// command has ended.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil {
		s.later(s.to.finish)
	}
	s.to, s.over = nil, true
}

// adopt makes a command with a terminal, of which the client wants to go, one that
// needs none.
func (h *Holder) adopt(cmd *command, p driver.Process, l *limits) error {
	if p.Pty() == nil {
		return &policy.InvalidError{Field: "command", Value: fmt.Sprint(cmd.info.ID), Want: "a command with a terminal"}
	}
	out := newOutputs(h.pol.Limits.Output)
	scr, err := newScreen(p.Pty(), out)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !cmd.info.Running {
		scr.master.Close()
		return syscall.ESRCH
	}
	scr.start()
	cmd.info.Background, cmd.out, cmd.screen = true, out, scr
	var wall, killAfter time.Duration
	if l != nil {
		wall, killAfter = time.Duration(l.WallMS)*time.Millisecond, time.Duration(l.KillAfterMS)*time.Millisecond
	}
	cmd.watch = driver.NewWatch(p, wall, killAfter)
	return nil
}

// left completes a command that was adopted, once it has ended.
func (h *Holder) left(cmd *command, st *driver.Status) {
	h.mu.Lock()
	scr, out, watch := cmd.screen, cmd.out, cmd.watch
	h.mu.Unlock()
	if scr == nil {
		return
	}
	watch.Stop()
	if st == nil {
		return
	}
	res := &driver.Result{Driver: h.info.Driver, Sandboxed: true, Profile: h.info.Profile}
	watch.Verdict(res, st)
	out.finish(res, scr.stream.Settle())
	scr.end()
}

// attach lets a client see and use the terminal of a command, until it hangs up.
func (h *Holder) attach(c *conn, req *request) error {
	cmd, err := h.attachable(req.Command)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	v := cmd.screen.attach(w)
	master, err := cmd.screen.master.SyscallConn()
	if err == nil {
		cerr := master.Control(func(fd uintptr) {
			err = c.send(reply{Started: true, Command: cmd.info.ID}, int(fd), int(r.Fd()))
		})
		err = errors.Join(err, cerr)
	}
	r.Close()
	for err == nil {
		var more request
		var files []*os.File
		files, err = c.receive(&more)
		closeFiles(files)
		if err == nil && more.Op == "signal" {
			cmd.proc.Signal(syscall.Signal(more.Signal))
		}
	}
	cmd.screen.leave(v)
	return nil
}

// attachable finds a command with a terminal that is the holder's, 0 for the one
// that was started last.
func (h *Holder) attachable(id int) (*command, error) {
	if id != 0 {
		cmd, err := h.find(id)
		if err != nil {
			return nil, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case !cmd.info.Running:
			return nil, &policy.InvalidError{Field: "command", Value: fmt.Sprint(id), Want: "one that has not ended"}
		case cmd.screen == nil:
			return nil, &policy.InvalidError{Field: "command", Value: fmt.Sprint(id),
				Want: "one with a terminal that nobody else has"}
		}
		return cmd, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.commands) - 1; i >= 0; i-- {
		if cmd := h.commands[i]; cmd.info.Running && cmd.screen != nil {
			return cmd, nil
		}
	}
	return nil, &NoCommandError{Session: h.info.ID}
}

// An Attachment is a terminal of a session's command.
type Attachment struct {
	Command  int
	Terminal *os.File // for input, and its size
	Output   *os.File // what it shows: the last first. It ends with the command, or when somebody else attaches.

	conn *conn
}

// Attach returns the terminal of a command that was started in the background, or
// detached from; 0 is the one that was started last.
func (c *Client) Attach(command int) (*Attachment, error) {
	conn, err := c.dial(&request{Op: "attach", Command: command}, nil)
	if err != nil {
		return nil, err
	}
	stop := c.heed(conn, firstLook)
	var r reply
	files, err := conn.receive(&r)
	stop()
	if err != nil {
		err = c.unheard(conn, err)
	} else if err = r.Error.err(); err == nil && len(files) != 2 {
		err = fmt.Errorf("session %s: unexpected answer", c.id)
	}
	if err != nil {
		closeFiles(files)
		conn.Close()
		return nil, err
	}
	return &Attachment{Command: r.Command, Terminal: files[0], Output: files[1], conn: conn}, nil
}

// Close detaches.
func (a *Attachment) Close() error {
	a.Terminal.Close()
	a.Output.Close()
	return a.conn.Close()
}

// Detach leaves a command with a terminal to itself: its holder keeps what it
// shows. Wait returns ErrDetached then. What is left of the time limit is for the
// holder to see to, 0 for none.
func (p *remote) Detach(wall, killAfter time.Duration) error {
	return p.urge(&request{Op: "detach",
		Limits: &limits{WallMS: wall.Milliseconds(), KillAfterMS: killAfter.Milliseconds()}})
}

// Command is the number of the command in its session.
func (p *remote) Command() int { return p.command }
