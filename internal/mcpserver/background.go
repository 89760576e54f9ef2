//go:build unix

package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
)

const (
	// maxJobs is how many background commands a session has at a time, those that
	// have ended and can be asked for included: the oldest of these go first.
	maxJobs = 32

	maxWait = 60_000 // milliseconds
)

// A job is a command in the background.
type job struct {
	id      string
	proc    driver.Process // nil until it runs
	env     *session.Environment
	timeout int64 // milliseconds
	output
	done   chan struct{}
	result *driver.Result // once done is closed
}

func (j *job) running() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

// background starts a script that outlives the call, but not one that was canceled
// before its answer.
func (s *Server) background(ctx context.Context, b *box, t task, script string) (*Result, error) {
	if t.env == nil {
		t.env = b.env
	}
	if t.asks == nil {
		t.asks = []string{"bash", "-c", script}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	at := b.at(t.cwd)
	record, err := s.begin(b, t, at)
	if err != nil {
		return nil, err
	}
	l := b.limits(t.timeout)
	j := &job{timeout: l.WallTime.Milliseconds(), env: t.env, done: make(chan struct{})}
	if err := j.open(s.room, l.Output); err != nil {
		return nil, err
	}
	if err := s.keep(b, j); err != nil {
		j.end()
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		p := &policy.Policy{Profile: b.env.Policy.Profile, Limits: l}
		ran := false
		run := func(shell string) (*driver.Result, error) {
			t.args = []string{shell, "-c", script}
			return driver.Run(s.ctx, runIn(t.env, &specs.Process{Args: t.args, Cwd: at}), p, driver.RunOptions{
				Stdio: driver.Stdio{Stdout: j.write[0], Stderr: j.write[1]},
				Started: func(proc driver.Process) func() {
					ran = true
					b.mu.Lock()
					j.proc = proc
					b.mu.Unlock()
					j.begin()
					started <- nil
					return nil
				},
			})
		}
		res, err := run("bash")
		if !ran && res.ExitCode == driver.ExitNotFound {
			res, err = run("sh")
		}
		if !ran {
			s.record(record, res)
			j.end()
			j.result = res // somebody may have guessed its name
			close(j.done)
			b.drop(j)
			started <- err
			return
		}
		j.settle()
		for _, st := range j.reading {
			go func() {
				<-st.Done()
				st.Close()
			}()
		}
		// Nobody waits to be told that there is no record of its end; that it began has
		// one, and what comes next is refused.
		s.record(record, res)
		j.result = res
		close(j.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		b.end(j)
		return nil, err
	}
	return &Result{SessionID: b.id, ID: j.id, Reason: reasonRunning, TimeoutMS: l.WallTime.Milliseconds(), Cwd: b.at(""),
		Sandboxed: sandboxed(t.env), Denials: []driver.Denial{},
		Notes: append(unsandboxed(t.env),
			"running in the background as "+j.id+": bash_output has its output, bash_kill ends it")}, nil
}

// keep gives a job a name that no other of the connection had: whoever still asks for that of
// a session which has ended must not get another's output. From then on others can find it.
func (s *Server) keep(b *box, j *job) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.jobs) >= maxJobs {
		at := slices.IndexFunc(b.jobs, func(j *job) bool { return !j.running() })
		if at < 0 {
			return fmt.Errorf("%d commands run in the background of session %s, and no more are possible: bash_kill ends one",
				maxJobs, b.id)
		}
		b.jobs[at].forget()
		b.jobs = slices.Delete(b.jobs, at, at+1)
	}
	j.id = fmt.Sprintf("b%d", s.jobs.Add(1))
	b.jobs = append(b.jobs, j)
	return nil
}

// end ends a command that runs.
func (b *box) end(j *job) {
	b.mu.Lock()
	proc := j.proc
	b.mu.Unlock()
	if proc != nil {
		proc.Kill() // of one that has ended it does nothing
	}
}

