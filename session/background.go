//go:build unix

package session

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// Output is what a background command has printed, from the offsets that were
// asked for.
type Output struct {
	Command CommandInfo `json:"command"`

	Stdout []byte `json:"stdout"`
	Stderr []byte `json:"stderr"`

	// Offset is where to go on: of each stream, in bytes.
	Offset [2]int `json:"offset"`

	// Truncated streams have printed more than is kept.
	StdoutTruncated bool `json:"stdout_truncated"`
	StderrTruncated bool `json:"stderr_truncated"`

	// More says that the holder has more than fits into one message. A client that
	// asks again gets it; [Client.Output] does.
	More bool `json:"more,omitempty"`

	// Result is how the command ended, once it has. It comes with the last of what
	// there is.
	Result *driver.Result `json:"result,omitempty"`
}

// outputs collects the streams of a background command.
type outputs struct {
	mu     sync.Mutex
	stream [2]kept
	result *driver.Result
	change chan struct{} // closed and made anew when there is more
}

type kept struct {
	data      []byte
	limit     int64
	truncated bool
}

func newOutputs(limit int64) *outputs {
	if limit <= 0 {
		limit = 1 << 20
	}
	return &outputs{stream: [2]kept{{limit: limit}, {limit: limit}}, change: make(chan struct{})}
}

func (o *outputs) wake() {
	close(o.change)
	o.change = make(chan struct{})
}

// add collects what there is of a stream.
func (o *outputs) add(i int, b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.stream[i]
	keep := len(b)
	if room := s.limit - int64(len(s.data)); int64(keep) > room {
		keep, s.truncated = int(room), true
	}
	s.data = append(s.data, b[:keep]...)
	o.wake()
}

// finish keeps the result, once every stream of the command has settled: whole says
// for each whether nothing of it is missing.
func (o *outputs) finish(res *driver.Result, whole ...bool) {
	o.mu.Lock()
	for i := range whole {
		o.stream[i].truncated = o.stream[i].truncated || !whole[i]
	}
	o.result = res
	o.wake()
	o.mu.Unlock()
}

// sendOutput is how much of each stream goes into one message, bytes: in base64 both
// of them are far below maxMessage.
const sendOutput = 1 << 20

// since returns what there is from the offsets on, as much as one message takes, and
// what to wait on for more.
func (o *outputs) since(offset [2]int) (*Output, chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := &Output{StdoutTruncated: o.stream[0].truncated, StderrTruncated: o.stream[1].truncated}
	for i, to := range []*[]byte{&out.Stdout, &out.Stderr} {
		all := o.stream[i].data
		at := min(max(offset[i], 0), len(all))
		end := at + min(len(all)-at, sendOutput)
		*to = append([]byte{}, all[at:end]...)
		out.Offset[i] = end
		out.More = out.More || end < len(all)
	}
	// Who has the result asks no further.
	if !out.More {
		out.Result = o.result
	}
	return out, o.change
}

