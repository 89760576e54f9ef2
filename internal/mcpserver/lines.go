//go:build unix

package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/strictjson"
)

// lines is a client that speaks newline-delimited JSON. What is no message is
// answered with an error, and the next line is read: the SDK's own transport ends
// the connection, and with it every session, on the first.
type lines struct {
	r    io.ReadCloser
	w    io.WriteCloser
	gone func() // is called when there are no more lines

	in      chan jsonrpc.Message
	bad     chan []byte // refusals, to be written
	closed  chan struct{}
	closing sync.Once

	writing sync.Mutex // held as long as the client does not read: never by read

	mu    sync.Mutex
	calls map[jsonrpc.ID]bool // that are not answered
}

const (
	// maxRefusals is how many refusals can wait for being read. They are short.
	maxRefusals = 1 << 14

	// farewell is how long a client that has closed its end has to read what it
	// was told before.
	farewell = time.Second
)

// Connect begins to read. It is the transport of one connection: itself.
func (l *lines) Connect(context.Context) (mcp.Connection, error) {
	l.in, l.closed, l.calls = make(chan jsonrpc.Message), make(chan struct{}), map[jsonrpc.ID]bool{}
	l.bad = make(chan []byte, maxRefusals)
	said := make(chan struct{})
	go func() {
		defer close(said)
		for text := range l.bad {
			l.write(text) // a client that is gone is noticed by who reads
		}
	}()
	go func() {
		defer l.gone()
		defer close(l.in)
		l.read()
		close(l.bad)
		select {
		case <-said:
		case <-l.closed:
		case <-time.After(farewell):
		}
	}()
	return l, nil
}

// read reads to the end. It waits for nothing but lines: a client that does not read
// can end all the same, and cancel what it has called.
func (l *lines) read() {
	b := bufio.NewReaderSize(l.r, 64<<10)
	for {
		line, id, err := nextLine(b)
		var m jsonrpc.Message
		var bad *jsonrpc.Error
		switch {
		case id.seen > maxMessage:
			bad = invalid(fmt.Errorf("a line of %d bytes, and %d are possible", id.seen, maxMessage))
		case len(bytes.TrimSpace(line)) == 0:
		default:
			m, bad = decode(line)
		}
		if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() && !l.begin(r.ID) {
			// The answer names it in words: with this id it would be the other's.
			bad = invalid(fmt.Errorf("id %s is that of a call that is not answered yet", quote.JSON(id.id)))
			m, id.times = nil, 0
		}
		if bad != nil {
			select {
			case l.bad <- refusal(&id, bad):
			default:
				return // it says much, and hears nothing
			}
		}
		if m != nil {
			select {
			case l.in <- m:
			case <-l.closed:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// nextLine returns a line, and what is known of its id. Of a line that is too long
// no more than maxMessage is kept.
func nextLine(b *bufio.Reader) (line []byte, id finder, err error) {
	for {
		part, err := b.ReadSlice('\n')
		id.feed(part)
		if id.seen <= maxMessage {
			line = append(line, part...)
		} else {
			line = nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, id, err
		}
	}
}

// Read returns the next message.
func (l *lines) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m, ok := <-l.in:
		if ok {
			return m, nil
		}
	case <-l.closed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return nil, io.EOF
}

// begin notes that a call is under way. It reports false if one with this id is.
func (l *lines) begin(id jsonrpc.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls[id] {
		return false
	}
	l.calls[id] = true
	return true
}

// Write sends a message.
func (l *lines) Write(_ context.Context, m jsonrpc.Message) error {
	text, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		l.mu.Lock()
		delete(l.calls, r.ID)
		l.mu.Unlock()
	}
	return l.write(text)
}

func (l *lines) write(text []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.w.Write(append(text, '\n'))
	return err
}

// Close ends the connection.
func (l *lines) Close() (err error) {
	l.closing.Do(func() {
		close(l.closed)
		err = errors.Join(l.r.Close(), l.w.Close())
	})
	return err
}

// SessionID is empty: the connection is the session.
func (l *lines) SessionID() string { return "" }

func invalid(err error) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
		Message: "this message is not taken, and nothing came of it: " + err.Error()}
}

