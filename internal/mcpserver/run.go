//go:build unix

package mcpserver

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
)

const (
	// maxTimeout is the longest time limit that a call can ask for.
	maxTimeout = 600_000 // milliseconds

	// maxScript is how long a script, or the code for Python, can be: the kernel
	// takes no argument of more than 128 KiB (MAX_ARG_STRLEN; see execve(2)).
	maxScript = 120 << 10 // bytes

	// maxText is how much of each stream is in a result: in its text and in its
	// structured form, because some clients show a model the one, and some the other.
	maxText = 30_000 // bytes

	maxBinary = maxText / 4 * 3 // bytes, which are maxText in base64

	// defaultOutput is how much is kept of each stream where the policy does not say.
	defaultOutput = 1 << 20 // bytes

	// maxSaid bounds what a wrapped script tells beside its output.
	maxSaid = 64 << 10 // bytes
)

// A Result is what came of a command.
type Result struct {
	SessionID       string          `json:"session_id"`
	ExitCode        *int            `json:"exit_code,omitempty" jsonschema:"absent as long as it runs; the command's own; 128+N if signal N ended it; 124 if the time limit did; 126 or 127 if it cannot be executed or was not found"`
	Signal          string          `json:"signal,omitempty"`
	Reason          driver.Reason   `json:"reason" jsonschema:"how it ended: exit, signal, timeout, oom, pids, setup, canceled, or lost, where it may have run and nobody knows how it ended; running for a command in the background"`
	Stdout          string          `json:"stdout"`
	Stderr          string          `json:"stderr"`
	Encoding        Encoding        `json:"encoding,omitempty" jsonschema:"base64, if the call asked for that: what stdout and stderr are in"`
	StdoutTruncated bool            `json:"stdout_truncated" jsonschema:"a part of stdout is left out here: notes say how much"`
	StderrTruncated bool            `json:"stderr_truncated" jsonschema:"a part of stderr is left out here: notes say how much"`
	DurationMS      float64         `json:"duration_ms"`
	TimeoutMS       int64           `json:"timeout_ms,omitempty" jsonschema:"the time limit that was in force"`
	Cwd             string          `json:"cwd" jsonschema:"where the next command of bash starts"`
	Sandboxed       bool            `json:"sandboxed"`
	Denials         []driver.Denial `json:"denials" jsonschema:"what the policy refused while the command ran, with the rule and what a human could grant: paths, system calls, limits, and hosts of the whole session"`
	Notes           []string        `json:"notes,omitempty"`
	ID              string          `json:"id,omitempty" jsonschema:"the command in the background, for bash_output and bash_kill"`
	Value           string          `json:"value,omitempty" jsonschema:"repr() of the last expression, for python_execute"`
}

func (r *Result) succeeded() bool { return *r.ExitCode == 0 && r.Reason == driver.ReasonExit }

// An Encoding is how output is written in a result: as text unless it is asked for
// in base64, for output that is none.
type Encoding string

const inBase64 Encoding = "base64"

// A task is a command to run in a session.
type task struct {
	args    []string
	cwd     string // "" is the session's
	timeout int64  // milliseconds, 0 is the policy's limit
	says    bool   // descriptor 3 is a pipe to us
	as      Encoding
	explain bool // see driver.Stdio

	tool string   // that was called
	asks []string // what it was asked to run, for the record; nil is args
	env  *session.Environment
}

// limits are those of one command: the policy's, and never more.
func (b *box) limits(timeout int64) policy.Limits {
	l := b.env.Policy.Limits
	if t := time.Duration(timeout) * time.Millisecond; t > 0 && (l.WallTime == 0 || t < l.WallTime) {
		l.WallTime = t
	}
	l.Output = cmp.Or(l.Output, defaultOutput)
	return l
}

