// Package terminal joins the caller's terminal to that of a command, with the keys that
// detach from it. It knows nothing of flags.
package terminal

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/sigpipe"
)

const (
	// stalled is how long nobody may read the terminal's last output, once the
	// command has ended, before it is given up. A pager or a slow line takes its
	// time; but a run that was ended by its time limit is to end.
	stalled = 30 * time.Second

	// urged is that time where a signal asked for the end.
	urged = time.Second

	// haltsWithin is how long after a signal an end is still its doing.
	haltsWithin = 5 * time.Second

	// again is the time between two ends of file.
	again = 200 * time.Millisecond
)

// Is reports whether a file is a terminal.
func Is(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Quit has SIGQUIT end the program without a word, as long as it is not caught.
func Quit() { sigpipe.Default(syscall.SIGQUIT) }

// Catch has the signals that are for the command sent to the channel.
func Catch(to chan<- os.Signal, tty bool) {
	want := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2, syscall.SIGWINCH}
	if tty {
		// With a terminal of its own the command learns of a new size from the
		// kernel, when that terminal is resized.
		want = want[:len(want)-1]
	}
	sigpipe.Notify(to, want...)
}

// Size is the size of the caller's terminal, nil if it has none.
func Size() *specs.Box {
	for _, f := range []*os.File{os.Stdout, os.Stdin} {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Row != 0 {
			return &specs.Box{Height: uint(ws.Row), Width: uint(ws.Col)}
		}
	}
	return nil
}

// A Terminal joins the caller's terminal to the command's, once. The zero value is
// ready to use.
type Terminal struct {
	mu    sync.Mutex
	state *term.State // what to restore, or nil
	lost  func() bool // whether the command was lost, once it was waited for; nil for one that cannot be

	patience time.Duration // how long nobody may read the last output; 0: for ever
	asked    chan struct{} // gets a value if a signal asks for the end; nil if nobody looks
	askedAt  atomic.Int64  // when one did last, in ns
	ended    atomic.Bool   // the command has, and nobody takes signals any more
	unshown  error         // see Unshown

	interview interview // of who sits at the caller's terminal

	// For commands of sessions.
	Keys      []byte    // that detach, nil for none
	Deadline  time.Time // of the time limit, zero for none
	KillAfter time.Duration
}

// Heed passes signals on to the channel that it returns. Those that ask for the end let
// the wait for the last output be short, whoever does not read it.
func (t *Terminal) Heed(signals <-chan os.Signal) <-chan os.Signal {
	to := make(chan os.Signal, cap(signals))
	t.asked = make(chan struct{}, 1)
	go func() {
		for s := range signals {
			switch s {
			case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
				t.askedAt.Store(time.Now().UnixNano())
				select {
				case t.asked <- struct{}{}:
				default:
				}
			}
			select {
			case to <- s:
				continue
			default:
			}
			// Many of one signal hide no other: it waits for room, for which a command that
			// has ended has no use.
			for room := false; !room && !t.ended.Load(); {
				select {
				case to <- s:
					room = true
				case <-time.After(again):
				}
			}
		}
	}()
	return to
}

// Unshown is why not all that the command's terminal showed was written, nil if it was. It
// is known once what Attach or Join returned has returned.
func (t *Terminal) Unshown() error { return t.unshown }

// errUnread says that what the terminal showed last was not read.
var errUnread = errors.New("nobody reads it")

// Attach copies both ways between the caller's standard streams and the
// command's terminal. The function that it returns waits for the last output
// and restores the terminal.
func (t *Terminal) Attach(p driver.Process) func() {
	if p.Pty() == nil {
		return nil // it was ended before it had one
	}
	// A descriptor of our own: Wait closes the Process's, perhaps before the
	// last output was read.
	fd, err := engine.Dup(p.Pty())
	if err != nil {
		p.Kill()
		return nil
	}
	unix.SetNonblock(fd, true) // the file description is shared, and so is this
	master := os.NewFile(uintptr(fd), "pty")
	t.patience = stalled
	d, ok := p.(detacher)
	if !ok {
		return t.Join(master, master, nil)
	}
	t.lost = d.Lost
	return t.Join(master, master, func() { d.Detach(t.left(), t.KillAfter) })
}

// A detacher is a process that can be left to itself, and that can be lost: nobody waits
// for what it shows then.
type detacher interface {
	Detach(wall, killAfter time.Duration) error
	Lost() bool
}

// left is what is left of the time limit, 0 for none.
func (t *Terminal) left() time.Duration {
	if t.Deadline.IsZero() {
		return 0
	}
	return max(time.Until(t.Deadline), time.Millisecond)
}

