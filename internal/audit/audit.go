//go:build unix

// Package audit records what was run and what was refused: a file of JSON, one
// object a line. A run has a line before it begins, so that nothing runs unseen
// whatever ends this program or fills the disk meanwhile, and one when it has ended.
//
// Many programs may write one file at a time: a line is one write(2) to a file
// opened for appending, under a lock that also covers putting a full file away. What
// a write left of a line, on a full disk, does not become part of the next.
// The file belongs to the caller and nobody else reads it; a symbolic link, or a
// file that others can read or write, is refused.
//
// Commands come from strangers, and they hold passwords. What is recorded of them
// is bounded, without secrets as far as they can be told (see [Redactor]), and
// every control character is escaped: a line stays a line and a terminal that
// shows it does nothing but that.
//
// It does not defend the file against its owner; package profiles refuses one
// that the command could write.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// Config is where and how much to record.
type Config struct {
	File    string
	MaxSize int64 // bytes at which the file is put away; 0 is never
	Keep    int   // files that were put away: FILE.1 is the newest
}

// A Record is one line.
type Record struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`  // begin, run, denial, answer
	Source string    `json:"source"` // run, session, mcp: what ran or refused it; hook: what left it to the agent
	UID    int       `json:"uid"`
	PID    int       `json:"pid"` // of sbxrun

	Began *time.Time `json:"began,omitempty"` // the time of the run's first record, in all others

	Session string   `json:"session,omitempty"`
	Tool    string   `json:"tool,omitempty"` // of an agent
	Command []string `json:"command,omitempty"`
	Cwd     string   `json:"cwd,omitempty"`

	Profile   string `json:"profile,omitempty"`
	Driver    string `json:"driver,omitempty"`
	Sandboxed bool   `json:"sandboxed"`
	Why       string `json:"unsandboxed_because,omitempty"`

	// Of an answer to a question about a denial: no, once or always, and who gave it.
	Answer string `json:"answer,omitempty"`
	By     string `json:"by,omitempty"`

	*Outcome
	*driver.Denial
}

// Outcome is how a run ended.
type Outcome struct {
	ExitCode   int           `json:"exit_code"`
	Signal     string        `json:"signal,omitempty"`
	Ended      driver.Reason `json:"ended"`
	DurationMS float64       `json:"duration_ms"`
	Degraded   string        `json:"degraded,omitempty"`
	Denials    int           `json:"denials"` // records of refusals that follow
	Error      string        `json:"error,omitempty"`
}

// OutcomeOf is what a result says.
func OutcomeOf(r *driver.Result) *Outcome {
	return &Outcome{ExitCode: r.ExitCode, Signal: r.Signal, Ended: r.Reason, DurationMS: r.DurationMS,
		Degraded: r.Degraded.String(), Denials: len(r.Denials), Error: r.Error}
}

const (
	// maxText bounds each text of a record, and maxCommand a command's words
	// together: a line stays below 64 KiB, whatever was run.
	maxText    = 2 << 10 // bytes
	maxCommand = 4 << 10 // bytes
	maxWords   = 256
)

// A Log is a file that records go to. Its methods may be called at the same time.
type Log struct {
	config Config
	redact *Redactor
	mu     sync.Mutex
}

// Open returns the log in a file, after it was seen that records can be written.
func Open(c Config, r *Redactor) (*Log, error) {
	l := &Log{config: c, redact: r}
	return l, l.Ready()
}

// Ready reports why a record could not be written now.
func (l *Log) Ready() error {
	f, err := l.open()
	if err != nil {
		return err
	}
	return f.Close()
}

// Begin records a run that is about to begin, and has r say when that was. After an
// error nothing must run.
func (l *Log) Begin(r *Record) error {
	now := moment(time.Now())
	b := *r
	b.Event, b.Time = "begin", now
	if err := l.write([]Record{b}); err != nil {
		return err
	}
	r.Began = &now
	return nil
}

// moment is a time as it is recorded.
func moment(t time.Time) time.Time { return t.UTC().Round(time.Microsecond) }

// Run records a run that has ended, and what was refused in it. Nil is the outcome of one that goes
// on, and of which no more will be known.
func (l *Log) Run(r Record, o *Outcome, denials []driver.Denial) error {
	r.Event, r.Outcome = "run", o
	all := []Record{r}
	for i := range denials {
		d := r
		d.Event, d.Outcome, d.Denial = "denial", nil, &denials[i]
		all = append(all, d)
	}
	return l.write(all)
}

// Denied records a refusal for which nothing ran.
func (l *Log) Denied(r Record, d driver.Denial) error {
	r.Event, r.Denial = "denial", &d
	return l.write([]Record{r})
}

// Answered records the answer to a question about a refusal, before it has an effect.
func (l *Log) Answered(r Record, d driver.Denial) error {
	r.Event, r.Denial = "answer", &d
	return l.write([]Record{r})
}

func (l *Log) write(all []Record) error {
	var lines [][]byte
	for i := range all {
		r := &all[i]
		if r.Time.IsZero() {
			r.Time = time.Now()
		}
		r.UID, r.PID = os.Getuid(), os.Getpid()
		line, err := l.line(r)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range lines {
		if err := l.append(line); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
	}
	return nil
}

// line is a record's line.
func (l *Log) line(r *Record) ([]byte, error) {
	c := *r
	c.Time = moment(c.Time)
	c.Command = l.words(c.Command)
	for _, s := range []*string{&c.Source, &c.Session, &c.Tool, &c.Cwd, &c.Profile, &c.Driver, &c.Why, &c.By} {
		*s = l.text(*s)
	}
	if c.Outcome != nil {
		o := *c.Outcome
		o.Error, o.Signal, o.Degraded = l.text(o.Error), l.text(o.Signal), l.text(o.Degraded)
		c.Outcome = &o
	}
	if c.Denial != nil {
		d := *c.Denial
		for _, s := range []*string{&d.Operation, &d.Target, &d.Rule, &d.Origin, (*string)(&d.Grant), &d.Reason} {
			*s = l.text(*s)
		}
		if d.Process != nil {
			d.Process = &driver.Asker{PID: d.Process.PID, Command: l.text(d.Process.Command)}
		}
		c.Denial = &d
	}
	var v any = &c
	if c.Event == "begin" {
		v = struct { // of which nobody knows yet whether it is sandboxed
			*Record
			Sandboxed *bool `json:"sandboxed,omitempty"`
		}{Record: &c}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return append(quote.JSON(b), '\n'), nil
}

func (l *Log) text(s string) string { return cut(l.redact.Text(s), maxText) }

func (l *Log) words(all []string) []string {
	out, left := []string{}, maxCommand
	for i, w := range l.redact.Words(all) {
		if i == maxWords || left <= 0 {
			return append(out, "… "+strconv.Itoa(len(all)-i)+" more")
		}
		w = cut(w, left)
		left -= len(w)
		out = append(out, w)
	}
	return out
}

// cut shortens a text, and says so.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	at := most
	for at > 0 && !utf8.RuneStart(s[at]) {
		at--
	}
	return s[:at] + "… " + strconv.Itoa(len(s)-at) + " bytes more"
}

// append writes one line, into a new file if this one is full.
func (l *Log) append(line []byte) error {
	for range 100 {
		f, err := l.open()
		if err != nil {
			return err
		}
		done, err := l.appendTo(f, line)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if done || err != nil {
			return err
		}
	}
	return errors.New(l.config.File + ": it is put away faster than it can be written to")
}

// appendTo reports false if the file is not the one to write to any more.
func (l *Log) appendTo(f *os.File, line []byte) (bool, error) {
	if err := lock(f); err != nil {
		return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	// Another may have put it away while this one waited.
	now, err := os.Lstat(l.config.File)
	if err != nil || !os.SameFile(mine, now) {
		return false, nil
	}
	if l.config.MaxSize > 0 && mine.Size() > 0 && mine.Size()+int64(len(line)) > l.config.MaxSize {
		return false, l.rotate()
	}
	last := []byte{'\n'}
	if mine.Size() > 0 {
		if _, err := f.ReadAt(last, mine.Size()-1); err != nil {
			return false, err
		}
	}
	if last[0] != '\n' {
		line = append([]byte{'\n'}, line...)
	}
	_, err = f.Write(line)
	return err == nil, err
}

// rotate puts the file away. The lock on it is held.
func (l *Log) rotate() error {
	name := func(i int) string { return l.config.File + "." + strconv.Itoa(i) }
	if l.config.Keep <= 0 {
		return os.Remove(l.config.File)
	}
	for i := l.config.Keep - 1; i >= 1; i-- {
		if err := os.Rename(name(i), name(i+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Rename(l.config.File, name(1))
}

// open opens the file for appending, and sees that it is ours.
func (l *Log) open() (*os.File, error) {
	// O_NONBLOCK: a FIFO is refused, and not waited for.
	f, err := os.OpenFile(l.config.File, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		if errors.Is(err, syscall.ELOOP) {
			return nil, &Error{l.config.File, "it is a symbolic link", "name the file itself"}
		}
		return nil, &Error{l.config.File, err.Error(), "name a file in a directory that exists and that you can write to"}
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	st, _ := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		err = &Error{l.config.File, "it is not a regular file", "name another"}
	case fi.Mode().Perm()&0o077 != 0:
		err = &Error{l.config.File, "others can read or write it", "chmod 600 " + l.config.File}
	case st != nil && int(st.Uid) != os.Geteuid():
		err = &Error{l.config.File, "it belongs to user " + strconv.Itoa(int(st.Uid)), "name a file of your own"}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// patience bounds the wait for the lock. Who writes a line has it for less than a
// millisecond; who can open the file can have it for ever.
var patience = 10 * time.Second

// lock waits for the lock on a file, which its end gives up; see flock(2).
func lock(f *os.File) error {
	end := time.Now().Add(patience)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == syscall.EINTR:
		case err != syscall.EWOULDBLOCK:
			return err
		case time.Now().After(end):
			return errors.New("another program keeps it locked")
		default:
			time.Sleep(pause)
		}
	}
}

// An Error says why records cannot be written.
type Error struct{ file, what, fix string }

func (e *Error) Error() string { return "audit log " + e.file + ": " + e.what }

// Hint says what to do about it.
func (e *Error) Hint() string { return e.fix }
