package driver

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// RunOptions is what [Run] needs beside the policy.
type RunOptions struct {
	// Stdio is handed to the command as it is. With Capture set, Stdout and
	// Stderr must be nil.
	Stdio Stdio

	// Capture collects stdout and stderr in the Result, each up to
	// policy.Limits.Output bytes. What comes after is read and thrown away, so
	// that the command never blocks on a full pipe.
	Capture bool

	// Room bounds what is captured together with other runs; nil does not. Who has the
	// result gives back what it has of stdout and stderr.
	Room *Room

	// Signals are forwarded to the command until it ends. A second SIGINT or
	// SIGTERM of a kind that was forwarded before, less than Limits.KillAfter
	// ago, ends everything at once. Nil forwards nothing.
	Signals <-chan os.Signal

	// Elsewhere says that another process has the sandbox and this one stays on one
	// processor, so that it needs few threads.
	Elsewhere bool

	// Started is called once the command runs, before Run waits for it. The
	// function that it returns, which may be nil, is called once the command
	// has ended, before Run returns.
	Started func(Process) func()
}

// A Room is how much of output several runs may keep together.
type Room struct{ left atomic.Int64 }

// NewRoom returns room for so many bytes.
func NewRoom(n int64) *Room {
	r := new(Room)
	r.left.Store(n)
	return r
}

// Take takes room for so many bytes, or none.
func (r *Room) Take(n int64) bool {
	if r.left.Add(-n) >= 0 {
		return true
	}
	r.left.Add(n)
	return false
}

// Give gives back what the output of a result took.
func (r *Room) Give(res *Result) { r.Return(int64(len(res.Stdout) + len(res.Stderr))) }

// Return gives back so many bytes.
func (r *Room) Return(n int64) { r.left.Add(n) }

// Run runs a policy's command by a driver and waits until nothing of it is
// left. It applies what is the same for every driver: the wall time limit, the
// limit on captured output, cancellation, and the verdict.
//
// The result is never nil. The error is nil if the command ran, however it
// ended; it is what kept the command from running otherwise, and the result
// then has the reason "setup" and the exit code for it.
func Run(ctx context.Context, d Driver, p *policy.Policy, o RunOptions) (*Result, error) {
	begin := time.Now()
	res := &Result{Driver: d.Name(), Sandboxed: d.Sandboxed(), Profile: p.Profile}

	var out, errs *capture
	stdio := o.Stdio
	if o.Capture {
		var err error
		if out, err = newCapture(p.Limits.Output, o.Room); err != nil {
			return Fail(res, &SetupError{Driver: d.Name(), Err: err})
		}
		defer out.r.Close()
		if errs, err = newCapture(p.Limits.Output, o.Room); err != nil {
			out.w.Close()
			return Fail(res, &SetupError{Driver: d.Name(), Err: err})
		}
		defer errs.r.Close()
		stdio.Stdout, stdio.Stderr = out.w, errs.w
	}

	starting := stdio.Starting
	stdio.Starting = func() {
		switch {
		case p.OCI != nil && p.OCI.Process != nil && p.OCI.Process.Terminal:
			reserve(terminalThreads + spareThreads())
		case o.Elsewhere && !o.Capture:
			reserve(2) // one in a system call, one that goes on
		default:
			ReserveThreads()
		}
		if starting != nil {
			starting()
		}
	}
	r := run{killAfter: p.Limits.KillAfter}
	var ends []func()
	over := func() {
		r.finish()
		for _, end := range ends {
			end()
		}
	}
	stdio.Made = func(proc Process) {
		r.mu.Lock()
		first := r.proc == nil
		r.proc = proc
		r.mu.Unlock()
		if !first {
			return
		}
		if p.Limits.WallTime > 0 {
			r.timer = time.AfterFunc(p.Limits.WallTime-time.Since(begin), r.timeout)
		}
		ends = r.attend(ctx, o.Signals)
	}
	proc, err := d.Start(ctx, p, stdio)
	if o.Capture {
		// Only the command's copies may keep the pipes open.
		out.w.Close()
		errs.w.Close()
	}
	if err != nil {
		over()
		res.DurationMS = milliseconds(time.Since(begin))
		return Fail(res, err)
	}

	if o.Capture {
		out.start()
		errs.start()
	}
	stdio.Made(proc)
	if o.Started != nil {
		if ended := o.Started(proc); ended != nil {
			ends = append(ends, ended)
		}
	}

	st, err := proc.Wait()

	over()
	if o.Capture {
		res.Stdout, res.StdoutTruncated = out.finish()
		res.Stderr, res.StderrTruncated = errs.finish()
	}
	res.DurationMS = milliseconds(time.Since(begin))
	if err != nil {
		return Fail(res, err)
	}
	r.verdict(res, st)
	return res, nil
}

