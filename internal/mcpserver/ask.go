//go:build unix

package mcpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// elicits reports whether the client's user can be asked by a form.
func elicits(ss *mcp.ServerSession) bool {
	p := ss.InitializeParams()
	if p == nil || p.Capabilities == nil || p.Capabilities.Elicitation == nil {
		return false
	}
	e := p.Capabilities.Elicitation
	return e.Form != nil || e.URL == nil // a client of before there were two ways
}

// asks has the client's user answer what a session's sandbox asks while a call waits, until
// the function that it returns is called.
func (s *Server) asks(ctx context.Context, ss *mcp.ServerSession, b *box) (stop func()) {
	board := b.env.Board
	if board == nil || !elicits(ss) { // nobody attends
		return func() {}
	}
	if p, ok := ctx.Value(parkedKey{}).(*parked); ok {
		return p.attends(b)
	}
	ctx, cancel := context.WithCancel(ctx)
	leave := board.Attend()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			given := b.asking.change()
			list, _, changed := board.Open()
			for _, q := range list {
				if b.asking.take(q.ID) {
					all.Go(func() { s.elicit(ctx, ss, b, q) })
				}
			}
			select {
			case <-changed:
			case <-given:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { leave(); cancel(); all.Wait() }
}

// claims are the questions of a session about which a call asks its client: one call about each.
type claims struct {
	mu    sync.Mutex
	taken map[int]bool
	given chan struct{} // closed when one is given back, nil if nobody waits for that
}

func (c *claims) take(question int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken[question] {
		return false
	}
	if c.taken == nil {
		c.taken = map[int]bool{}
	}
	c.taken[question] = true
	return true
}

func (c *claims) give(question int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.taken, question)
	if c.given != nil {
		close(c.given)
		c.given = nil
	}
}

// change returns what is closed when a question can be taken again.
func (c *claims) change() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.given == nil {
		c.given = make(chan struct{})
	}
	return c.given
}

// The words of the form.
const (
	answerNo     = "no"
	answerOnce   = "once"
	answerAlways = "for this session"
	answerFile   = "for this profile"
)

// answerSchema is the form for a question. File has it offer the profile's file.
func answerSchema(d *driver.Denial, file bool) *jsonschema.Schema {
	words := []any{answerNo, answerOnce, answerAlways}
	if questions.Lasts(d) {
		words = []any{answerNo, answerAlways}
	}
	if file {
		words = append(words, answerFile)
	}
	return &jsonschema.Schema{Type: "object", Required: []string{"answer"}, Properties: map[string]*jsonschema.Schema{
		"answer": {Type: "string", Title: "Allow it?", Enum: words}}}
}

// elicit asks the client's user about a question, and passes the answer on.
func (s *Server) elicit(ctx context.Context, ss *mcp.ServerSession, b *box, q questions.Question) {
	defer b.asking.give(q.ID)
	ctx, cancel := b.env.Board.While(ctx, q.ID)
	defer cancel()
	if ctx.Err() != nil {
		return
	}
	res, err := ss.Elicit(ctx, form(b, &q))
	if ctx.Err() == nil { // another call may ask else, or the question is over
		b.answer(ss, &q, res, err)
	}
}

func form(b *box, q *questions.Question) *mcp.ElicitParams {
	file := b.file.Takes(q.Denial.Grant, b.env.Policy)
	return &mcp.ElicitParams{Mode: "form", Message: question(b, q, file), RequestedSchema: answerSchema(&q.Denial, file)}
}