// run runs a command to its end. What it said on descriptor 3 is returned beside.
func (s *Server) run(ctx context.Context, req *mcp.CallToolRequest, b *box, t task) (*Result, string, error) {
	if t.env == nil {
		t.env = b.env
	}
	defer b.busy()()
	cwd := b.at(t.cwd)
	record, err := s.begin(b, t, cwd)
	if err != nil {
		return nil, "", err
	}
	l := b.limits(t.timeout)
	out := &Result{SessionID: b.id, TimeoutMS: l.WallTime.Milliseconds(), Notes: unsandboxed(t.env)}
	var o output
	if err := o.open(s.room, l.Output); err != nil {
		return nil, "", err
	}
	defer o.forget()
	defer o.end()
	ro := driver.RunOptions{Stdio: driver.Stdio{Stdout: o.write[0], Stderr: o.write[1], Explain: t.explain},
		Started: func(driver.Process) func() { o.begin(); return o.settle }}
	var says *os.File
	if t.says {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, "", err
		}
		defer r.Close()
		defer w.Close()
		says, ro.Stdio.Extra = r, []*os.File{w}
	}
	stop := s.progress(ctx, req)
	defer s.asks(ctx, req.Session, b)()
	pr := &specs.Process{Args: t.args, Cwd: cwd}
	p := &policy.Policy{Profile: b.env.Policy.Profile, Limits: l}
	res, err := driver.Run(ctx, runIn(t.env, pr), p, ro)
	stop()
	if aerr := s.record(record, res); aerr != nil {
		return nil, "", aerr
	}
	if err != nil {
		if b.ended() {
			err = fmt.Errorf("session %s has ended: %w", b.id, err)
		}
		var c *driver.CommandError
		var lost *driver.LostError
		switch {
		case errors.As(err, &c):
			out.Notes = append(out.Notes, "the command could not be started: "+res.Error)
		case errors.As(err, &lost): // what it printed until then is all there is
			out.Notes = append(out.Notes, res.Error+": "+res.Hint)
			err = nil
		default:
			return nil, "", err
		}
	}
	out.fill(res, &o, t.as)
	said := ""
	if says != nil {
		// What the command left running has the descriptor too: what there is
		// now is all that counts.
		ro.Stdio.Extra[0].Close()
		said = string(driver.Waiting(says, maxSaid))
	}
	if b.ended() {
		out.Notes = append(out.Notes, "the session has ended with this command; its private files and processes are gone")
	}
	out.Cwd = b.at("")
	b.mu.Lock()
	defer b.mu.Unlock()
	out.Notes, b.untold = append(out.Notes, b.untold...), nil
	return out, said, err
}

// begin writes down what is about to run, which must not if that cannot be done.
func (s *Server) begin(b *box, t task, cwd string) (r audit.Record, err error) {
	if s.config.Audit == nil {
		return r, nil
	}
	asks := t.asks
	if asks == nil {
		asks = t.args
	}
	r = audit.Record{Source: "mcp", Session: b.id, Tool: t.tool, Command: asks, Cwd: cwd, Profile: b.env.Policy.Profile,
		Driver: t.env.Driver, Sandboxed: sandboxed(t.env), Why: t.env.Why}
	if err := s.config.Audit.Begin(&r); err != nil {
		return r, fmt.Errorf("nothing runs without a record: %w", err)
	}
	return r, nil
}

// record writes down how it ended.
func (s *Server) record(r audit.Record, res *driver.Result) error {
	if s.config.Audit == nil {
		return nil
	}
	if err := s.config.Audit.Run(r, audit.OutcomeOf(res), res.Denials); err != nil {
		return fmt.Errorf("the command has run, and the record of how it ended could not be written: %w", err)
	}
	return nil
}

// denied writes down what was refused before anything ran. That it is refused
// stands, whether there is a record or not.
func (s *Server) denied(tool, session string, asks []string, all ...driver.Denial) {
	if s.config.Audit == nil {
		return
	}
	for _, d := range all {
		s.config.Audit.Denied(audit.Record{Source: "mcp", Session: session, Tool: tool, Command: asks,
			Profile: s.config.Policy.Profile, Sandboxed: true}, d)
	}
}

