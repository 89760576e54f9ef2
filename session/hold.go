//go:build unix

package session

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/policy"
)

// keepEnded is how many commands that have ended a holder remembers, with the
// output of those that ran in the background.
const keepEnded = 64

// A Holder keeps one session.
type Holder struct {
	dir  *held
	info Info
	box  driver.Sandbox
	pol  *policy.Policy

	notice func() string    // nil for none
	board  *questions.Board // nil: it does not ask

	mu       sync.Mutex
	stopping bool
	lastID   int
	commands []*command // in the order in which they were started
	stopped  chan struct{}
	asked    sync.WaitGroup // requests for a command that are to be answered

	over chan struct{}   // closed when the session's end is on record
	told []chan struct{} // each closed when one who asked for it knows
	err  error           // of what was to be kept of the sandbox
}

// An idler is a sandbox that can tell whether nothing runs in it.
type idler interface{ Idle() bool }

// A snapshotter is a sandbox that can keep what was changed in it so far.
type snapshotter interface{ Snapshot() error }

// command is one that runs or ran in the session.
type command struct {
	info CommandInfo
	proc driver.Process
	out  *outputs // of a background command, else nil
	done chan struct{}

	began chan struct{} // closed when proc is there, or there will be none

	screen *screen       // its terminal, if that is the holder's
	watch  *driver.Watch // sees to its time limit and its verdict, if that is the holder's to do
}

// Hold opens the sandbox of a session, of which the directory exists, and serves
// it until it is stopped, or ends. Started is called when clients can reach it.
// Before that nothing is left of the sandbox if there is an error; the session's
// directory is the caller's.
func Hold(ctx context.Context, st *Store, d driver.Driver, spec *Spec, started func()) error {
	// Nobody removes it while this process may write there.
	dir, err := st.hold(spec.ID, lookPatience)
	if err != nil {
		return err
	}
	unlock := sync.OnceFunc(dir.close)
	defer unlock()
	info, err := st.Recorded(spec.ID)
	if err != nil {
		return err
	}
	h := &Holder{dir: dir, info: *info, pol: spec.Policy, notice: spec.Notice, board: spec.Board,
		stopped: make(chan struct{}),
		over:    make(chan struct{})}
	h.info.Pid = os.Getpid()
	h.info.State = Initializing
	if err := dir.record(&h.info); err != nil {
		return err
	}
	if h.box, err = d.Open(ctx, spec.Policy); err != nil {
		return err
	}
	defer h.box.Close()
	l, err := dir.listen()
	if err != nil {
		return err
	}
	defer l.Close()
	h.info.State = Ready
	if err := dir.record(&h.info); err != nil {
		return err
	}
	go h.accept(l)
	if started != nil {
		started()
	}
	select {
	case <-ctx.Done():
		h.stop(stopGrace, false)
	case <-h.stopped:
	case <-h.box.Done():
	}
	h.mu.Lock()
	died := !h.stopping
	h.ending()
	h.mu.Unlock()
	// It answers until all is over: who finds nobody takes the session for one whose
	// holder died.
	h.err = h.box.Close()
	h.mu.Lock()
	h.info.State = Stopped
	if died {
		h.info.State, h.info.Error = Failed, "the sandbox ended by itself: its init died"
		if st, err := h.box.Status(); err == nil && st.OOMKilled && st.Signal == syscall.SIGKILL {
			h.info.Error = "memory of the kernel beyond the limit ended the sandbox"
		}
	}
	if h.err != nil {
		h.info.State, h.info.Error = Failed, h.err.Error()
	}
	h.info.Pid = 0
	err = dir.record(&h.info)
	h.mu.Unlock()
	l.Close()
	unlock()
	h.mu.Lock()
	told := h.told
	h.mu.Unlock()
	close(h.over)
	// Who asked for the end is told of it, and may remove the record then. The
	// process may end with this function.
	// So is who asked for a command: how it ended, or that it never began.
	answered := make(chan struct{})
	go func() {
		h.asked.Wait()
		close(answered)
	}()
	patience := time.After(time.Second)
	for _, c := range append(told, answered) {
		select {
		case <-c:
		case <-patience:
			return err
		}
	}
	return err
}

// stopGrace is how long commands have to end when a session is stopped and
// nothing else was said.
const stopGrace = 10 * time.Second

