//go:build unix

package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
)

var _ driver.Sandbox = (*Client)(nil)

// A Client is a session that another process holds.
type Client struct {
	driver.Fixed
	store  *Store
	id     string
	unused atomic.Pointer[conn] // a connection for the first request; nil for none
	holder int                  // the only process to connect to; 0 for whoever has the session's name

	once sync.Once
	done chan struct{}
}

// Connect returns a session that runs. The error is ErrNotFound if there is none
// of that name, and ErrNotRunning if it has ended.
//
// It makes no connection yet, so that a command in a session costs one.
func (s *Store) Connect(id string) (*Client, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	if _, err := s.root.Lstat(id); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("session %s: %w", id, ErrNotFound)
		}
		return nil, err
	}
	return &Client{store: s, id: id}, nil
}

// dial connects and sends the first message. Starting, which may be nil, is called in
// between: the other side has to wake up.
func (c *Client) dial(req *request, starting func(), files ...*os.File) (*conn, error) {
	var err error
	conn := c.unused.Swap(nil)
	if conn == nil {
		conn, err = c.store.dial(c.id)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, c.unreached()
	}
	if errors.Is(err, syscall.EAGAIN) { // more wait for an answer than may
		silent := &SilentError{Session: c.id}
		if info, err := c.store.Recorded(c.id); err == nil {
			silent.Holder = info.Pid
		}
		return nil, silent
	}
	if err != nil {
		return nil, err
	}
	if c.holder != 0 && conn.peer != c.holder {
		conn.Close()
		return nil, fmt.Errorf("session %s: %w", c.id, ErrNotRunning)
	}
	if starting != nil {
		starting()
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	conn.SetWriteDeadline(time.Now().Add(holderPatience))
	err = conn.send(req, fds...)
	conn.SetWriteDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		defer conn.Close()
		return nil, c.unheard(conn, err)
	}
	if err != nil {
		defer conn.Close()
		if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			return nil, err
		}
		// It hung up before it read this, and nothing has happened. It may have said why.
		var r reply
		files, rerr := conn.receive(&r)
		closeFiles(files)
		if rerr == nil && r.Error != nil {
			return nil, r.Error.err()
		}
		return nil, fmt.Errorf("session %s: %w", c.id, driver.ErrSandboxGone)
	}
	return conn, nil
}

// unreached is the error about a session where nobody listens.
func (c *Client) unreached() error {
	info, err := c.store.Recorded(c.id)
	if err == nil && (info.State == Created || info.State == Initializing) {
		return fmt.Errorf("session %s is %s: %w", c.id, info.State, ErrStarting)
	}
	return fmt.Errorf("session %s: %w", c.id, ErrNotRunning)
}

// call makes one request and returns its one reply.
func (c *Client) call(req *request) (*reply, error) {
	conn, err := c.dial(req, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if req.within > 0 {
		conn.SetReadDeadline(time.Now().Add(req.within))
	} else {
		defer c.heed(conn, firstLook)()
	}
	var r reply
	files, err := conn.receive(&r)
	closeFiles(files)
	if err != nil {
		if err = c.unheard(conn, err); req.Process != nil {
			err = &driver.LostError{Err: err}
		}
		return nil, err
	}
	return &r, r.Error.err()
}

// Exec starts a command in the session. Its streams are the caller's own files;
// the session's holder does not see what goes through them. The command ends
// when the calling process does.
func (c *Client) Exec(ctx context.Context, process *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	return c.ExecWithin(ctx, process, nil, stdio)
}

// ExecWithin is Exec with limits of the command's own, within the session's.
func (c *Client) ExecWithin(ctx context.Context, process *specs.Process, limits *specs.LinuxResources,
	stdio driver.Stdio) (driver.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	req, files, err := execRequest(process, stdio)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", c.id, err)
	}
	req.limit(limits)
	conn, err := c.dial(req, stdio.Starting, files...)
	if err != nil {
		return nil, err
	}
	defer c.heed(conn, firstLook)()
	return started(conn, "session "+c.id, c, stdio.Made)
}

// execRequest asks for a command with its streams, which are the files to pass.
func execRequest(process *specs.Process, stdio driver.Stdio) (*request, []*os.File, error) {
	req := &request{Op: "exec", Process: process, Explain: stdio.Explain, Else: stdio.Else, Unasked: stdio.Unasked}
	var files []*os.File
	for _, f := range slices.Concat([]*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr}, stdio.Extra) {
		req.Streams = append(req.Streams, f != nil)
		if f != nil {
			files = append(files, f)
		}
	}
	if len(files) > maxFiles {
		return nil, nil, fmt.Errorf("%d descriptors: %w", len(files), syscall.E2BIG)
	}
	return req, files, nil
}

// limit adds limits of the command's own.
func (r *request) limit(limits *specs.LinuxResources) {
	if limits != nil {
		r.Op, r.Within = r.Op+"-within", limits
	}
}