func (r *Result) fill(res *driver.Result, o *output, as Encoding) {
	r.ExitCode, r.Signal, r.Reason, r.DurationMS, r.Sandboxed = &res.ExitCode, res.Signal, res.Reason, res.DurationMS,
		res.Sandboxed
	var lost [2]loss
	r.Stdout, lost[0] = o.stream[0].all()
	r.Stderr, lost[1] = o.stream[1].all()
	r.StdoutTruncated = r.shorten("stdout", &r.Stdout, lost[0], as)
	r.StderrTruncated = r.shorten("stderr", &r.Stderr, lost[1], as)
	r.Denials = told(res.Denials)
	if res.NetworkTried {
		r.Notes = append(r.Notes,
			"the command, or another in the session, tried to reach the network, and the session has none; only the operator can allow hosts")
	}
	if res.StorageFull && res.ExitCode != 0 {
		r.Notes = append(r.Notes,
			"the private storage of the session (/tmp, /run, the home) is full: remove something there, or write to the workspace")
	}
}

// shorten leaves out of a stream what is too much to read, and says so: the middle,
// or, of what is to be decoded again, the end. It reports whether anything is not there.
func (r *Result) shorten(name string, s *string, lost loss, as Encoding) (truncated bool) {
	if lost != "" {
		r.Notes = append(r.Notes, name+" "+string(lost))
	}
	size, left, cut := len(*s), "middle", false
	if as == inBase64 {
		r.Encoding, left, cut = as, "end", size > maxBinary
		*s = base64.StdEncoding.EncodeToString([]byte((*s)[:min(size, maxBinary)]))
	} else {
		*s = strings.ToValidUTF8(*s, "\uFFFD")
		cut = len(*s) > maxText
		*s = middleCut(*s, maxText)
	}
	if cut {
		r.Notes = append(r.Notes,
			fmt.Sprintf("%s has %d bytes, of which the %s is left out: print less, or to a file, and read that by parts", name,
				size, left))
	}
	return cut || lost != ""
}

// progress tells a client that asked for it, now and then, that a command runs.
func (s *Server) progress(ctx context.Context, req *mcp.CallToolRequest) (stop func()) {
	token := req.Params.GetProgressToken
	if p, ok := ctx.Value(parkedKey{}).(*parked); ok {
		token = p.progressToken // of the request that waits now
	} else if token() == nil {
		return func() {}
	}
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		begin := time.Now()
		tick := time.NewTicker(s.every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				t := time.Since(begin).Seconds()
				if token := token(); token != nil {
					req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: t,
						Message: fmt.Sprintf("running for %.0f s", t)})
				}
			}
		}
	}()
	return func() { close(done); <-over }
}

// content is the result for the model. The first block is sbxrun's, always, and what
// the command wrote comes after it, in blocks of its own: so nothing that a command
// prints stands where sbxrun speaks, even for a client that joins the blocks.
func (r *Result) content() *mcp.CallToolResult {
	all := []string{}
	switch {
	case r.Reason == reasonRunning:
	case r.ExitCode == nil:
		all = append(all, "ended: "+string(r.Reason))
	case r.Reason == driver.ReasonTimeout:
		all = append(all,
			fmt.Sprintf("the time limit of %d ms ended the command; run_in_background of bash does not make a call wait",
				r.TimeoutMS))
	case r.Reason == driver.ReasonOOM:
		all = append(all, fmt.Sprintf("the memory limit ended the command, exit code %d", *r.ExitCode))
	case r.Reason == driver.ReasonPids:
		all = append(all, fmt.Sprintf("the command failed after the limit on processes refused it some, exit code %d",
			*r.ExitCode))
	case r.Reason == driver.ReasonSignal:
		all = append(all, r.Signal+" ended the command")
	case r.Reason == driver.ReasonCanceled:
		all = append(all, "the command was ended by who called it")
	case r.Reason == driver.ReasonLost:
		all = append(all, "the command may have run, and how it ended is not known")
	default:
		all = append(all, fmt.Sprintf("exit code %d", *r.ExitCode))
	}
	causes := r.causes()
	for _, d := range causes[:min(len(causes), maxCauses)] {
		all = append(all, denial(d))
	}
	if more := len(causes) - maxCauses; more > 0 {
		all = append(all, fmt.Sprintf("%d more refusals are in denials", more))
	}
	all = append(all, r.Notes...)
	var follow []string
	var blocks []mcp.Content
	for _, s := range []struct{ name, text string }{{"stdout", r.Stdout}, {"stderr", r.Stderr},
		{"the value of the last expression", r.Value}} {
		if s.text == "" {
			continue
		}
		if r.Encoding == inBase64 {
			s.name += " in base64"
		}
		follow = append(follow, s.name)
		blocks = append(blocks, &mcp.TextContent{Text: s.text})
	}
	if len(follow) > 0 {
		all = append(all, "what follows is from inside: "+strings.Join(follow, ", then "))
	} else if r.Reason != reasonRunning {
		all = append(all, "no output")
	}
	return &mcp.CallToolResult{Content: append([]mcp.Content{&mcp.TextContent{Text: remarks(all...)}}, blocks...)}
}

