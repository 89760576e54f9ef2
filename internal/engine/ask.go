package engine

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/native"
)

// Asking has a driver ask about what a grant could allow, before it refuses that. What is
// answered goes to the log first, if there is one; r is what is the same in all records.
func Asking(d driver.Driver, patience time.Duration, l *audit.Log, r audit.Record) (driver.Driver, *questions.Board,
	error) {
	n, ok := d.(native.Driver)
	if !ok {
		return nil, nil, &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"--ask"},
			Fix: "use --driver native, or leave out --ask"}
	}
	b := &questions.Board{Patience: patience}
	if l != nil {
		r.Driver, r.Sandboxed = d.Name(), true
		b.Answered = func(q questions.Question, a driver.Answer, by string) error {
			r := r
			r.Session = cmp.Or(r.Session, q.Session)
			r.Answer, r.By = a.String(), by
			return l.Answered(r, q.Denial)
		}
	}
	n.Ask = b.Ask
	return n, b, nil
}

// HolderAudit opens the log of a process that has no environment of its caller's; env is the
// sandbox's, with the secrets that it was given.
func HolderAudit(config json.RawMessage, env []string) (*audit.Log, error) {
	if config == nil {
		return nil, nil
	}
	var c audit.Config
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	return audit.Open(c, audit.NewRedactor(slices.Concat(os.Environ(), env)))
}