// started waits until the command that was asked for on a connection runs. The
// connection is the process's then, and closed after an error. What the caller of this
// side wants in place is there before it asks: without room for a thread, Go ends it.
//
// The client is nil for who is no session. Made is as in [driver.Stdio].
func started(conn *conn, where string, c *Client, made func(driver.Process)) (driver.Process, error) {
	p := &remote{conn: conn, where: where, session: c}
	if made != nil {
		made(p)
	}
	var r reply
	ptys, err := conn.receive(&r)
	p.command = r.Command
	if err != nil {
		err = &driver.LostError{Err: p.unheard(err)}
	} else {
		err = r.Error.err()
	}
	if r.Refused && err != nil {
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err == nil && (!r.Started || r.Pty != (len(ptys) == 1)) {
		err = &driver.LostError{Err: fmt.Errorf("%s: unexpected answer", where)}
	}
	if err != nil {
		p.over()
		closeFiles(ptys)
		conn.Close()
		return nil, err
	}
	if r.Pty {
		p.pty = ptys[0]
		// Reads end when the file is closed.
		if err := syscall.SetNonblock(int(p.pty.Fd()), true); err == nil {
			p.pty = renew(p.pty)
		}
	}
	return p, nil
}

// renew makes a file of a descriptor that is non-blocking by now, so that the
// runtime polls it.
func renew(f *os.File) *os.File {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return f
	}
	syscall.CloseOnExec(fd)
	syscall.SetNonblock(fd, true)
	f.Close()
	return os.NewFile(uintptr(fd), "pty")
}

// Status is what was counted since the session began.
func (c *Client) Status() (*driver.Status, error) {
	r, err := c.call(&request{Op: "info"})
	if err != nil {
		return nil, err
	}
	return r.Status, nil
}

// Info describes the session and its commands, and what was counted.
func (c *Client) Info() (*Info, *driver.Status, error) { return c.InfoWithin(holderPatience) }

// InfoWithin is Info for who does not wait longer: the error is a *[SilentError] then.
func (c *Client) InfoWithin(patience time.Duration) (*Info, *driver.Status, error) {
	r, err := c.call(&request{Op: "info", within: patience})
	if err != nil {
		return nil, nil, err
	}
	if r.Info == nil {
		return nil, nil, fmt.Errorf("session %s: unexpected answer", c.id)
	}
	return r.Info, r.Status, nil
}

// Start starts a command in the background: it goes on when the caller ends, and
// its output is kept, up to the session's limit.
func (c *Client) Start(process *specs.Process) (command int, err error) {
	return c.StartWithin(process, nil)
}

// StartWithin is Start with limits of the command's own, within the session's.
func (c *Client) StartWithin(process *specs.Process, limits *specs.LinuxResources) (command int, err error) {
	req := &request{Op: "start", Process: process}
	req.limit(limits)
	r, err := c.call(req)
	if err != nil {
		return 0, err
	}
	return r.Command, nil
}