// maxCauses is how many refusals a model is told of in words.
const maxCauses = 3

// causes are the refusals that a model is told of in words: all of hosts and protected
// paths, others of a command that failed. Limits have words of their own.
func (r *Result) causes() (list []driver.Denial) {
	for _, d := range r.Denials {
		host := d.Operation == driver.OpConnect || d.Operation == driver.OpResolve
		if d.Operation != driver.OpLimit && d.Rule != driver.RuleNoNetwork &&
			(host || strings.HasPrefix(d.Rule, driver.RuleProtected) || r.ExitCode == nil || *r.ExitCode != 0) {
			list = append(list, d)
		}
	}
	return list
}

// reasonRunning is that of a command in the background that has not ended.
const reasonRunning driver.Reason = "running"

// remarks is what sbxrun says, a line each, whatever they hold.
func remarks(all ...string) string {
	var b strings.Builder
	for _, s := range all {
		b.WriteString("sbxrun: " + quote.Line(s) + "\n")
	}
	return b.String()
}

// maxTold is how many refusals a model is told of at all.
const maxTold = 20

// told are refusals for a model: what they are about was chosen inside. Which process met
// one is for people, and that a secret is there for nobody inside.
func told(all []driver.Denial) []driver.Denial {
	all = slices.DeleteFunc(slices.Clone(all), func(d driver.Denial) bool {
		at, hidden := strings.CutPrefix(d.Rule, "hidden: ")
		return d.Operation != driver.OpWrite && (d.Reason == driver.ReasonSecret || hidden && at != d.Target)
	})
	more := len(all) - maxTold
	out := make([]driver.Denial, min(len(all), maxTold))
	for i := range out {
		d := &all[i]
		out[i] = driver.Denial{Operation: d.Operation, Call: d.Call, Target: quote.Inside(d.Target), Rule: quote.Line(d.Rule),
			Origin: quote.Line(d.Origin), Grant: driver.Grant(quote.Line(string(d.Grant))),
			Reason: quote.Line(d.Reason), Count: d.Count}
	}
	if more > 0 {
		out = append(out, driver.Others("", uint64(more)))
	}
	return out
}

// denial is what a model reads of a refusal.
func denial(d driver.Denial) string {
	why, grant := cmp.Or(d.Reason, d.Rule, "not allowed"), d.Grant.Shell()
	if grant != "" {
		grant = ": " + grant
	}
	return fmt.Sprintf("refused by the sandbox: %s %s: %s; only the operator can allow it%s", d.Operation, d.Target,
		why, grant)
}

// middleCut shortens a text to a number of bytes, and says so where it cut.
func middleCut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	head, tail := most/2, len(s)-most/2
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[… %d bytes left out here …]\n%s", s[:head], tail-head, s[tail:])
}

// wrapper runs a script, its one argument, and tells where the shell was at its
// end, on descriptor 3. That descriptor is moved out of the way of scripts, which
// use small numbers. A script that ends by exit, or under set -e, is told of by the
// trap; one that has a trap of its own for EXIT, by what follows it. After exec
// nobody tells, and the directory stays what it was.
func wrapper(fd string) string {
	// The script is on the first line: the shell's messages count lines from there.
	// What the script set (-e, -x, a trap) is not for what follows it, and a directory that
	// is no more tells nothing.
	return strings.ReplaceAll(`exec FD>&3 3>&-; trap '{ __sbxrun=$?; set +exv; command pwd -P >&FD || :; exit "$__sbxrun"; } 2>/dev/null' EXIT; __sbxrun=$1; shift; eval "$__sbxrun"
{ __sbxrun=$?; set +exv; trap - DEBUG ERR || :; command pwd -P >&FD || :; } 2>/dev/null
exit "$__sbxrun"`, "FD", fd)
}