func (h *Holder) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, for instance: others may close some.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go h.serve(&conn{UnixConn: c})
	}
}

// serve does what one connection asks for.
func (h *Holder) serve(c *conn) {
	defer c.Close()
	if _, err := checkPeer(c.UnixConn); err != nil {
		c.send(reply{Error: newWireError(err)})
		return
	}
	var req request
	files, err := c.receive(&req)
	defer func() { closeFiles(files) }()
	if errors.Is(err, syscall.EMFILE) {
		c.send(reply{Error: newWireError(err)})
	}
	if err != nil {
		return
	}
	switch req.Op {
	case "exec", "exec-within":
		defer h.ask()()
		err = h.exec(c, &req, files)
	case "start", "start-within":
		defer h.ask()()
		err = h.background(c, &req)
	case "output":
		err = h.output(c, &req)
	case "kill":
		err = h.kill(c, &req)
	case "attach":
		err = h.attach(c, &req)
	case "questions":
		err = h.questions(c, &req)
	case "answer":
		err = h.answer(c, &req)
	case "info":
		err = c.send(h.describe())
	case "snapshot":
		if s, ok := h.box.(snapshotter); ok {
			err = s.Snapshot()
		}
		if err == nil {
			err = c.send(reply{})
		}
	case "stop", "retire":
		grace := stopGrace
		if req.GraceMS >= 0 {
			grace = time.Duration(req.GraceMS) * time.Millisecond
		}
		told := make(chan struct{})
		defer close(told)
		h.mu.Lock()
		h.told = append(h.told, told)
		h.mu.Unlock()
		if !h.stop(grace, req.Op == "retire") {
			err = c.send(h.describe())
			break
		}
		<-h.over
		if err = h.err; err == nil {
			err = c.send(reply{})
		}
	default:
		err = &policy.InvalidError{Field: "op", Value: req.Op, Want: "an operation of this version of sbxrun"}
	}
	if err != nil {
		c.send(reply{Error: newWireError(err)})
	}
}

// ask notes that somebody asks for a command. The function that it returns is called
// once that is answered.
func (h *Holder) ask() func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		return func() {} // nothing begins, and the client finds out by itself
	}
	h.asked.Add(1)
	return h.asked.Done
}

// add notes a command that is about to start.
func (h *Holder) add(args []string, background bool) (*command, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		return nil, ErrEnding
	}
	h.lastID++
	cmd := &command{info: CommandInfo{ID: h.lastID, Args: shorten(args), Started: time.Now(), Running: true,
		Background: background}, done: make(chan struct{}), began: make(chan struct{})}
	ended := 0
	for _, c := range h.commands {
		if !c.info.Running {
			ended++
		}
	}
	h.commands = slices.DeleteFunc(h.commands, func(c *command) bool {
		if c.info.Running || ended <= keepEnded {
			return false
		}
		ended--
		return true
	})
	h.commands = append(h.commands, cmd)
	return cmd, nil
}

// shorten keeps what a list of commands shows: not megabytes.
func shorten(args []string) []string {
	const most = 256
	var out []string
	for _, a := range args {
		if len(out) == 16 {
			return append(out, "…")
		}
		if len(a) > most {
			a = strings.ToValidUTF8(a[:most], "") + "…"
		}
		out = append(out, a)
	}
	return out
}

// run notes that a command runs, or that it did not start.
func (h *Holder) started(cmd *command, p driver.Process, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(cmd.began)
	if err != nil {
		h.commands = slices.DeleteFunc(h.commands, func(c *command) bool { return c == cmd })
		cmd.info.Running = false
		close(cmd.done)
		return
	}
	cmd.proc = p
}

func (h *Holder) ended(cmd *command, st *driver.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cmd.info.Running = false
	if st != nil {
		cmd.info.ExitCode = &st.ExitCode
		if st.Signal != 0 {
			cmd.info.Signal = driver.SignalName(st.Signal)
		}
	}
	close(cmd.done)
}