// decode reads a message, if every reader takes it for the same.
func decode(text []byte) (jsonrpc.Message, *jsonrpc.Error) {
	if err := strictjson.Check(text); err != nil {
		bad := invalid(err)
		if !json.Valid(text) {
			bad.Code = jsonrpc.CodeParseError
		}
		return nil, bad
	}
	if text[bytes.IndexFunc(text, notSpace)] == '[' {
		return nil, invalid(errors.New("a batch: send each message by itself"))
	}
	m, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return nil, invalid(err)
	}
	if r, ok := m.(*jsonrpc.Response); ok && r.Error == nil && r.Result == nil {
		return nil, invalid(errors.New("it has neither method nor result nor error"))
	}
	if r, ok := m.(*jsonrpc.Request); ok {
		if why := checkRequest(r, text); why != "" {
			return nil, invalid(errors.New(why))
		}
	}
	return m, nil
}

// checkRequest says why a request is not taken.
func checkRequest(r *jsonrpc.Request, text []byte) string {
	var other struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(text, &other); err != nil || other.Result != nil || other.Error != nil {
		return "it is a call and an answer"
	}
	// The SDK takes an id of null for none, and a call without one is never answered.
	if other.ID != nil && !r.ID.IsValid() || !exact(r.ID.Raw(), other.ID) {
		return "id is neither a text nor a whole number that a double holds"
	}
	var params struct {
		ID   json.RawMessage `json:"requestId"`
		Meta struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	// Where parameters are of another type, the SDK says so.
	bad := json.Unmarshal(r.Params, &params) != nil
	cancels := r.Method == "notifications/cancelled"
	switch {
	case cancels && (bad || params.ID == nil):
		return "no requestId"
	case cancels && !isID(params.ID):
		return "requestId is no id that a request can have"
	case params.Meta.Token != nil && !isID(params.Meta.Token):
		return "progressToken is neither a text nor a whole number that a double holds"
	}
	return ""
}

// isID reports whether a value is an id that comes back as it was written.
func isID(text json.RawMessage) bool {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return false
	}
	id, err := jsonrpc.MakeID(v)
	return err == nil && exact(id.Raw(), text)
}

// exact reports whether an id is what was written: the SDK takes 1.5 and 2^53+1 for
// other numbers, and would answer or cancel another request.
func exact(id any, text []byte) bool {
	n, ok := id.(int64)
	return !ok || strconv.FormatInt(n, 10) == string(text)
}

func notSpace(r rune) bool { return r != ' ' && r != '\t' && r != '\r' && r != '\n' }

// refusal answers a text that was not taken.
func refusal(id *finder, why *jsonrpc.Error) []byte {
	raw := json.RawMessage("null")
	if id.times == 1 && json.Valid(id.id) && (id.id[0] == '"' || id.id[0] == '-' || id.id[0] >= '0' && id.id[0] <= '9') {
		raw = id.id
	}
	text, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", raw, why})
	if err != nil {
		panic("mcpserver: " + err.Error()) // of texts and valid JSON
	}
	return text
}

// A finder finds the id of a message while that passes by, in a few bytes, whatever
// the message is: who called waits for an answer to that.
type finder struct {
	seen  int64
	id    []byte // as it is written, cut off when it is too long to be one
	times int    // that there is one; of two none counts

	depth        int
	text, escape bool
	word         []byte // the text or scalar that is passing, at depth 1
	name         string // that a value is of
}

const maxID = 256 // bytes

func (f *finder) feed(part []byte) {
	f.seen += int64(len(part))
	for _, c := range part {
		if f.text {
			f.keep(c)
			switch {
			case f.escape:
				f.escape = false
			case c == '\\':
				f.escape = true
			case c == '"':
				f.text = false
			}
			continue
		}
		switch c {
		case '"':
			f.text = true
			f.keep(c)
		case '{', '[':
			f.depth++
			f.word = f.word[:0]
		case '}', ']':
			f.value()
			f.depth--
		case ',':
			f.value()
		case ':':
			if f.depth == 1 {
				f.name = string(f.word)
				f.word = f.word[:0]
			}
		default:
			if notSpace(rune(c)) {
				f.keep(c)
			}
		}
	}
}

func (f *finder) keep(c byte) {
	if f.depth == 1 && len(f.word) <= maxID {
		f.word = append(f.word, c)
	}
}

// value is called where a value ends.
func (f *finder) value() {
	if f.depth != 1 {
		return
	}
	if f.name == `"id"` {
		f.id = append([]byte(nil), f.word...)
		f.times++
	}
	f.name, f.word = "", f.word[:0]
}
