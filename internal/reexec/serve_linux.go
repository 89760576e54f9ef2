package reexec

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// A Job is a command for a stage that serves. It comes from [Child.NewJob].
type Job struct {
	// Steps run in the process that becomes the command, on a copy of the
	// registers that Init and Start left.
	Steps *sys.Program

	// Cgroup is as in [Config]: a register of the stage, or one of Pass.
	Cgroup sys.Reg

	// Paths, Argv and Env are as in [Config].
	Paths, Argv, Env []string
	Else             Else

	// Patience is how long the stage may be at starting the job (default 10 s). It
	// waits for the job's process until that has become the command, and hears of
	// nothing meanwhile; other commands can stop the process over and over, since
	// SIGSTOP cannot be blocked.
	Patience time.Duration

	c      *Child
	index  int
	files  []int
	mem    sys.Program
	native job // what the stage reads

	watching struct { // whether the stage runs
		sync.Mutex
		on     bool
		looks  int       // how often yet
		asked  time.Time // when the end was asked for
		asking int       // how often yet, since then
		surely bool      // until the end
	}
	started  chan struct{}
	ended    chan struct{}
	pid      int // in the sandbox
	terminal chan *os.File
}

// jobs are those of one stage.
type jobs struct {
	table []uintptr // the stage's own: addresses of the jobs that run
	quiet uint64    // the stage's own; see [Child.Quiet]

	mu   sync.Mutex // guards live
	live []*Job     // by index
	next int

	// sending is full while a packet is sent, so that they go one by one. What the
	// stage says is read meanwhile: it does not listen while nobody does.
	sending chan struct{}

	acts atomic.Uint64 // jobs that the stage has begun with so far

	over  chan struct{} // closed after the stage's final message, or its death
	final message
	err   error
}

func newJobs(n int) *jobs {
	return &jobs{table: make([]uintptr, n), live: make([]*Job, n), sending: make(chan struct{}, 1),
		over: make(chan struct{})}
}

// Quiet is how many jobs a stage that serves had begun to start when PID 1 last had no
// child: if that is how many there were, nothing runs.
func (c *Child) Quiet() uint64 { return atomic.LoadUint64(&c.jobs.quiet) }

// NewJob reserves a place for a command. It fails with EAGAIN if MaxJobs are
// running, and with ESRCH if the stage is at its end. Exec or Drop gives the
// place back.
func (c *Child) NewJob() (*Job, error) {
	js := c.jobs
	js.mu.Lock()
	defer js.mu.Unlock()
	select {
	case <-js.over:
		return nil, syscall.ESRCH
	default:
	}
	for range js.live {
		i := js.next
		js.next = (js.next + 1) % len(js.live)
		if js.live[i] == nil {
			j := &Job{c: c, index: i, Steps: &sys.Program{}, started: make(chan struct{}), ended: make(chan struct{}),
				terminal: make(chan *os.File, 1)}
			j.Steps.ReserveRegs(c.cfg.Init)
			if c.cfg.Start != nil {
				j.Steps.ReserveRegs(c.cfg.Start)
			}
			js.live[i] = j
			return j, nil
		}
	}
	return nil, syscall.EAGAIN
}

// Pass hands a descriptor of the supervisor to the job; it is in the register
// while Steps run. It stays the caller's to close once Exec has returned.
//
// Preconditions: no other register was taken from Steps yet, and no more than 16
// descriptors are passed.
func (j *Job) Pass(fd int) sys.Reg {
	if len(j.files) == maxJobFiles {
		panic("reexec: too many descriptors for one job")
	}
	r := j.Steps.NewReg()
	if len(j.files) == 0 {
		j.native.files = r
	} else if r != j.native.files+sys.Reg(len(j.files)) {
		panic("reexec: Pass after NewReg")
	}
	j.files = append(j.files, fd)
	return r
}

// SendTerminal appends the step that passes the master of the job's terminal to
// the supervisor; Exec waits for it.
func (j *Job) SendTerminal(master sys.Value) { sendTerminal(j.Steps, master, uint32(j.index)) }

// Drop gives up a job that Exec was not called for.
func (j *Job) Drop() {
	j.c.jobs.mu.Lock()
	j.c.jobs.live[j.index] = nil
	j.c.jobs.mu.Unlock()
}

// ErrStuck says that a job's process did not become the command in time. It was killed,
// or the sandbox if that was not possible. [Job.Begun] tells whether the kill came too
// late.
var ErrStuck = errors.New("the process did not come to execute the command, as when others stop it, and was killed")

// ErrHalted says that somebody holds process 1 of the sandbox, as a debugger does, which
// nothing inside can. Without it nothing begins there and nobody hears of an end, so the
// sandbox was killed.
var ErrHalted = errors.New("process 1 of the sandbox was held from outside, and the sandbox was killed")

