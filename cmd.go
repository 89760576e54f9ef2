package sbxrun

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
)

// A Cmd is a command that runs in a sandbox of its own, or in a [Session]. It cannot be used again after
// Run, Start, Output or CombinedOutput.
type Cmd struct {
	Args []string // the program, found by the sandbox's PATH, and its arguments
	Dir  string   // working directory and workspace; "" is the current directory

	// Env, if not nil, is the command's whole environment, KEY=VALUE each. Nil is
	// what the profile passes of the caller's.
	Env []string

	// Stdin is what the command reads, nothing if nil. Stdout and Stderr are where
	// it writes to; nil discards it. An *os.File is handed to the command as it is.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Options change the sandbox. A command of a [Session] has none.
	Options Options

	// Explain has Result.Denials also tell of what the command looks for and the sandbox
	// does not show. The command is slower then.
	Explain bool

	// Result is set when the command has ended, and when it could not be started.
	Result *Result

	session *Session // that it runs in, or nil
	ctx     context.Context
	output  int64       // limit on what Output collects, bytes; 0 is none
	files   []io.Closer // to close when the command has ended
	copies  []*driver.Stream
	failed  error // the first failed copy, under mu
	mu      sync.Mutex
	done    chan error // Run's end; nil before Start
}

// Command returns the command that runs the named program with arguments.
func Command(name string, arg ...string) *Cmd {
	return &Cmd{Args: append([]string{name}, arg...), ctx: context.Background()}
}

// CommandContext is [Command]; when the context ends before the command does, the
// command is asked to end by SIGTERM, and all of the sandbox is killed after
// Options.KillAfter.
func CommandContext(ctx context.Context, name string, arg ...string) *Cmd {
	if ctx == nil {
		panic("nil Context")
	}
	return &Cmd{Args: append([]string{name}, arg...), ctx: ctx}
}

// String is the command line, not quoted, for people.
func (c *Cmd) String() string { return strings.Join(c.Args, " ") }

// Run starts the command and waits until nothing of its sandbox is left.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Start builds the sandbox and starts the command. If it returns an error, nothing is
// left of either.
func (c *Cmd) Start() (err error) {
	if c.done != nil || c.Result != nil {
		return errors.New("sbxrun: already started")
	}
	defer func() {
		if err != nil && c.Result == nil {
			c.Result, _ = driver.Fail(&Result{Profile: c.Options.Profile}, err)
		}
	}()
	if len(c.Args) == 0 || c.Args[0] == "" {
		return errors.New("sbxrun: no command")
	}
	if c.ctx == nil {
		c.ctx = context.Background()
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	p, err := c.prepare()
	if err != nil {
		return err
	}
	c.output = p.policy.Limits.Output
	var ro driver.RunOptions
	ro.Stdio.Explain = c.Explain
	if err := c.streams(&ro.Stdio); err != nil {
		c.close()
		return err
	}
	started := make(chan struct{})
	ro.Started = func(driver.Process) func() {
		close(started)
		return nil
	}
	done := make(chan error, 1)
	c.done = done
	go func() {
		var err error
		c.Result, err = p.run(c.ctx, ro)
		done <- err
	}()
	select {
	case <-started:
		return nil
	case err := <-done:
		done <- err
		if err == nil {
			return nil // it has ended already
		}
		c.close()
		return err
	}
}

func (c *Cmd) prepare() (*prepared, error) {
	if c.session != nil {
		return c.session.prepare(c)
	}
	o := c.Options
	o.Command, o.Dir, o.DirFrom = c.Args, c.Dir, "Dir"
	if c.Env != nil {
		// To the flag --env, a name alone is a variable of the caller's.
		for _, kv := range c.Env {
			if !strings.Contains(kv, "=") {
				return nil, engine.Usage("Env: "+strconv.Quote(kv)+" has no value",
					"want KEY=VALUE; to pass a variable of the caller's: KEY+\"=\"+os.Getenv(KEY)")
			}
		}
		o.Env, o.ClearEnv = c.Env, true
	}
	return prepare(c.ctx, &o)
}

// Wait waits until nothing of the sandbox is left, and all that the command wrote was
// copied. In a [Session] it waits for the command alone: what that leaves running can
// write to files, and no more to other writers.
func (c *Cmd) Wait() error {
	if c.done == nil {
		return errors.New("sbxrun: not started")
	}
	err := <-c.done
	c.done <- err
	c.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		return err
	case c.Result.Reason != driver.ReasonExit || c.Result.ExitCode != 0:
		if cause := c.ctx.Err(); c.Result.Reason == driver.ReasonCanceled && cause != nil {
			return errors.Join(cause, &ExitError{Result: c.Result})
		}
		return &ExitError{Result: c.Result}
	}
	return c.failed
}