// exec runs a command whose client stays connected: it has the streams, and the
// end of the connection is the end of the command.
func (h *Holder) exec(c *conn, req *request, files []*os.File) error {
	stdio, err := passed(req.Streams, files)
	if err != nil {
		return err
	}
	stdio.Explain, stdio.Else, stdio.Unasked = req.Explain, req.Else, req.Unasked
	cmd, err := h.add(argsOf(req.Process), false)
	if err != nil {
		return err
	}
	p, err := h.box.ExecWithin(context.Background(), req.Process, req.Within, stdio)
	h.started(cmd, p, err)
	closeFiles(files) // the command has its own
	if err != nil {
		return err
	}
	c.started(p, cmd.info.ID, func(l *limits) error { return h.adopt(cmd, p, l) })
	st, err := p.Wait()
	h.ended(cmd, st)
	h.left(cmd, st)
	if err != nil {
		return err
	}
	return c.send(reply{Status: st})
}

// control passes on what a client asks of its command until it hangs up, which is
// the command's end unless it is adopted.
func control(c *conn, p driver.Process, adopt func(*limits) error) {
	for {
		var req request
		files, err := c.receive(&req)
		closeFiles(files)
		if err != nil {
			p.Kill() // does nothing when the command has ended
			return
		}
		switch req.Op {
		case "signal":
			p.Signal(syscall.Signal(req.Signal))
		case "terminate":
			p.Terminate()
		case "kill":
			p.Kill()
		case "detach":
			if adopt != nil && adopt(req.Limits) == nil {
				c.send(reply{Detached: true})
				return
			}
		}
	}
}

// passed puts descriptors in their places.
func passed(streams []bool, files []*os.File) (driver.Stdio, error) {
	var s driver.Stdio
	bad := &policy.InvalidError{Field: "streams", Value: "",
		Want: "three streams and as many descriptors as are marked"}
	if len(streams) < 3 {
		return s, bad
	}
	list := make([]*os.File, len(streams))
	n := 0
	for i, is := range streams {
		if is {
			if n == len(files) {
				return s, bad
			}
			list[i] = files[n]
			n++
		}
	}
	if n != len(files) {
		return s, bad
	}
	s.Stdin, s.Stdout, s.Stderr, s.Extra = list[0], list[1], list[2], list[3:]
	return s, nil
}

func argsOf(p *specs.Process) []string {
	if p == nil {
		return nil
	}
	return p.Args
}

// describe is the session as it is now.
func (h *Holder) describe() reply {
	st, err := h.box.Status()
	if err != nil {
		st = nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	info := h.info
	info.State = Ready
	if h.notice != nil {
		info.Notice = h.notice()
	}
	for _, c := range h.commands {
		info.Commands = append(info.Commands, c.info)
		if c.info.Running {
			info.State = Running
		}
	}
	if h.stopping {
		info.State = Stopping
	}
	return reply{Info: &info, Status: st}
}

// ending lets no command begin any more, and has that on record for who looks no
// further: best effort, for the last record comes anyway.
//
// Preconditions: the caller holds h.mu.
func (h *Holder) ending() {
	if !h.stopping {
		h.stopping = true
		h.info.State = Stopping
		h.dir.record(&h.info)
	}
}

// stop ends every command, those that do not end in time by force, and then the
// sandbox. Asked to do so only if nothing runs, it reports false if something does.
func (h *Holder) stop(grace time.Duration, idle bool) bool {
	h.mu.Lock()
	if h.stopping {
		h.mu.Unlock()
		return true
	}
	var running []*command
	for _, c := range h.commands {
		if c.info.Running && idle {
			h.mu.Unlock()
			return false
		}
		if c.info.Running {
			running = append(running, c)
		}
	}
	// Under the lock no command begins.
	if i, ok := h.box.(idler); idle && (!ok || !i.Idle()) {
		h.mu.Unlock()
		return false
	}
	h.ending()
	h.mu.Unlock()
	deadline := time.After(grace)
	for _, c := range running {
		select {
		case <-c.began:
			h.terminate(c)
		default: // it is just starting, and there is nothing to signal yet
			go func() {
				select {
				case <-c.began:
					h.terminate(c)
				case <-h.stopped:
				}
			}()
		}
	}
wait:
	for _, c := range running {
		select {
		case <-c.done:
		case <-h.box.Done():
			break wait
		case <-deadline:
			break wait
		}
	}
	close(h.stopped)
	return true
}

// terminate sends SIGTERM to a command, if it has begun.
//
// Preconditions: began is closed.
func (h *Holder) terminate(c *command) {
	h.mu.Lock()
	proc := c.proc
	h.mu.Unlock()
	if proc != nil {
		proc.Terminate()
	}
}
