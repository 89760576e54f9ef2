// Package questions keeps questions: refusals of which somebody may say that they are not to be.
//
// What is inside a sandbox decides what is asked and how often. So questions about the
// same thing are one, few are open at once, few come in a minute to nothing, each is
// answered within a time, and a no holds for a while without another question.
package questions

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// The bounds of what is asked. What comes beyond them is refused without a question.
const (
	MaxOpen = 16 // questions at once
	// Quiet is how long a no holds for what it was about.
	Quiet      = time.Minute
	maxWaiting = 32  // calls that wait for one question
	maxIdle    = 30  // questions in a minute that no yes came to
	maxKept    = 256 // answers that are remembered; the oldest are forgotten first
	// linger is how long a question stays when who asks it has gone: a call that a signal
	// interrupts is made again.
	linger = 300 * time.Millisecond
)

// A Question is a refusal that waits for an answer.
type Question struct {
	ID      int           `json:"id"`
	Session string        `json:"session,omitempty"` // see Board.Attended
	Denial  driver.Denial `json:"denial"`            // Grant is what a yes allows, Process who asks
	Asked   time.Time     `json:"asked"`
	Expires time.Time     `json:"expires"` // it is a no then
	Waiting int           `json:"waiting"` // calls that wait for it
}

// A Board has the questions of one sandbox. Its methods may be called at the same time.
type Board struct {
	// Patience is how long a question waits for an answer.
	Patience time.Duration

	// Answered, if not nil, is called with each question that is over, the answer, and who
	// gave it; "" is nobody in time. An error refuses what was granted.
	Answered func(q Question, a driver.Answer, by string) error

	mu        sync.Mutex
	attended  bool   // see Attended
	session   string // likewise
	last      int
	open      []*question
	noes      []no            // the oldest first
	always    []driver.Denial // what they are about, the oldest first
	idle      []time.Time     // when questions ended without a yes
	kept      []kept          // of who asked, and was just not there
	attending int
	changed   chan struct{} // closed when a question comes or goes
	untold    uint64        // refused without a question
}

type question struct {
	Question
	asker    bool // who asked it waits; others may, too
	left     int  // how often who asks went
	shown    bool // it is listed
	settling bool // it is being answered
	answer   driver.Answer
	gone     bool          // it ended because who asked has gone
	over     chan struct{} // closed when it has ended
}

// A kept is a yes for once whose asker was interrupted, and asks again.
type kept struct {
	about driver.Denial
	by    *driver.Asker
	until time.Time
}

type no struct {
	about driver.Denial
	until time.Time
}

// ErrOver says that a question was answered, or is not asked any more.
var ErrOver = errors.New("the question is over")

// NotOpenError names a question that is not open.
type NotOpenError struct{ ID int }

func (e *NotOpenError) Error() string {
	return "question " + strconv.Itoa(e.ID) + " is not open: it was answered, nobody answered in time, or what asked has ended"
}

func (e *NotOpenError) Unwrap() error { return ErrOver }

// about is what a denial's question is about: who asks does not matter.
func about(d driver.Denial) driver.Denial {
	if d.Operation == driver.OpRead {
		d.Call = "" // the file is the same by each
	}
	return driver.Denial{Operation: d.Operation, Call: d.Call, Target: d.Target, Rule: d.Rule, Grant: d.Grant}
}

// Lasts reports whether what a call would do outlasts it, so that there is no once: by another
// name, or through what a name leads to, the command could change what it was refused, later.
func Lasts(d *driver.Denial) bool {
	return strings.HasPrefix(d.Call, "link") || strings.HasPrefix(d.Call, "symlink") || strings.HasPrefix(d.Call, "rename")
}

// LastsError is about such a call.
type LastsError struct {
	ID   int
	Call string
}

func (e *LastsError) Error() string {
	return "question " + strconv.Itoa(e.ID) + " is about " + e.Call + ", whose effect lasts: there is no once"
}

// Attended has everything refused without a question while nobody attends: see Attend. The
// questions are of that session.
func (b *Board) Attended(session string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attended, b.session = true, session
}

// Attend says that somebody is there to answer, until the function that it returns is called.
func (b *Board) Attend() (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attending++
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.attending--; b.attending > 0 || !b.attended {
			return
		}
		for _, q := range b.open {
			go b.settle(q, driver.Refuse, "")
		}
	})
}