// haltedPatience is how long a stage may be held while somebody waits for the end of a
// command.
const haltedPatience = 5 * time.Second

// Halted has a stage continue that somebody stopped, and reports for how long it did not:
// since the first of the calls that found it as it is now. It is 0 for one that runs.
func (c *Child) Halted() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0 // the number may be another's
	}
	s := status(strconv.Itoa(c.pid))
	if s.state != 'T' && s.state != 't' {
		c.halted = time.Time{}
		return 0
	}
	if c.halted.IsZero() || s.slept != c.slept {
		c.halted, c.slept = time.Now(), s.slept
	}
	unix.PidfdSendSignal(c.pidfd, unix.SIGCONT, nil, 0)
	return max(time.Since(c.halted), 1)
}

// Ending is for who has asked for the end of a job, surely or by a signal that the command
// may handle. From then on the stage is not to stand still: it is continued, and killed
// where that does not help, for nobody else would tell of the end.
func (j *Job) Ending(surely bool) { j.told(true, surely) }

// Told is for who has sent a signal to a job: the stage is continued until it has come to
// the command, which does what it likes.
func (j *Job) Told() { j.told(false, false) }

func (j *Job) told(end, surely bool) {
	w := &j.watching
	w.Lock()
	defer w.Unlock()
	w.looks, w.surely = 3, w.surely || surely
	if end {
		w.asking = 3
		if w.asked.IsZero() {
			w.asked = time.Now()
		}
	}
	if !w.on {
		w.on = true
		go j.watch()
	}
}

func (j *Job) watch() {
	const each = haltedPatience / 5
	w := &j.watching
	for {
		halted := j.c.Halted()
		w.Lock()
		kill := halted >= haltedPatience && !w.asked.IsZero() && time.Since(w.asked) >= haltedPatience
		switch {
		case halted > 0:
			w.looks, w.asking = 3, 3
		case w.surely:
		default:
			if w.asking == 0 {
				w.asked = time.Time{} // what was asked has come to the command
			}
			if w.looks == 0 {
				w.on = false
				w.Unlock()
				return
			}
			w.looks, w.asking = w.looks-1, max(w.asking-1, 0)
		}
		w.Unlock()
		if kill {
			j.c.Kill()
			return
		}
		select {
		case <-j.ended:
			return
		case <-j.c.jobs.over:
			return
		case <-time.After(each):
		}
	}
}

// startPatience is how long a stage may be at starting a job, slowFactor how many times
// that if it is only short of the processor, and sendPatience how long a packet may wait
// while the stage starts nothing, which is longer than it may be at one job.
const (
	startPatience = 10 * time.Second
	slowFactor    = 6
	sendPatience  = (slowFactor + 1) * startPatience
)

// Exec starts the job's command. The error is a *StepError, an *ExecError, ErrStuck,
// ErrHalted, ETIMEDOUT if the stage does not listen, or ESRCH if it has ended; nothing runs then,
// and Begun tells whether anything did.
func (j *Job) Exec() error {
	j.native.arguments(&j.mem, j.Paths, j.Argv, j.Env, j.Else)
	j.native.cgroup = j.Cgroup
	if err := j.send(msgExec); err != nil {
		return err
	}
	j.pid = int(j.native.pid)
	return nil
}

// Taken reports whether the stage has begun to act on the job, and so has come to the
// end of its set-up. That the stage is gone for good is what makes the answer final, if
// it ended.
func (j *Job) Taken() bool { return atomic.LoadUint32(&j.native.taken) != 0 }

// Begun reports, after an error of Exec, whether the command may have run all the same.
// If the stage ended, the answer is final when it is gone for good.
func (j *Job) Begun() bool { return atomic.LoadUint32(&j.native.executing) != 0 }

// Call runs the job's steps in PID 1 itself, and is done with the job. Before
// [Child.Complete] that is all that a job can be used for, and it has no
// descriptors.
func (j *Job) Call() error {
	defer j.Drop()
	return j.send(msgCall)
}

// send hands the job to the stage and waits until that has acted on it.
func (j *Job) send(kind uint32) error {
	c := j.c
	j.native.steps = j.Steps.Runnable()
	j.native.nfiles = uintptr(len(j.files))
	addr := j.native.bind()
	m := message{Kind: kind, A: uint32(j.index), B: uint32(addr), C: uint32(addr >> 32)}
	var oob []byte
	if len(j.files) > 0 {
		oob = unix.UnixRights(j.files...)
	}
	if err := c.sendmsg(m, oob, sendPatience); err != nil {
		j.Drop()
		return err
	}
	if err := j.await(kind); err != nil {
		return err
	}
	if e := j.native.failErrno; e != 0 {
		if kind == msgExec {
			j.Drop()
		}
		select {
		case f := <-j.terminal:
			f.Close()
		default:
		}
		return c.failed(message{A: j.native.failStage, B: j.native.failStep, C: e}, j.Steps)
	}
	return nil
}