// Output returns what a background command printed from the offsets on. If there
// is nothing yet it waits so long.
func (c *Client) Output(command int, offset [2]int, wait time.Duration) (*Output, error) {
	out, err := c.OutputPart(command, offset, wait)
	for err == nil && out.More {
		var next *Output
		if next, err = c.OutputPart(command, out.Offset, 0); err == nil {
			next.Stdout, next.Stderr = append(out.Stdout, next.Stdout...), append(out.Stderr, next.Stderr...)
			out = next
		}
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// OutputPart is Output for who passes it on piece by piece: it returns what one
// message takes, and More if there is more than that.
func (c *Client) OutputPart(command int, offset [2]int, wait time.Duration) (*Output, error) {
	r, err := c.call(&request{Op: "output", Command: command, Offset: offset, WaitMS: wait.Milliseconds()})
	if err != nil {
		return nil, err
	}
	if r.Output == nil || r.Output.More && len(r.Output.Stdout)+len(r.Output.Stderr) == 0 {
		return nil, fmt.Errorf("session %s: unexpected answer", c.id)
	}
	return r.Output, nil
}

// KillCommand ends a command and all that it started.
func (c *Client) KillCommand(command int) error {
	_, err := c.call(&request{Op: "kill", Command: command})
	return err
}

// Stop ends the session: its commands get SIGTERM, what is left after the grace
// SIGKILL. The record stays until it is removed.
func (c *Client) Stop(grace time.Duration) error {
	_, err := c.call(&request{Op: "stop", GraceMS: grace.Milliseconds()})
	if errors.Is(err, driver.ErrSandboxGone) {
		// It may have come too late to be answered.
		if info, rerr := c.store.Recorded(c.id); rerr == nil && info.Over() {
			return fmt.Errorf("session %s: %w", c.id, ErrNotRunning)
		}
	}
	return err
}

// Retire ends the session if nothing runs in it, neither a command nor what one has
// left, and reports whether it did. A holder that cannot tell does not.
func (c *Client) Retire() (bool, error) {
	r, err := c.call(&request{Op: "retire"})
	if err != nil {
		return false, err
	}
	return r.Info == nil, nil
}

// Snapshot has the holder keep what was changed in a copy-on-write workspace so
// far. It does nothing in a session without one.
func (c *Client) Snapshot() error {
	_, err := c.call(&request{Op: "snapshot"})
	return err
}

// Close ends the session at once.
func (c *Client) Close() error { return c.Stop(0) }

// End is Close.
func (c *Client) End() error { return c.Close() }

// Done is closed when the session has ended.
func (c *Client) Done() <-chan struct{} {
	c.once.Do(func() {
		c.done = make(chan struct{})
		go func() {
			defer close(c.done)
			for {
				info, err := c.store.Lookup(c.id)
				if err != nil || info.Over() {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}()
	})
	return c.done
}

// remote is a command in another process's sandbox.
type remote struct {
	driver.Fixed
	conn    *conn
	where   string
	command int
	pty     *os.File
	ended   atomic.Bool
	lost    atomic.Bool

	session *Client // nil for none

	mu     sync.Mutex
	unheed func()    // if the holder is asked how it is
	unsent []*asking // the first of them is being sent
}

// asking is a request on its way.
type asking struct {
	*request
	sent chan error
}

// sendsWithin is how long the sending of a request is waited for. One that the holder has no
// room for waits on: once, like a signal that is pending.
const sendsWithin = 100 * time.Millisecond

// urge asks for what is to end the command. From then on the holder has to answer: what
// it does not pass on, nobody else does.
func (p *remote) urge(req *request) error {
	if err := p.ask(req); err != nil || p.session == nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unheed == nil && !p.ended.Load() {
		p.unheed = p.session.heed(p.conn, firstLook)
	}
	return nil
}

// over notes that nothing more is heard of the command.
func (p *remote) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended.Store(true)
	if p.unheed != nil {
		p.unheed()
	}
}

func (p *remote) unheard(err error) error {
	if p.session != nil {
		return p.session.unheard(p.conn, err)
	}
	return fmt.Errorf("%s: %w", p.where, driver.ErrSandboxGone)
}

func (p *remote) ask(req *request) error {
	if p.ended.Load() {
		return syscall.ESRCH
	}
	a := &asking{req, make(chan error, 1)}
	p.mu.Lock()
	for _, b := range p.unsent[min(1, len(p.unsent)):] {
		if b.Op == a.Op && b.Signal == a.Signal {
			p.mu.Unlock()
			return nil
		}
	}
	if p.unsent = append(p.unsent, a); len(p.unsent) == 1 {
		go p.deliver()
	}
	p.mu.Unlock()
	patience := time.NewTimer(sendsWithin)
	defer patience.Stop()
	select {
	case err := <-a.sent:
		if err != nil {
			return syscall.ESRCH
		}
	case <-patience.C:
	}
	return nil
}

// deliver sends what was asked for, in order.
func (p *remote) deliver() {
	for {
		p.mu.Lock()
		if len(p.unsent) == 0 {
			p.mu.Unlock()
			return
		}
		a := p.unsent[0]
		p.mu.Unlock()
		a.sent <- p.conn.send(a.request)
		p.mu.Lock()
		p.unsent = p.unsent[1:]
		p.mu.Unlock()
	}
}

func (p *remote) Signal(sig syscall.Signal) error {
	req := &request{Op: "signal", Signal: int(sig)}
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return p.urge(req)
	}
	return p.ask(req)
}
func (p *remote) Terminate() error { return p.urge(&request{Op: "terminate"}) }
func (p *remote) Kill() error      { return p.urge(&request{Op: "kill"}) }
func (p *remote) Pty() *os.File    { return p.pty }

// Lost reports, once Wait has returned, that nothing more is heard of the command, which may
// still run.
func (p *remote) Lost() bool { return p.lost.Load() }

// Wait returns when the command has ended.
func (p *remote) Wait() (*driver.Status, error) {
	defer p.conn.Close()
	var r reply
	files, err := p.conn.receive(&r)
	p.over()
	closeFiles(files)
	if p.pty != nil {
		p.pty.Close()
	}
	p.lost.Store(err != nil)
	switch {
	case err != nil:
		err = p.unheard(err)
	case r.Error != nil:
		err = r.Error.err()
	case r.Detached:
		return nil, ErrDetached
	case r.Status != nil:
		return r.Status, nil
	default:
		err = fmt.Errorf("%s: unexpected answer", p.where)
	}
	// It has begun, but for one that the kernel did not execute.
	var lost *driver.LostError
	var command *driver.CommandError
	if !errors.As(err, &lost) && !errors.As(err, &command) {
		err = &driver.LostError{Err: err}
	}
	return nil, err
}

func sortInfos(list []*Info) {
	slices.SortFunc(list, func(a, b *Info) int { return strings.Compare(a.ID, b.ID) })
}