// background starts a command that stays when the client goes.
func (h *Holder) background(c *conn, req *request) error {
	if req.Process == nil {
		return &policy.InvalidError{Field: "process", Want: "a command"}
	}
	lim := h.pol.Limits
	if l := req.Limits; l != nil {
		lim = policy.Limits{WallTime: time.Duration(l.WallMS) * time.Millisecond,
			KillAfter: time.Duration(l.KillAfterMS) * time.Millisecond, Output: l.Output}
	}
	cmd, err := h.add(req.Process.Args, true)
	if err != nil {
		return err
	}
	cmd.out = newOutputs(lim.Output)
	var pipes [2][2]*os.File
	for i := range pipes {
		if req.Process.Terminal {
			break // both are the terminal
		}
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			closeFiles([]*os.File{pipes[0][0], pipes[0][1]})
			h.started(cmd, nil, err)
			return err
		}
	}
	startup := make(chan error, 1)
	p := *h.pol
	p.Limits = lim
	go func() {
		var streams []*driver.Stream
		box := Within(h.box, h.info.Driver, req.Process, req.Within)
		res, err := driver.Run(context.Background(), box, &p, driver.RunOptions{
			Stdio: driver.Stdio{Stdout: pipes[0][1], Stderr: pipes[1][1]},
			Started: func(proc driver.Process) func() {
				h.started(cmd, proc, nil)
				if req.Process.Terminal {
					scr, err := newScreen(proc.Pty(), cmd.out)
					if err != nil {
						proc.Kill()
						startup <- &driver.LostError{Err: err}
						return nil
					}
					scr.start()
					h.mu.Lock()
					cmd.screen = scr
					h.mu.Unlock()
					streams = append(streams, scr.stream)
					startup <- nil
					return nil
				}
				closeFiles([]*os.File{pipes[0][1], pipes[1][1]})
				for i := range pipes {
					streams = append(streams, driver.NewStream(pipes[i][0], func(b []byte) { cmd.out.add(i, b) }, nil))
				}
				startup <- nil
				return nil
			},
		})
		if cmd.proc == nil {
			closeFiles([]*os.File{pipes[0][0], pipes[0][1], pipes[1][0], pipes[1][1]})
			h.started(cmd, nil, err)
			startup <- err
			return
		}
		// What the command left running may hold the streams open, and has its output
		// collected on.
		cmd.out.finish(res, settle(streams)...)
		if cmd.screen != nil {
			cmd.screen.end()
		}
		st := &driver.Status{ExitCode: res.ExitCode}
		h.ended(cmd, st)
		h.mu.Lock()
		cmd.info.Signal = res.Signal
		h.mu.Unlock()
		for _, st := range streams {
			<-st.Done()
			st.Close()
		}
	}()
	if err := <-startup; err != nil {
		return err
	}
	return c.send(reply{Command: cmd.info.ID})
}

func settle(streams []*driver.Stream) (whole []bool) {
	for _, s := range streams {
		whole = append(whole, s.Settle())
	}
	return whole
}

func (h *Holder) find(id int) (*command, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.commands {
		if c.info.ID == id {
			return c, nil
		}
	}
	return nil, &NoCommandError{h.info.ID, id}
}

// output tells what a background command printed.
func (h *Holder) output(c *conn, req *request) error {
	cmd, err := h.find(req.Command)
	if err != nil {
		return err
	}
	if cmd.out == nil {
		return &policy.InvalidError{Field: "command", Value: fmt.Sprint(req.Command),
			Want: "a command in the background: others have their output themselves"}
	}
	deadline := time.After(time.Duration(req.WaitMS) * time.Millisecond)
	for {
		out, change := cmd.out.since(req.Offset)
		more := len(out.Stdout) > 0 || len(out.Stderr) > 0 || out.Result != nil
		if !more && req.WaitMS > 0 {
			select {
			case <-change:
				continue
			case <-deadline:
			case <-h.box.Done():
			}
		}
		h.mu.Lock()
		out.Command = cmd.info
		h.mu.Unlock()
		return c.send(reply{Output: out})
	}
}

// kill ends a command and all that it started.
func (h *Holder) kill(c *conn, req *request) error {
	cmd, err := h.find(req.Command)
	if err != nil {
		return err
	}
	select {
	case <-cmd.began: // a driver bounds how long a start takes
	case <-h.box.Done():
	}
	h.mu.Lock()
	proc := cmd.proc
	h.mu.Unlock()
	if proc != nil {
		proc.Kill()
		<-cmd.done
	}
	return c.send(reply{})
}

// In makes a driver of a sandbox that stays: what it starts is the given
// process, in there, whatever command the policy has. So [driver.Run] applies
// its limits to a command of a session too.
func In(box driver.Sandbox, name string, process *specs.Process) driver.Driver {
	return Within(box, name, process, nil)
}

// Within is In with limits of the one command's own; see ExecWithin of
// [driver.Sandbox].
func Within(box driver.Sandbox, name string, process *specs.Process, limits *specs.LinuxResources) driver.Driver {
	return inside{box: box, name: name, process: process, limits: limits}
}

type inside struct {
	driver.Basic
	box     driver.Sandbox
	name    string
	process *specs.Process
	limits  *specs.LinuxResources
}

func (d inside) Name() string                    { return d.name }
func (d inside) Sandboxed() bool                 { return true }
func (d inside) Available(context.Context) error { return nil }
func (d inside) Check(*policy.Policy) error      { return nil }

func (d inside) Start(ctx context.Context, _ *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	return d.box.ExecWithin(ctx, d.process, d.limits, stdio)
}