// bash runs a script where the last one ended, and keeps where this one did.
func (s *Server) bash(ctx context.Context, req *mcp.CallToolRequest, b *box, in bashArguments) (*Result, error) {
	script, cwd := in.Command, in.Cwd
	t := task{tool: "bash", cwd: cwd, timeout: in.Timeout, says: true, as: in.Encoding, explain: in.Explain}
	start, home := b.at(""), dirOf(b.env.Policy)
	var out *Result
	var said string
	var notes []string
	for range 3 {
		shell, fd := "bash", "187"
		if slices.Contains(notes, noBash) {
			shell, fd = "sh", "9" // POSIX knows no descriptor of two digits
		}
		t.args, t.asks = []string{shell, "-c", wrapper(fd), shell, script}, []string{shell, "-c", script}
		var err error
		out, said, err = s.run(ctx, req, b, t)
		if err == nil {
			break
		}
		// Nothing has run.
		var c *driver.CommandError
		absent := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
		switch missing := errors.As(err, &c) && errors.Is(c.Err, syscall.ENOENT); {
		case absent && cwd == "" && start != home && s.isGone(ctx, b, start):
			b.mu.Lock()
			b.cwd = home
			b.mu.Unlock()
			start = home
			notes = append(notes, "the directory that the last command ended in is gone; this one ran in "+home)
			continue
		case missing && shell == "bash":
			notes = append(notes, noBash)
			continue
		case out == nil:
			return nil, err
		}
		break
	}
	out.Notes = append(notes, out.Notes...)
	if cwd == "" {
		if dir := lastLine(said); dir != "" {
			b.mu.Lock()
			b.cwd = dir
			b.mu.Unlock()
		}
	}
	out.Cwd = b.at("")
	return out, nil
}

const noBash = "there is no bash in the sandbox; sh ran this"

func (s *Server) isGone(ctx context.Context, b *box, dir string) bool {
	i, err := b.files.Stat(ctx, dir)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && i.Type != "dir"
}

// lastLine is the directory that a wrapped script told last. It comes from the
// sandbox, and is used nowhere but in there.
func lastLine(said string) string {
	said, whole := strings.CutSuffix(said, "\n")
	if !whole {
		return ""
	}
	// A name can hold a newline. No command starts in such a directory: what is told
	// of it does not begin with /, or is another place inside.
	dir := said[strings.LastIndexByte(said, '\n')+1:]
	if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) || len(dir) > 4096 {
		return ""
	}
	return path.Clean(dir)
}

// pythonWrapper runs its argument as a program and tells the value of the last
// expression on descriptor 3, which no child of it gets.
const pythonWrapper = `import ast, os, sys, types, traceback
def short(s): # to what a result holds, and a pipe
    b = s.encode("utf-8", "replace")
    if len(b) <= 30000:
        return s
    head, tail = b[:14950].decode("utf-8", "ignore"), b[-14950:].decode("utf-8", "ignore")
    left = len(b) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {left} bytes left out here …]\n{tail}"
def main():
    os.set_inheritable(3, False)
    src = sys.argv[1]
    sys.argv = ["-c"]
    mod = types.ModuleType("__main__")
    sys.modules["__main__"] = mod
    g = mod.__dict__
    try:
        tree = ast.parse(src, "<code>")
    except SyntaxError as e:
        traceback.print_exception(type(e), e, None)
        sys.exit(1)
    import linecache
    linecache.cache["<code>"] = (len(src), None, src.splitlines(True), "<code>")
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    try:
        exec(compile(tree, "<code>", "exec"), g)
        if last is not None:
            v = eval(compile(last, "<code>", "eval"), g)
            if v is not None:
                os.write(3, short(repr(v)).encode("utf-8", "replace"))
    except Exception as e:
        sys.stdout.flush()
        traceback.print_exception(type(e), e, e.__traceback__.tb_next)
        sys.exit(1)
main()
`