// Ask puts a question and waits for its answer. Without one in time, beside too many others,
// and soon after a no it is no. GrantOnce is for who was shown: whoever waited for the same
// answer asks again. Who, if not nil, finds the process that asks, for a question that is put.
func (b *Board) Ask(ctx context.Context, d driver.Denial, who func() *driver.Asker) driver.Answer {
	for ctx.Err() == nil {
		q, asker, known := b.put(d)
		if q == nil {
			return known
		}
		if asker {
			b.show(q, who)
		}
		if a, again := b.wait(ctx, q, asker); !again {
			return a
		}
	}
	return driver.Refuse
}

func (b *Board) wait(ctx context.Context, q *question, asker bool) (a driver.Answer, again bool) {
	defer b.leave(q, asker)
	timeout := time.NewTimer(time.Until(q.Expires))
	defer timeout.Stop()
	for {
		select {
		case <-q.over:
			return q.answer, !asker && (q.gone || q.answer == driver.GrantOnce)
		case <-ctx.Done():
			select {
			case <-q.over: // at the same time
				return q.answer, false
			default:
				return driver.Refuse, false
			}
		case <-timeout.C:
			go b.settle(q, driver.Refuse, "") // the record of it can take long
		}
	}
}

// put returns the question that is open about a denial, and whether the caller is who it says
// that asks; or no question, and the answer.
func (b *Board) put(d driver.Denial) (q *question, asker bool, known driver.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, now := about(d), time.Now()
	if slices.Contains(b.always, key) {
		return nil, false, driver.GrantAlways
	}
	b.kept = slices.DeleteFunc(b.kept, func(k kept) bool { return k.until.Before(now) })
	i := slices.IndexFunc(b.kept, func(k kept) bool { return k.about == key && same(k.by, d.Process) })
	if i >= 0 {
		b.kept = slices.Delete(b.kept, i, i+1)
		return nil, false, driver.GrantOnce
	}
	for _, q := range b.open {
		switch {
		case about(q.Denial) != key:
		case !q.asker && same(q.Denial.Process, d.Process):
			q.asker = true
			q.Waiting++
			return q, true, 0
		case q.Waiting < maxWaiting:
			q.Waiting++
			return q, false, 0
		default:
			b.untold++
			return nil, false, driver.Refuse
		}
	}
	b.noes = slices.DeleteFunc(b.noes, func(n no) bool { return n.until.Before(now) })
	b.idle = slices.DeleteFunc(b.idle, func(t time.Time) bool { return now.Sub(t) > time.Minute })
	if b.attended && b.attending == 0 || len(b.open) >= MaxOpen || len(b.idle) >= maxIdle ||
		slices.ContainsFunc(b.noes, func(n no) bool { return n.about == key }) {
		b.untold++
		return nil, false, driver.Refuse
	}
	b.last++
	q = &question{asker: true, over: make(chan struct{}), Question: Question{ID: b.last, Session: b.session, Denial: d,
		Asked: now, Expires: now.Add(b.Patience), Waiting: 1}}
	b.open = append(b.open, q)
	return q, true, 0
}

// show lists a question, once it is known who asks. Put does not go by what is found here: another
// connection of the same process is no call that is made again.
func (b *Board) show(q *question, who func() *driver.Asker) {
	var by *driver.Asker
	if who != nil {
		by = who()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if by != nil {
		q.Denial.Process = by
	}
	q.shown = true
	b.tell()
}

// same reports whether a process is the one that asked.
func same(a, b *driver.Asker) bool { return a != nil && b != nil && *a == *b }

// leave notes that a call does not wait any more. Without who asks there is nothing to answer.
func (b *Board) leave(q *question, asker bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q.Waiting--
	if !asker || !slices.Contains(b.open, q) {
		return
	}
	q.asker = false
	q.left++
	left := q.left
	time.AfterFunc(linger, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !q.asker && q.left == left && !q.settling && b.remove(q) {
			b.idle = append(b.idle, time.Now())
			q.gone = true
			close(q.over)
		}
	})
}

// remove takes a question from those that are open, if it is. Preconditions: the caller holds b.mu.
func (b *Board) remove(q *question) bool {
	i := slices.Index(b.open, q)
	if i < 0 {
		return false
	}
	b.open = slices.Delete(b.open, i, i+1)
	b.tell()
	return true
}