// await waits until the stage has acted on the job.
func (j *Job) await(kind uint32) error {
	patience := startPatience
	if j.Patience > 0 {
		patience = j.Patience
	}
	tick := time.NewTicker(patience / 2)
	defer tick.Stop()
	w := watch{j: j}
	var halted time.Duration
	for {
		select {
		case <-j.started:
			if !w.gaveUp || j.native.failErrno != 0 {
				return nil
			}
			if j.Begun() {
				select {
				case <-j.ended:
					if s := syscall.WaitStatus(j.native.status); !s.Signaled() || s.Signal() != unix.SIGKILL {
						return nil // it had ended by itself
					}
				case <-j.c.jobs.over:
				case <-time.After(slowFactor * patience):
					j.c.Kill()
				}
			}
			return ErrStuck
		case <-j.c.jobs.over:
			select {
			case <-j.started: // before that
				return nil
			default:
				// The stage has ended, and may be gone: but it shares this memory until
				// Close has waited for it, so the job stays where it is.
				if w.gaveUp {
					return ErrStuck
				}
				if halted >= haltedPatience {
					return ErrHalted
				}
				return syscall.ESRCH
			}
		case <-tick.C:
			switch halted = j.c.Halted(); {
			case halted >= haltedPatience:
				j.c.Kill()
			case halted > 0: // it has just been told to continue
			case kind == msgExec && j.Taken(): // else another has its turn
				w.look()
			}
		}
	}
}

// A watch looks, every half of the patience, at a stage that is at starting a job.
type watch struct {
	j      *Job
	looks  int
	killed bool // the process was
	since  int  // looks since then
	gaveUp bool // something was killed
}

// look ends what hinders the stage: the process that is to become the command, if it is
// found, and the stage otherwise.
func (w *watch) look() {
	fd, state := w.j.process()
	if fd >= 0 {
		defer unix.Close(fd)
	}
	switch w.decide(state, w.j.Begun()) {
	case endStage:
		w.gaveUp = true
		w.j.c.Kill()
	case endStarting:
		if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			w.killed, w.gaveUp = true, true
		}
	}
}

// What a look comes to.
const (
	goOn = iota
	endStarting
	endStage
)

// decide is what to do about a stage by the state of the process that it is starting, 0
// for none, and whether that is executing the command. A process that waits for its turn
// is only slow, as hundreds are that start at once on a machine with other work, and so is
// a file system that execve(2) waits for; one that waits for anything else is hindered.
// Where there is no process, the stage may be making it: clone(2) waits while others
// change cgroups, and that can take as long.
func (w *watch) decide(state byte, executing bool) int {
	w.looks++
	if w.looks < 2 {
		return goOn
	}
	if w.killed {
		if w.since++; w.since > slowFactor {
			return endStage
		}
		return goOn
	}
	slow := state == 0 || state == 'R' || state == 'D' || executing
	switch {
	case slow && w.looks < 2*slowFactor:
		return goOn
	case state != 0:
		return endStarting
	}
	return endStage
}

// process finds the process that is to become the command: a pidfd, and its state as in
// proc_pid_status(5). They are -1 and 0 if there is none.
func (j *Job) process() (fd int, state byte) {
	pid := strconv.Itoa(j.c.pid)
	children, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	for _, f := range strings.Fields(string(children)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			continue
		}
		// Opened first: what is read and killed then is the same process.
		if fd, err = unix.PidfdOpen(n, 0); err != nil {
			continue
		}
		if s := status(f); s.state != 0 && s.inside == atomic.LoadUint32(&j.native.tid) {
			return fd, s.state
		}
		unix.Close(fd)
	}
	return -1, 0
}

// A processStatus is what proc_pid_status(5) says of a process.
type processStatus struct {
	state  byte   // 0 if it is not there
	inside uint32 // its number in the innermost pid namespace
	slept  string // how many times it has waited, or stopped
}

func status(pid string) (s processStatus) {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return s
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":\t")
		switch key {
		case "State":
			s.state = (value + "?")[0]
		case "NSpid":
			n, _ := strconv.ParseUint(value[strings.LastIndexByte(value, '\t')+1:], 10, 32)
			s.inside = uint32(n)
		case "voluntary_ctxt_switches":
			s.slept = value
		}
	}
	return s
}

