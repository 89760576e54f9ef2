package guard

import (
	"context"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// A doubt is a call that a pattern refuses, while somebody is asked whether it is to. The
// call is not held by anything but that it is not answered, and made again from its
// beginning: what it copied before the question is not what it may do after it.
type doubt struct {
	call    sys.Notification
	errno   syscall.Errno // how it is refused
	denial  Denial
	permits []permit // that it has already
	cancel  context.CancelFunc
	stopped bool // a signal has come
	answers atomic.Pointer[Answer]
}

// A permit lets one call by one pattern at one path, which is what somebody was shown; or,
// without a pattern, have the host's file there. The memory of the caller, or directories,
// may have changed since.
type permit struct{ path, rule string }

// permit is what lets the call that a denial is about.
func (d *Denial) permit() permit {
	if d.Rule == "" {
		return permit{path: d.Leads}
	}
	return permit{d.Path, d.Rule}
}

// maxDoubts bounds the calls of one command that wait for an answer. What comes beside
// those is refused.
const maxDoubts = 16

// atOnce is for an answer that nobody has to give. A program can look for a thousand files
// that nobody is asked about.
const atOnce = time.Millisecond

// rules are those that hold for a path in this call.
func (w *worker) rules(path []byte) *Rules {
	r := w.g.rules.Current()
	for _, p := range w.permits {
		if p.path == string(path) {
			r = r.Without(p.rule)
		}
	}
	return r
}

// doubtful reports whether a refusal by a pattern is to be asked about. Whoever is to grant
// ".git/" would grant much else: what Git takes commands from in any repository.
func (w *worker) doubtful(rule string) bool {
	return w.g.ask != nil && len(w.doubts) < maxDoubts && rule != ".git/" &&
		slices.Contains(w.g.rules.Current().texts, rule)
}

// suspend leaves the call in n unanswered, and asks. It reports false if that is not to be.
func (w *worker) suspend(errno syscall.Errno) bool {
	d := *w.doubt
	d.PID, d.Command = w.asker()
	if errno == 0 || !w.l.Valid(w.n.ID) || slices.Contains(w.permits, d.permit()) { // the yes was of no use
		w.denied(d)
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	q := &doubt{call: w.n, errno: errno, denial: d, permits: w.permits, cancel: cancel}
	known := make(chan struct{})
	go func() {
		a := w.g.ask(ctx, d)
		q.answers.Store(&a)
		close(known)
	}()
	select {
	case <-known:
		if *q.answers.Load() == Refuse { // without a question
			cancel()
			w.denied(d)
			return false
		}
	case <-time.After(atOnce):
	}
	w.doubts = append(w.doubts, q)
	w.g.doubts.Add(1)
	return true
}

// denied records a refusal.
func (w *worker) denied(d Denial) {
	w.g.deny(d, func() (int, string) { return d.PID, d.Command })
}

// settle makes the calls to which the answer is yes, and refuses the others.
func (w *worker) settle() {
	if time.Now().Before(w.settles) {
		return
	}
	w.settles = time.Now().Add(lookEvery)
	w.doubted++
	for i := 0; i < len(w.doubts); {
		q := w.doubts[i]
		w.n.ID, w.n.PID = q.call.ID, q.call.PID
		a := q.answers.Load()
		gone := !w.l.Valid(q.call.ID)
		lifted := a == nil && q.denial.Rule != "" && !slices.Contains(w.g.rules.Current().texts, q.denial.Rule)
		if a == nil && !gone && !lifted {
			// While a call is held, only deadly signals interrupt it. It is made again only
			// when nobody is asked about it any more.
			if !q.stopped && w.doubted%len(w.doubts) == i && w.signalled() {
				q.stopped = true
				q.cancel()
			}
			i++
			continue
		}
		w.doubts = slices.Delete(w.doubts, i, i+1)
		q.cancel()
		switch {
		case gone:
			w.denied(q.denial) // it was refused as long as it was there
		case q.stopped && !lifted && *a == Refuse:
			w.l.Reply(q.call.ID, 0, restart)
		default:
			w.resume(q, a)
		}
		w.g.doubts.Add(-1)
	}
	w.g.looks.Add(1)
}

// resume ends the waiting of a call; nil is for one that nothing is in the way of any more.
func (w *worker) resume(q *doubt, a *Answer) {
	if w.g.shared != nil {
		w.g.shared.Lock()
		defer w.g.shared.Unlock()
	}
	w.n = q.call
	w.permits = q.permits
	switch {
	case a == nil:
	case *a == Always && q.denial.Rule == "":
		if w.given == nil {
			w.given = map[string]bool{}
		}
		w.given[q.denial.Leads] = true
	case *a == Always:
		w.g.rules.Lift(q.denial.Rule)
	case *a == Once:
		w.permits = append(slices.Clone(q.permits), q.denial.permit())
	default:
		w.permits = nil
		w.denied(q.denial)
		if q.errno == goOn {
			w.l.Continue(w.n.ID)
		} else {
			w.l.Reply(w.n.ID, 0, q.errno)
		}
		return
	}
	w.answer()
	w.permits = nil
}