func (b *box) drop(gone *job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = slices.DeleteFunc(b.jobs, func(j *job) bool { return j == gone })
}

// job looks up a command in the background; that of another session is not found.
func (s *Server) job(sessionID, id string) (*box, *job, error) {
	if sessionID == "" {
		s.first.Lock()
		own := s.own
		s.first.Unlock()
		if own == nil {
			return nil, nil, errors.New("the connection has no session yet")
		}
		sessionID = own.id
	}
	b, _, err := s.session(sessionID)
	if err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.jobs, func(j *job) bool { return j.id == id }); i >= 0 {
		return b, b.jobs[i], nil
	}
	return nil, nil, fmt.Errorf("there is no background command %s in session %s: session_list lists those that run",
		quote.Text(id), quote.Text(sessionID))
}

type outputArguments struct {
	ID           string   `json:"id" jsonschema:"the command, as bash with run_in_background returned it"`
	SessionID    string   `json:"session_id,omitempty" jsonschema:"its session; without it the connection's own"`
	StdoutOffset int64    `json:"stdout_offset,omitempty" jsonschema:"where in stdout to start, in bytes: the last call's next_stdout_offset"`
	StderrOffset int64    `json:"stderr_offset,omitempty" jsonschema:"where in stderr to start, in bytes: the last call's next_stderr_offset"`
	Limit        int64    `json:"limit,omitempty" jsonschema:"how much of each stream to return, in bytes (at most 30000, which is the default; 22500 in base64)"`
	Encoding     Encoding `json:"output_encoding,omitempty" jsonschema:"base64 for output that is no text"`
	Wait         int64    `json:"wait,omitempty" jsonschema:"if there is nothing new, wait for it so many milliseconds (default 0, at most 60000)"`
}

type outputResult struct {
	ID               string        `json:"id"`
	SessionID        string        `json:"session_id"`
	Running          bool          `json:"running"`
	ExitCode         *int          `json:"exit_code,omitempty" jsonschema:"once it has ended"`
	Signal           string        `json:"signal,omitempty"`
	Reason           driver.Reason `json:"reason,omitempty" jsonschema:"how it ended"`
	Stdout           string        `json:"stdout"`
	Stderr           string        `json:"stderr"`
	Encoding         Encoding      `json:"encoding,omitempty" jsonschema:"base64, if the call asked for that"`
	NextStdoutOffset int64         `json:"next_stdout_offset"`
	NextStderrOffset int64         `json:"next_stderr_offset"`
	More             bool          `json:"more" jsonschema:"there is more already: call again with the next offsets"`
	StdoutTruncated  bool          `json:"stdout_truncated" jsonschema:"it has printed more than is kept"`
	StderrTruncated  bool          `json:"stderr_truncated" jsonschema:"it has printed more than is kept"`

	Sandboxed bool            `json:"sandboxed"`
	Denials   []driver.Denial `json:"denials" jsonschema:"once it has ended: what the policy refused meanwhile"`
}

type killArguments struct {
	ID        string `json:"id" jsonschema:"the command, as bash with run_in_background returned it"`
	SessionID string `json:"session_id,omitempty" jsonschema:"its session; without it the connection's own"`
}

