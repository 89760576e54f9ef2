//go:build unix

package session

import (
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/questions"
)

// maxLook is how long a client's look at the questions waits for more, before it is
// answered with those that there are.
const maxLook = 20 * time.Second

// questions answers a look at the questions that are open. One that waits does so until there
// is a question beyond the last that its client has seen.
func (h *Holder) questions(c *conn, req *request) error {
	if h.board == nil {
		return ErrAsksNothing
	}
	wait := time.NewTimer(min(time.Duration(req.WaitMS)*time.Millisecond, maxLook))
	defer wait.Stop()
	over := h.box.Done()
	for {
		list, untold, changed := h.board.Open()
		r := reply{Questions: list, Untold: untold}
		if n := len(list); n > 0 && list[n-1].ID > req.Question {
			return c.send(r)
		}
		select {
		case <-changed:
		case <-wait.C:
			return c.send(r)
		case <-over:
			return driver.ErrSandboxGone
		}
	}
}

// answer answers a question.
func (h *Holder) answer(c *conn, req *request) error {
	if h.board == nil {
		return ErrAsksNothing
	}
	if err := h.board.Answer(req.Question, driver.Answer(req.Answer), req.By); err != nil {
		return err
	}
	return c.send(reply{})
}

// Questions returns the questions that are open, and how many calls were refused without
// one. It waits so long for a question beyond the last that the caller has seen; the
// wait may end earlier.
func (c *Client) Questions(last int, wait time.Duration) (list []questions.Question, untold uint64, err error) {
	r, err := c.call(&request{Op: "questions", Question: last, WaitMS: wait.Milliseconds()})
	if err != nil {
		return nil, 0, err
	}
	return r.Questions, r.Untold, nil
}

// Answer answers a question, by whom is for the record. The error is an [questions.NotOpenError]
// if it is not open.
func (c *Client) Answer(question int, a driver.Answer, by string) error {
	_, err := c.call(&request{Op: "answer", Question: question, Answer: uint8(a), By: by})
	return err
}