// tell wakes who waits for a change. Preconditions: the caller holds b.mu.
func (b *Board) tell() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// settle answers a question, if it is open. Whoever asks the same meanwhile waits, too.
func (b *Board) settle(q *question, a driver.Answer, by string) error {
	b.mu.Lock()
	open := slices.Contains(b.open, q) && !q.settling
	q.settling = q.settling || open
	told := q.Question
	b.mu.Unlock()
	if !open {
		return &NotOpenError{q.ID}
	}
	var err error
	if b.Answered != nil {
		if err = b.Answered(told, a, by); err != nil {
			a = driver.Refuse
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch a {
	case driver.Refuse:
		if by == "" && now.Before(q.Expires) {
			break // nobody was there to say so
		}
		b.noes = append(b.noes, no{about(q.Denial), now.Add(Quiet)})
		b.noes = b.noes[max(0, len(b.noes)-maxKept):]
	case driver.GrantOnce:
		if !q.asker {
			b.kept = append(b.kept, kept{about(q.Denial), q.Denial.Process, now.Add(linger)})
		}
	case driver.GrantAlways:
		b.always = append(b.always, about(q.Denial))
		b.always = b.always[max(0, len(b.always)-maxKept):]
	}
	if b.idle = append(b.idle, now); a != driver.Refuse {
		b.idle = nil // somebody is there, who reads
	}
	q.answer = a
	b.remove(q)
	close(q.over)
	return err
}

// Answer answers an open question. By says who does.
func (b *Board) Answer(id int, a driver.Answer, by string) error {
	q := b.find(id)
	if q == nil {
		return &NotOpenError{id}
	}
	if a == driver.GrantOnce && Lasts(&q.Denial) {
		return &LastsError{id, q.Denial.Call}
	}
	return b.settle(q, a, by)
}

func (b *Board) find(id int) *question {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.open, func(q *question) bool { return q.ID == id }); i >= 0 {
		return b.open[i]
	}
	return nil
}

// While returns a context that ends with a question.
func (b *Board) While(ctx context.Context, id int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	q := b.find(id)
	if q == nil {
		cancel()
		return ctx, cancel
	}
	go func() {
		select {
		case <-q.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Open returns the questions that are open, the oldest first, how many calls were refused
// without a question, and what is closed when the questions change.
func (b *Board) Open() (list []Question, untold uint64, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.open {
		if q.shown && !q.settling {
			list = append(list, q.Question)
		}
	}
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return list, b.untold, b.changed
}

// maxShown is how much is shown of one text from inside.
const maxShown = 200

// Plainly is a text from inside for who is to judge it: nothing in it controls a terminal, no
// letter looks like another, and it is not so long that it hides what is around it.
func Plainly(s string) string {
	if quote.Inside(s) != s {
		s = ascii(s)
	}
	if len(s) > maxShown {
		s = s[:maxShown/2] + "[...]" + s[len(s)-maxShown/2:]
	}
	return s
}

// ascii is a text in quotation marks, in which nothing can be taken for the end of a line.
func ascii(s string) string { return strings.ReplaceAll(strconv.QuoteToASCII(s), "  ", ` \x20`) }

// What is what is asked about, in words.
func What(d *driver.Denial) string {
	call := ""
	if d.Call != "" {
		call = " (" + Plainly(d.Call) + ")"
	}
	return d.Operation + " " + Plainly(d.Target) + call
}

// Grant is what would allow it, for who is to judge it: as a flag, which can be pasted if its
// value is plain.
func Grant(d *driver.Denial) string {
	if d.Grant == "" {
		return ""
	}
	flag, value := d.Grant.Parts()
	return "--" + flag + " " + Plainly(value)
}

// Because is why something is refused, for who is to judge it.
func Because(d *driver.Denial) string {
	if d.Reason != "" {
		return Plainly(d.Rule) + ": " + Plainly(d.Reason)
	}
	return Plainly(d.Rule)
}

// By is who asks, for who is to judge it; "" if that is not known.
func By(d *driver.Denial) string {
	if d.Process == nil || d.Process.Command == "" {
		return ""
	}
	s := ascii(d.Process.Command)
	if len(s) > maxShown/2 {
		s = s[:maxShown/2] + `[...]"`
	}
	return s + " (" + strconv.Itoa(d.Process.PID) + ")"
}