func (s *Server) addBackgroundTools() {
	add(s, &mcp.Tool{
		Name:        "bash_output",
		Description: "Return what a background command printed, from the offsets on, and how it ended once it has.",
		Annotations: &mcp.ToolAnnotations{Title: "Output of a background command", ReadOnlyHint: true,
			OpenWorldHint: new(bool)},
	}, func(p map[string]*jsonschema.Schema) {
		for _, n := range []string{"stdout_offset", "stderr_offset", "wait"} {
			p[n].Minimum = new(0.0)
		}
		p["wait"].Maximum = new(float64(maxWait))
		p["limit"].Minimum, p["limit"].Maximum = new(float64(utf8.UTFMax)), new(float64(maxText))
		encoded(p)
	}, s.callOutput)
	add(s, &mcp.Tool{
		Name:        "bash_kill",
		Description: "End a background command and all that it started, at once. What one that has ended by itself left running goes on until the session ends.",
		Annotations: &mcp.ToolAnnotations{Title: "End a background command", IdempotentHint: true, OpenWorldHint: new(bool)},
	}, nil, func(ctx context.Context, _ *mcp.CallToolRequest, in killArguments) (*mcp.CallToolResult,
		outputResult, error) {
		b, j, err := s.job(in.SessionID, in.ID)
		if err != nil {
			return nil, outputResult{}, err
		}
		b.end(j)
		select {
		case <-j.done:
		case <-ctx.Done():
			return nil, outputResult{}, ctx.Err()
		}
		return s.callOutput(ctx, nil, outputArguments{ID: in.ID, SessionID: b.id})
	})
}

func (s *Server) callOutput(ctx context.Context, _ *mcp.CallToolRequest,
	in outputArguments) (*mcp.CallToolResult, outputResult, error) {
	b, j, err := s.job(in.SessionID, in.ID)
	if err != nil {
		return nil, outputResult{}, err
	}
	length := cmp.Or(in.Limit, maxText)
	if in.Encoding == inBase64 {
		length = min(length, maxBinary)
	}
	patience := time.NewTimer(time.Duration(in.Wait) * time.Millisecond)
	defer patience.Stop()
	for waiting := in.Wait > 0; ; {
		out := outputResult{ID: j.id, SessionID: b.id, Running: j.running(), Sandboxed: sandboxed(j.env),
			Denials: []driver.Denial{}}
		var rest [2]bool
		var lost [2]loss
		var more [2]chan struct{}
		out.Stdout, out.NextStdoutOffset, rest[0], lost[0], more[0] = j.stream[0].page(in.StdoutOffset, length,
			out.Running, in.Encoding)
		out.Stderr, out.NextStderrOffset, rest[1], lost[1], more[1] = j.stream[1].page(in.StderrOffset, length,
			out.Running, in.Encoding)
		out.StdoutTruncated, out.StderrTruncated = lost[0] != "", lost[1] != ""
		for i := range lost {
			if rest[i] {
				lost[i] = "" // of its end, which is not here
			}
		}
		out.More = rest[0] || rest[1]
		if waiting && out.Running && out.Stdout == "" && out.Stderr == "" {
			select {
			case <-more[0]:
			case <-more[1]:
			case <-j.done:
			case <-patience.C:
				waiting = false
			case <-ctx.Done():
				return nil, outputResult{}, ctx.Err()
			}
			continue
		}
		return j.text(&out, lost, in.Encoding), out, nil
	}
}

// text is a result as text, and adds to it how the command ended.
func (j *job) text(out *outputResult, lost [2]loss, as Encoding) *mcp.CallToolResult {
	r := Result{Reason: reasonRunning}
	r.shorten("stdout", &out.Stdout, lost[0], as)
	r.shorten("stderr", &out.Stderr, lost[1], as)
	r.Stdout, r.Stderr, out.Encoding = out.Stdout, out.Stderr, r.Encoding
	if !out.Running {
		out.ExitCode, out.Signal, out.Reason = &j.result.ExitCode, j.result.Signal, j.result.Reason
		r.ExitCode, r.Signal, r.Reason = out.ExitCode, out.Signal, out.Reason
		r.TimeoutMS = j.timeout
		out.Denials = told(j.result.Denials)
		r.Denials = out.Denials
		r.Notes = append(r.Notes, j.id+" has ended")
	} else {
		r.Notes = append(r.Notes, j.id+" is running")
	}
	if out.More {
		r.Notes = append(r.Notes, fmt.Sprintf("there is more: stdout_offset %d, stderr_offset %d", out.NextStdoutOffset,
			out.NextStderrOffset))
	}
	return r.content()
}