// answer answers a question by what came of the form. What is no clear yes is no.
func (b *box) answer(ss *mcp.ServerSession, q *questions.Question, res *mcp.ElicitResult, err error) {
	a, file := driver.Refuse, false
	if err == nil && res.Action == "accept" {
		switch res.Content["answer"] {
		case answerOnce:
			a = driver.GrantOnce
		case answerAlways:
			a = driver.GrantAlways
		case answerFile:
			a, file = driver.GrantAlways, true
		}
	}
	by := "client of the Model Context Protocol"
	if p := ss.InitializeParams(); p != nil && p.ClientInfo != nil {
		by += " " + questions.Plainly(p.ClientInfo.Name)
	}
	if err != nil {
		by += ", which cannot be asked: " + quote.Line(err.Error())
	}
	answer := func() error { return b.env.Board.Answer(q.ID, a, by) }
	granted := false
	if file {
		answer = func() error { return b.env.Board.Answer(q.ID, a, by+", into "+b.file.Path) }
		granted, err = b.file.Grant(q.Denial.Grant, "granted in session "+b.id, b.env.Policy, answer)
	} else {
		err = answer()
	}
	if err != nil && a != driver.Refuse && !errors.Is(err, questions.ErrOver) {
		words := quote.Error(err)
		if !granted {
			words = "nothing was granted: " + words
		}
		fmt.Fprintln(os.Stderr, "sbxrun: "+words)
		b.mu.Lock()
		b.untold = append(b.untold, words)
		b.mu.Unlock()
	}
	if err != nil && !granted {
		b.env.Board.Answer(q.ID, driver.Refuse, by) // if it is still open
	}
}

// question is a question's text for a person. What is from inside stands in it so that it
// can be taken for nothing else.
func question(b *box, q *questions.Question, file bool) string {
	d := &q.Denial
	by, call := "", ""
	if file {
		by = "; \"" + answerFile + "\" adds that to " + questions.Plainly(b.file.Path) + ", too"
	}
	if d.Call != "" {
		call = " (" + questions.Plainly(d.Call) + ")"
	}
	if who := questions.By(d); who != "" {
		by += ". Asked by " + who
	}
	return fmt.Sprintf("A command in the sandbox (session %s, profile %s) wants to %s %s%s, "+
		"which its policy refuses (%s). To allow it: %s%s", b.id, questions.Plainly(b.env.Policy.Profile), verb(d.Operation),
		questions.Plainly(d.Target), call, questions.Because(d), questions.Grant(d), by)
}

func verb(op driver.Operation) string {
	switch op {
	case driver.OpConnect, driver.OpResolve:
		return "connect to"
	case driver.OpWrite:
		return "change"
	}
	return op
}

// A parked is a call that goes on while its client asks its user. From version 2026-07-28 of
// the protocol on a server asks by an answer to the call, and the client makes the call anew,
// with what its user said.
type parked struct {
	tool string
	done chan struct{}
	end  context.CancelFunc

	// Of who has the call: the client waits for an answer, or was asked.
	asked  *asked
	rounds int
	back   chan struct{} // closed when the client has come back

	mu    sync.Mutex
	box   *box // whose questions it asks, nil for none
	leave func()
	away  bool                 // nobody attends, because the client does not come back
	moved chan struct{}        // closed when box changes
	req   *mcp.CallToolRequest // that waits, nil for none

	res *mcp.CallToolResult
	out any
	err error
}

// asked is what a client was asked last.
type asked struct {
	box      *box
	question questions.Question
}

type parkedKey struct{}

const (
	// keptParked is how long a call that has ended waits for its client to come back, and
	// awaited how long its client counts as one that can be asked once a question is over.
	keptParked = 10 * time.Minute
	awaited    = 2 * time.Minute
	// maxRounds is how often a call asks: clients make a call anew ten times.
	maxRounds = 9
)

// rounds reports whether a client is asked by answers to its calls: each says by which version
// of the protocol it is made.
func rounds(req *mcp.CallToolRequest) bool {
	version, _ := req.Params.Meta[mcp.MetaKeyProtocolVersion].(string)
	return version >= "2026-07-28"
}

// attends has the call ask what a session's sandbox asks, until the function that it returns
// is called.
func (p *parked) attends(b *box) (stop func()) {
	p.change(func() {
		if p.box = b; !p.away {
			p.leave = b.env.Board.Attend()
		}
	})
	return func() {
		p.change(func() {
			p.left()
			p.box = nil
		})
	}
}

// change changes what is asked. What is done holds p.mu.
func (p *parked) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.moved)
	p.moved = make(chan struct{})
}

// left has nobody attend for this call any more. Preconditions: the caller holds p.mu.
func (p *parked) left() {
	if p.leave != nil {
		p.leave()
		p.leave = nil
	}
}

// goAway has nobody attend for this call until its client comes back.
func (p *parked) goAway() {
	p.change(func() {
		p.left()
		p.away = true
	})
}

// waits says which request waits for the call, nil for none.
func (p *parked) waits(req *mcp.CallToolRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.req = req
	if req != nil && p.away {
		if p.away = false; p.box != nil {
			p.leave = p.box.env.Board.Attend()
		}
	}
}