// Join copies between the caller's standard streams and a terminal: to its master,
// and from what it shows. If the keys to detach are typed the copying ends, and
// then detach is called, if it is not nil.
func (t *Terminal) Join(master, from *os.File, detach func()) func() {
	in, out := int(os.Stdin.Fd()), int(os.Stdout.Fd())
	tty := term.IsTerminal(in)
	if tty {
		state, _ := term.MakeRaw(in)
		t.mu.Lock()
		t.state = state
		t.mu.Unlock()
	}
	raw, err := master.SyscallConn()
	resize := func() {
		for _, own := range []int{out, in} {
			if ws, err := unix.IoctlGetWinsize(own, unix.TIOCGWINSZ); err == nil {
				raw.Control(func(fd uintptr) { unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, ws) })
				return
			}
		}
	}
	changed := make(chan os.Signal, 1)
	if err == nil {
		resize()
		signal.Notify(changed, syscall.SIGWINCH)
		go func() {
			for range changed {
				resize()
			}
		}()
	}
	done, left := make(chan struct{}), make(chan struct{})
	var leaving atomic.Bool
	go func() {
		defer t.recover()
		t.interview.serves(master)
		keys := &keyWriter{w: keysOf{&t.interview, master}, keys: t.Keys}
		if detach == nil || !tty {
			keys.keys = nil
		}
		if _, err := io.Copy(keys, os.Stdin); err == errDetach {
			// What is shown from now on is for whoever attaches next.
			leaving.Store(true)
			from.SetReadDeadline(time.Now())
			<-done
			detach()
			close(left)
			return
		}
		if tty {
			return
		}
		// A pipe's end is the terminal's end of file, Ctrl-D. It is typed until
		// the command ends, for a pipe stays at its end as well, and because a
		// program that changes the terminal's modes, as a shell does when it
		// starts, loses the one that waited to be read; see termios(3), ICANON.
		for {
			if _, err := master.Write([]byte{4}); err != nil {
				return
			}
			select {
			case <-done:
				return
			case <-time.After(again):
			}
		}
	}()
	shown := &screen{to: os.Stdout, gone: t.Restore, whose: &t.interview.mu}
	if fd, err := engine.Dup(os.Stdout); err == nil {
		shown.to = os.NewFile(uintptr(fd), os.Stdout.Name())
	}
	go func() {
		defer close(done)
		defer t.recover()
		if shown.to != os.Stdout {
			defer shown.to.Close()
		}
		// EIO once no process has the terminal open any more; see pty(7).
		io.Copy(shown, from)
	}()
	return func() {
		t.ended.Store(true)
		if long := max(t.KillAfter, haltsWithin); t.asked != nil && time.Since(time.Unix(0, t.askedAt.Load())) > long {
			select {
			case <-t.asked: // the command had it long ago, and went on
			default:
			}
		}
		idle := t.patience
		if t.lost != nil && t.lost() {
			idle = again
		}
		t.unshown = shown.wait(done, t.asked, idle)
		if leaving.Load() {
			<-left
		}
		signal.Stop(changed)
		close(changed)
		master.Close()
		t.Restore()
	}
}

// A screen writes to standard output, and counts the writes. After an error it takes what
// comes and throws it away: a command whose terminal nobody empties would not end.
type screen struct {
	whose *sync.Mutex // held while it writes
	to    *os.File    // by another number than 1, for which Go ends the program where nobody reads
	gone  func()      // called before the program ends because nobody can read any more
	n     atomic.Int64
	busy  atomic.Bool
	err   atomic.Pointer[error] // of the first write that failed
}

func (c *screen) Write(p []byte) (int, error) {
	c.whose.Lock()
	defer c.whose.Unlock()
	if c.err.Load() == nil {
		c.busy.Store(true)
		_, err := c.to.Write(p)
		if errors.Is(err, syscall.EPIPE) {
			c.gone()
			_, err = os.Stdout.Write(p) // ends the program by SIGPIPE
		}
		if err != nil {
			c.err.Store(&err)
		}
		c.busy.Store(false)
	}
	c.n.Add(1)
	return len(p), nil
}

// wait waits until done, or until nothing was written for the given time, 0 for ever. The
// time is short once it is asked to end. The error is why something was not written.
func (c *screen) wait(done, asked <-chan struct{}, idle time.Duration) error {
	for {
		var over <-chan time.Time
		if idle > 0 {
			over = time.After(idle)
		}
		before := c.n.Load()
		select {
		case <-done:
			return c.failure()
		case <-asked:
			asked = nil
			if idle == 0 || idle > urged {
				idle = urged
			}
		case <-over:
			if c.n.Load() != before {
				continue
			}
			if err := c.failure(); err != nil || !c.busy.Load() {
				return err
			}
			return errUnread
		}
	}
}

func (c *screen) failure() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Restore gives the caller's terminal its modes back. It may be called often.
func (t *Terminal) Restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != nil {
		term.Restore(int(os.Stdin.Fd()), t.state)
		t.state = nil
	}
}

// EndBy ends the program by the first of the signals that ask for its end, with the terminal
// as it was.
func (t *Terminal) EndBy(signals <-chan os.Signal) {
	for s := range signals {
		if sig := s.(syscall.Signal); sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2 {
			t.Restore()
			sigpipe.Default(sig)
			syscall.Kill(os.Getpid(), sig)
		}
	}
}

// recover restores the terminal when a goroutine crashes, and crashes.
func (t *Terminal) recover() {
	if e := recover(); e != nil {
		t.Restore()
		panic(e)
	}
}