// sendmsg sends a packet, waiting for room, with descriptors. Patience is how long it
// waits while the stage starts nothing.
func (c *Child) sendmsg(m message, oob []byte, patience time.Duration) error {
	deadline, acts := time.Now().Add(patience), c.jobs.acts.Load()
	late := func() bool {
		if now := c.jobs.acts.Load(); now != acts {
			deadline, acts = time.Now().Add(patience), now
		}
		return time.Until(deadline) <= 0
	}
	for turn := false; !turn; {
		select {
		case c.jobs.sending <- struct{}{}:
			turn = true
			continue
		default:
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case c.jobs.sending <- struct{}{}:
			turn = true
		case <-c.jobs.over:
			timer.Stop()
			return syscall.ESRCH
		case <-timer.C:
			if late() {
				return syscall.ETIMEDOUT
			}
		}
		timer.Stop()
	}
	defer func() { <-c.jobs.sending }()
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return syscall.ESRCH
	}
	packet := m.encode()
	for {
		err := unix.Sendmsg(c.fd, packet, oob, nil, unix.MSG_NOSIGNAL)
		switch err {
		case unix.EINTR:
		case unix.EAGAIN:
			// Close, or the stage's end, is an event too.
			if late() {
				return syscall.ETIMEDOUT
			}
			unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}, int(time.Until(deadline).Milliseconds())+1)
		case unix.EPIPE, unix.ECONNRESET:
			return syscall.ESRCH
		default:
			return err
		}
	}
}

// Pid is the command's process id in the sandbox.
func (j *Job) Pid() int { return j.pid }

// Terminal is the master of the job's terminal, after Exec; nil without one.
func (j *Job) Terminal() *os.File {
	select {
	case f := <-j.terminal:
		return f
	default:
		return nil
	}
}

// Signal sends a signal to the command, or to its process group, of which nothing
// is then left when the command ends. It does nothing once the command has ended.
func (j *Job) Signal(sig syscall.Signal, group bool) error {
	select {
	case <-j.ended:
		return syscall.ESRCH
	default:
	}
	a := uint32(sig)
	if group {
		a |= signalGroup
		atomic.StoreUint32(&j.native.ending, 1)
	}
	return j.c.post(message{Kind: msgSignalJob, A: a, B: uint32(j.index), C: uint32(j.pid)})
}

// Wait returns when the command has ended; what it started may live on. The
// error is ESRCH if the sandbox ended with it.
func (j *Job) Wait() (*Exit, error) {
	select {
	case <-j.ended:
	case <-j.c.jobs.over:
		select {
		case <-j.ended:
		default:
			return nil, syscall.ESRCH
		}
	}
	n := &j.native
	return &Exit{
		Status: syscall.WaitStatus(n.status),
		Usage: Usage{
			UserMicros:   uint64(n.rusage.Utime.Sec)*1e6 + uint64(n.rusage.Utime.Usec),
			SystemMicros: uint64(n.rusage.Stime.Sec)*1e6 + uint64(n.rusage.Stime.Usec),
			MaxRSSKiB:    uint64(n.rusage.Maxrss),
		},
		ExecNS: n.execNS, EndNS: n.endNS,
		First: n.touched == 0,
		Alone: n.alone != 0,
		Full:  n.full != 0,
	}, nil
}

// End makes a stage that serves kill everything and report. Wait returns then. The
// error is ETIMEDOUT if the stage has not listened for a second: Kill does without.
func (c *Child) End() error { return c.sendmsg(message{Kind: msgEnd}, nil, time.Second) }

// Over is closed when a stage that serves has said its last word, as it does when
// nothing but itself is left, or is dead.
func (c *Child) Over() <-chan struct{} { return c.jobs.over }

// dispatch reads what a serving stage says until its final message.
func (c *Child) dispatch() {
	js := c.jobs
	defer close(js.over)
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		m, rights, err := c.next(oob)
		if err != nil {
			js.err = err
			return
		}
		if m.Kind == msgFailed || m.Kind == msgExited {
			js.final = m
			return
		}
		js.mu.Lock()
		var j *Job
		if int(m.A) < len(js.live) {
			j = js.live[m.A]
		}
		if j != nil && m.Kind == msgEnded {
			js.live[m.A] = nil
		}
		js.mu.Unlock()
		if j == nil {
			js.err = &ProtocolError{What: "message about no job"}
			c.Kill()
			return
		}
		switch m.Kind {
		case msgTerminal:
			f, err := terminal(rights)
			if err != nil {
				js.err = err
				c.Kill()
				return
			}
			select {
			case j.terminal <- f:
			default:
				f.Close()
			}
		case msgStarted:
			js.acts.Add(1)
			close(j.started)
		case msgEnded:
			close(j.ended)
		}
	}
}