// progressToken is that of the request that waits, nil for none.
func (p *parked) progressToken() any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.req == nil {
		return nil
	}
	return p.req.Params.GetProgressToken()
}

// next waits for a question that the client can be asked, until the call is done or not
// wanted any more.
func (p *parked) next(ctx context.Context) *asked {
	for {
		p.mu.Lock()
		if p.rounds >= maxRounds {
			p.left() // what nobody else can be asked is refused
		}
		b, moved := p.box, p.moved
		p.mu.Unlock()
		var given, changed <-chan struct{}
		if b != nil && p.rounds < maxRounds {
			var list []questions.Question
			given = b.asking.change()
			list, _, changed = b.env.Board.Open()
			for _, q := range list {
				if b.asking.take(q.ID) {
					return &asked{b, q}
				}
			}
		}
		select {
		case <-moved:
		case <-given:
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-p.done:
			return nil
		}
	}
}

// inRounds does what a call asks for, and answers with a question whenever it has one.
func inRounds[Out any](ctx context.Context, s *Server, req *mcp.CallToolRequest,
	do func(context.Context) (*mcp.CallToolResult, Out, error)) (*mcp.CallToolResult, Out, error) {
	const key = "question"
	var none Out
	p := s.unpark(req.Params.RequestState, req.Params.Name)
	switch {
	case p != nil:
		res, _ := req.Params.InputResponses[key].(*mcp.ElicitResult)
		if res == nil {
			res = &mcp.ElicitResult{Action: "cancel"}
		}
		p.asked.box.answer(req.Session, &p.asked.question, res, nil)
	case req.Params.RequestState != "":
		return nil, none, errors.New("this call is over")
	default:
		p = &parked{tool: req.Params.Name, done: make(chan struct{}), moved: make(chan struct{})}
		var own context.Context
		own, p.end = context.WithCancel(context.WithValue(context.WithoutCancel(ctx), parkedKey{}, p))
		stop := context.AfterFunc(s.ctx, p.end)
		run := func() {
			defer close(p.done)
			defer stop()
			defer p.end()
			p.res, p.out, p.err = do(own)
		}
		if !s.begins(run) {
			return nil, none, errClosed
		}
	}
	p.waits(req)
	for a := p.next(ctx); a != nil; a = p.next(ctx) {
		over, done := a.box.env.Board.While(s.ctx, a.question.ID)
		// It is this call's to ask until it is over, whatever the client does.
		context.AfterFunc(over, func() { done(); a.box.asking.give(a.question.ID) })
		if over.Err() != nil {
			continue
		}
		p.rounds++
		p.asked = a
		p.waits(nil)
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{key: form(a.box, &a.question)},
			RequestState: s.park(p, over.Done())}, none, nil
	}
	select {
	case <-p.done:
	default:
		p.end() // nobody wants what it does
		<-p.done
	}
	out, _ := p.out.(Out)
	return p.res, out, p.err
}

// begins runs a call beside the one that asked for it. It reports false if the connection is
// closed.
func (s *Server) begins(call func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.calls.Go(call)
	}
	return !s.closed
}

// park keeps a call until its client comes back for it, which it does by what is returned. The
// call goes on meanwhile, as long as it may. Over is closed when what the client was asked is.
func (s *Server) park(p *parked, over <-chan struct{}) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := rand.Text()
	if s.parked == nil {
		s.parked = map[string]*parked{}
	}
	s.parked[state] = p
	p.back = make(chan struct{})
	go func(back chan struct{}) {
		select {
		case <-back:
			return
		case <-over:
		}
		select {
		case <-back:
			return
		case <-time.After(awaited):
			p.goAway()
		case <-p.done:
		}
		select {
		case <-back:
			return
		case <-p.done:
		}
		select {
		case <-back:
		case <-s.ctx.Done():
		case <-time.After(keptParked):
			s.unpark(state, p.tool)
		}
	}(p.back)
	return state
}

// unpark returns the call that was parked, nil if there is none of that tool.
func (s *Server) unpark(state, tool string) *parked {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parked[state]
	if p == nil || p.tool != tool {
		return nil
	}
	delete(s.parked, state)
	close(p.back)
	return p
}