// ReserveThreads has the runtime start, once, the threads that this process may want
// while commands run. Those can take all that the system has for the user or the
// group, and where the runtime gets no thread that it wants, it ends the process.
var ReserveThreads = sync.OnceFunc(func() {
	reserve(spareThreads())
})

// spareThreads are those in system calls, beside those that there are by now, and one to
// go on for each processor. Four cost nothing that could be measured, twelve 5 % of a run.
// A program may begin with fewer processors than it has later.
func spareThreads() int { return 2 + min(max(runtime.GOMAXPROCS(0), runtime.NumCPU()), 8) }

// terminalThreads are those that more system calls wait in where this process has the
// command's terminal to see to: its keys, what it shows, and its signals.
const terminalThreads = 4

func reserve(threads int) {
	var started, ended sync.WaitGroup
	started.Add(threads)
	stay := make(chan struct{})
	for range threads {
		ended.Go(func() {
			runtime.LockOSThread() // it is nobody else's
			defer runtime.UnlockOSThread()
			started.Done()
			<-stay
		})
	}
	started.Wait()
	close(stay)
	ended.Wait()
}

// run is the part of a run that timers and signals share with its end.
type run struct {
	proc      Process
	killAfter time.Duration
	timer     *time.Timer // of the wall time limit, or nil

	mu        sync.Mutex
	urging    *time.Timer  // looks whether somebody can obey, once a signal was sent
	looks     int          // how often it looks again if nothing is to be seen
	asked     time.Time    // when one asked for the end that may not have come to the command
	asking    int          // as looks, since one asked for the end
	over      bool         // Wait has returned: nothing may be signalled any more
	kill      *time.Timer  // fires KillAfter after ended became set
	ended     Reason       // why we began to end the run, "" if we did not
	forwarded uint64       // signals that were forwarded, by number
	last      [2]time.Time // when SIGINT and SIGTERM were forwarded
}

// end begins to end the run: SIGTERM to everything now, SIGKILL after the
// grace. The first reason stays.
func (r *run) end(why Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.ended != "" {
		return
	}
	halted := r.proc.Halted() // it may have an end to tell of that came before
	if r.killAfter <= 0 {
		if halted > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		r.killFor(why)
		return
	}
	switch err := r.proc.Terminate(); {
	case gone(err):
		return
	case err != nil:
		// There is something, and it does not listen.
		r.killFor(why)
		return
	}
	r.ended = why
	r.urge()
	r.kill = time.AfterFunc(r.killAfter, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.over {
			r.proc.Kill() // best effort: Wait reports what is left
		}
	})
}

// killFor ends all of the command at once. The first reason stays.
//
// Preconditions: mu is held.
func (r *run) killFor(why Reason) {
	// An error says that something remains, or remained too long: what was there got
	// the signal.
	if err := r.proc.Kill(); !gone(err) && r.ended == "" {
		r.ended = why
	}
}

// gone reports whether err says that there was nothing left to end. A run counts as
// ended by us only if there was something: a command that was gone when the timer
// fired was not timed out.
func gone(err error) bool {
	return errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrProcessDone)
}

func (r *run) timeout() { r.end(ReasonTimeout) }
func (r *run) cancel()  { r.end(ReasonCanceled) }

// forward passes signals on until stop is closed.
func (r *run) forward(signals <-chan os.Signal, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case s := <-signals:
			if sig, ok := s.(syscall.Signal); ok {
				r.signal(sig)
			}
		}
	}
}

func (r *run) signal(sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	var last *time.Time
	switch sig {
	case syscall.SIGINT:
		last = &r.last[0]
	case syscall.SIGTERM:
		last = &r.last[1]
	}
	if last != nil {
		now := time.Now()
		again := !last.IsZero() && now.Sub(*last) < max(r.killAfter, time.Second)
		*last = now
		if again {
			r.killFor(ReasonCanceled)
			return
		}
	}
	if r.proc.Signal(sig) == nil && sig < 64 {
		r.forwarded |= 1 << uint(sig)
	}
	if last != nil || sig == syscall.SIGHUP || sig == syscall.SIGQUIT {
		r.asking = urgeLooks
		if r.asked.IsZero() {
			r.asked = time.Now()
		}
	}
	r.urge()
}

// haltedPatience is how long a command that was asked to end may have nobody who could pass
// that on, or tell of its end.
const haltedPatience = 5 * time.Second

// urgeLooks is how often it is looked, after a signal, and not seen that anybody stands still:
// then the signal has come to the command, which does what it likes.
const urgeLooks = 3