// Output runs the command and returns what it wrote to its standard output, up to
// Options.MaxOutput or the profile's limit; Result.StdoutTruncated says whether that
// is all. If Stderr is nil, an [*ExitError] has the command's.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("sbxrun: Stdout already set")
	}
	stdout, stderr := &collector{c: c}, &collector{c: c}
	c.Stdout = stdout
	own := c.Stderr == nil
	if own {
		c.Stderr = stderr
	}
	err := c.Run()
	if c.Result != nil {
		c.Result.Stdout, c.Result.StdoutTruncated = stdout.kept.String(), stdout.cut || c.failed == errMissing
		c.Result.Stderr, c.Result.StderrTruncated = stderr.kept.String(), stderr.cut || c.failed == errMissing
	}
	var exit *ExitError
	if own && errors.As(err, &exit) {
		exit.Stderr = stderr.kept.Bytes()
	}
	return stdout.kept.Bytes(), err
}

// CombinedOutput runs the command and returns what it wrote to its standard output and
// error, in order, up to the same limit as [Cmd.Output].
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("sbxrun: Stdout or Stderr already set")
	}
	both := &collector{c: c}
	c.Stdout, c.Stderr = both, both
	err := c.Run()
	if c.Result != nil {
		c.Result.Stdout, c.Result.StdoutTruncated = both.kept.String(), both.cut || c.failed == errMissing
	}
	return both.kept.Bytes(), err
}

// A collector keeps what a command writes, up to its limit, and lets it write on.
type collector struct {
	c    *Cmd
	kept bytes.Buffer // not embedded: io.Copy would use its ReadFrom
	cut  bool
}

func (b *collector) Write(p []byte) (int, error) {
	keep := p
	if most := b.c.output; most > 0 && int64(b.kept.Len()+len(p)) > most {
		keep, b.cut = p[:max(0, most-int64(b.kept.Len()))], true
	}
	b.kept.Write(keep)
	return len(p), nil
}

// streams makes files of the readers and writers.
func (c *Cmd) streams(s *driver.Stdio) error {
	var err error
	if s.Stdin, err = c.input(); err != nil {
		return err
	}
	if s.Stdout, err = c.to(c.Stdout); err != nil {
		return err
	}
	if same(c.Stdout, c.Stderr) {
		s.Stderr = s.Stdout // one pipe, so that the order is kept
		return nil
	}
	s.Stderr, err = c.to(c.Stderr)
	return err
}

// same reports whether two writers are one, where that can be asked.
func same(a, b io.Writer) bool {
	defer func() { recover() }() // of types that cannot be compared
	return a == b
}

func (c *Cmd) input() (*os.File, error) {
	if f, ok := c.Stdin.(*os.File); ok || c.Stdin == nil {
		return f, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.files = append(c.files, r, w)
	// Not waited for: a reader may block for as long as it likes.
	go func() {
		defer w.Close()
		io.Copy(w, reader{c}) // the command need not read all
	}()
	return r, nil
}

// A reader is Stdin, of which an error is kept apart from errors of the pipe.
type reader struct{ c *Cmd }

func (r reader) Read(p []byte) (int, error) {
	n, err := r.c.Stdin.Read(p)
	if err != io.EOF {
		r.c.fail(err)
	}
	return n, err
}

func (c *Cmd) to(w io.Writer) (*os.File, error) {
	if f, ok := w.(*os.File); ok || w == nil {
		return f, nil
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.files = append(c.files, to)
	var failed error
	c.copies = append(c.copies, driver.NewStream(from, func(b []byte) {
		if failed != nil {
			return // the command is not held up
		}
		n, err := w.Write(b)
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		failed = err
		c.fail(err)
	}, nil))
	return to, nil
}

func (c *Cmd) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
}

var errMissing = errors.New("sbxrun: a part of the output is missing")

// close closes this process's ends, and ends the copying once all is copied.
func (c *Cmd) close() {
	for _, f := range c.files {
		f.Close()
	}
	for _, s := range c.copies {
		if !s.Settle() {
			c.fail(errMissing)
		}
		s.Close()
	}
}