// urge sees to it that a command hears of a signal, if somebody stopped what passes signals
// on: while it starts, or soon after.
//
// Preconditions: mu is held.
func (r *run) urge() {
	const each = haltedPatience / 5
	r.looks = urgeLooks
	if r.urging != nil {
		return
	}
	r.urging = time.AfterFunc(each, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.over {
			return
		}
		switch halted := r.proc.Halted(); {
		case halted >= haltedPatience && !r.asked.IsZero() && time.Since(r.asked) >= haltedPatience && r.ended == "":
			r.killFor(ReasonCanceled)
		case r.ended != "": // what it does in its grace is to be told, and its end
			r.urging.Reset(each)
		case halted > 0:
			r.looks, r.asking = urgeLooks, urgeLooks
			r.urging.Reset(each)
		default:
			if r.asking--; r.asking <= 0 {
				r.asked = time.Time{}
			}
			if r.looks--; r.looks > 0 {
				r.urging.Reset(each)
			} else {
				r.urging = nil
			}
		}
	})
}

// finish stops every timer. Nothing is sent to the process after it returns.
func (r *run) finish() {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Lock()
	r.over = true
	if r.kill != nil {
		r.kill.Stop()
	}
	if r.urging != nil {
		r.urging.Stop()
	}
	r.mu.Unlock()
}

// A Watch sees to a command that was started and is waited for elsewhere, as [Run]
// does to its own: to its time limit, and to the verdict.
type Watch struct{ run run }

// NewWatch begins with the time limit, 0 for none. KillAfter is as in
// [policy.Limits].
func NewWatch(p Process, wall, killAfter time.Duration) *Watch {
	w := &Watch{run{proc: p, killAfter: killAfter}}
	if wall > 0 {
		w.run.timer = time.AfterFunc(wall, w.run.timeout)
	}
	return w
}

// Stop ends the watch, once Wait has returned. Nothing is sent to the command after
// that.
func (w *Watch) Stop() { w.run.finish() }

// attend hears what ends the command from outside. What it returns is called once the
// command has ended.
func (r *run) attend(ctx context.Context, signals <-chan os.Signal) (ends []func()) {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, r.cancel)
		ends = append(ends, func() { stop() })
	}
	if signals != nil {
		stop := make(chan struct{})
		go r.forward(signals, stop)
		ends = append(ends, func() { close(stop) })
	}
	return ends
}

// Verdict fills in how the command ended, of which Wait has returned the status.
//
// Preconditions: Stop was called.
func (w *Watch) Verdict(res *Result, st *Status) { w.run.verdict(res, st) }

func (r *run) reason(st *Status) Reason {
	failed := st.Signal != 0 || st.ExitCode != 0
	switch {
	case r.ended != "" && !st.EndedFirst: // else this process was stopped, or had no turn, when the command ended
		return r.ended
	case st.OOMKilled && (st.Signal == syscall.SIGKILL || st.Signal == 0 && st.ExitCode == ExitSignalBase+
		int(syscall.SIGKILL)):
		// Killed, or a shell that tells so of its child. A command that lost a child
		// and exited by itself was not ended by it; Usage counts the kill.
		return ReasonOOM
	case st.Signal != 0 && st.Signal < 64 && r.forwarded&(1<<uint(st.Signal)) != 0:
		return ReasonCanceled
	case st.PidsDenied > 0 && failed:
		return ReasonPids
	case st.Signal != 0:
		return ReasonSignal
	}
	return ReasonExit
}

// verdict says how the run ended, from what was recorded.
func (r *run) verdict(res *Result, st *Status) {
	res.ExitCode = st.ExitCode
	if st.Signal != 0 {
		res.ExitCode = ExitSignalBase + int(st.Signal)
		res.Signal = SignalName(st.Signal)
	}
	if res.Reason = r.reason(st); res.Reason == ReasonTimeout {
		res.ExitCode = ExitTimeout
	}
	res.Layers, res.Degraded, res.Unwatched, res.Pooled = st.Layers, st.Degraded, st.Unwatched, st.Pooled
	res.StorageFull, res.NetworkTried = st.StorageFull, st.NetworkTried
	if st.OOMKilled {
		res.OOMBy = st.OOMBy
	}
	if st.PidsDenied > 0 {
		res.PidsBy = st.PidsBy
	}
	res.Usage, res.Denials, res.Network = st.Usage, st.Denials, st.Network
	res.Usage.PidsDenied = max(res.Usage.PidsDenied, st.PidsDenied)
	res.Denials = append(res.Denials, limits(res)...)
	res.SetupMS = float64(st.SetupNanos) / float64(time.Millisecond)
}

// limits are the limits that a run met, as denials.
func limits(res *Result) (out []Denial) {
	met := func(what, by, flag string, n uint64) {
		d := Denial{Operation: OpLimit, Target: what, Rule: "limit of the policy", Count: n}
		if by != "" {
			d.Rule = by
		} else {
			d.Grant = Grant("--" + flag)
		}
		out = append(out, d)
	}
	if res.Reason == ReasonTimeout {
		met("time", "", "timeout DURATION", 1)
	}
	if n := res.Usage.OOMKills; n > 0 || res.Reason == ReasonOOM {
		met("memory", res.OOMBy, "memory SIZE", max(n, 1))
	}
	if n := res.Usage.PidsDenied; n > 0 {
		met("processes", res.PidsBy, "pids N", n)
	}
	if res.StorageFull && res.ExitCode != 0 {
		met("private storage", "", "disk SIZE", 0)
	}
	if res.NetworkTried {
		out = append(out, Denial{Operation: OpConnect, Target: "network", Rule: RuleNoNetwork,
			Grant: GrantOf("allow-host", "HOST"), Reason: "the command asked for a name or an address"})
	}
	return out
}

// capture keeps one stream of the command, up to a limit.
type capture struct {
	r, w      *os.File
	limit     int64 // 0: none
	room      *Room // nil: none
	full      bool  // there was no room
	data      []byte
	truncated bool
	stream    *Stream
}

func newCapture(limit int64, room *Room) (*capture, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &capture{r: r, w: w, limit: limit, room: room}, nil
}

func (c *capture) start() {
	c.stream = NewStream(c.r, c.keep, nil)
}

// keep collects the stream up to the limit and throws the rest away.
func (c *capture) keep(b []byte) {
	if c.limit > 0 && int64(len(c.data)+len(b)) > c.limit {
		b = b[:int(c.limit)-len(c.data)]
		c.truncated = true
	}
	if c.room != nil && len(b) > 0 && (c.full || !c.room.Take(int64(len(b)))) {
		c.full, c.truncated = true, true // and no hole if there is room again
		return
	}
	c.data = append(c.data, b...)
}

// finish returns what was printed, and whether anything of it is missing.
func (c *capture) finish() (string, bool) {
	c.truncated = !c.stream.Settle() || c.truncated
	c.stream.Close()
	return string(c.data), c.truncated
}

// Fail fills in a result for a run that did not come about.
func Fail(res *Result, err error) (*Result, error) {
	res.Reason = ReasonSetup
	if lost(err) {
		res.Reason = ReasonLost
	}
	res.ExitCode = ExitCodeOf(err)
	res.Error = err.Error()
	res.Code = CodeOf(err)
	res.Hint = HintOf(err)
	return res, err
}

func lost(err error) bool {
	var l *LostError
	return errors.As(err, &l)
}

// ExitCodeOf returns the exit code that says that err kept a command from
// running: 127 if the command was not found, 126 if it could not be executed,
// else 125; see env(1). It is 123 if the command may have run.
func ExitCodeOf(err error) int {
	var c *CommandError
	switch {
	case lost(err):
		return ExitLost
	case !errors.As(err, &c):
		return ExitSetup
	case errors.Is(c.Err, syscall.ENOENT), errors.Is(c.Err, syscall.ENOTDIR):
		return ExitNotFound
	}
	return ExitNotExecutable
}

// CodeOf returns the stable code of an error, "" for one that has none: a
// command that does not exist is no failure of sbxrun.
func CodeOf(err error) Code {
	var coded interface{ Code() Code }
	var unavailable *UnavailableError
	var unsupported *UnsupportedError
	var invalid *policy.InvalidError
	var command *CommandError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &coded):
		return coded.Code()
	case errors.As(err, &command):
		return ""
	case errors.As(err, &unavailable):
		return CodeUnavailable
	case errors.As(err, &unsupported):
		return CodeUnsupported
	case errors.As(err, &invalid):
		return CodeInvalid
	case errors.Is(err, context.DeadlineExceeded):
		return CodeTimeout
	}
	return CodeCreationFailed
}

// HintOf returns what to do about an error, "" if that is not known. The
// outermost error that has a hint is asked.
func HintOf(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		if h := hinted.Hint(); h != "" {
			return h
		}
	}
	var unavailable *UnavailableError
	if errors.As(err, &unavailable) {
		return unavailable.Fix
	}
	var unsupported *UnsupportedError
	if errors.As(err, &unsupported) {
		return unsupported.Fix
	}
	var setup *SetupError
	if errors.As(err, &setup) {
		return setup.Fix
	}
	var command *CommandError
	if errors.As(err, &command) {
		return command.Fix
	}
	return ""
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}
