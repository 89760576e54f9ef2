//go:build unix

// Package mcpserver serves sandboxes to an agent by the Model Context Protocol:
// a tool call becomes a command in a session, and what came of it a result.
//
// It knows neither how a sandbox is made nor where its policy comes from: it is
// handed a function that opens one more sandbox of a policy that is fixed. So
// no call can ask for less confinement; there is no word for it in any tool's
// arguments but dangerouslyDisableSandbox, which agents send and is refused.
//
// Sessions are explicit: a call names one by id, or means the connection's own,
// which is made at the first call. Everything ends with the connection.
// Arguments that are unknown, given twice, or of another type are refused.
package mcpserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/command"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
)

// Config is what a server serves.
type Config struct {
	engine.Service
	Rules *command.Rules // of execute_command

	quota   *quota
	room    *driver.Room // of what commands print, which all connections share
	schemas *schemas
}

// A quota is how many sandboxes there can be at a time, of all connections together.
type quota struct {
	mu         sync.Mutex
	used, most int
	servers    map[*Server]bool // that have any
	rest       time.Duration    // a session that nobody used for so long gives way
}

// maxClients is how many clients can have all the sessions that one can have.
const maxClients = 8

func newQuota(each int) *quota {
	return &quota{most: maxClients * each, servers: map[*Server]bool{}, rest: filesLimit}
}

// take makes room for one more sandbox of a server's. If there is none, the session
// gives way that nobody used for longest and in which nothing runs.
func (q *quota) take(s *Server) bool {
	q.mu.Lock()
	if q.used < q.most {
		q.used++
		q.servers[s] = true
		q.mu.Unlock()
		return true
	}
	servers := slices.Collect(maps.Keys(q.servers))
	q.mu.Unlock()
	var of *Server
	var oldest *box
	var last time.Time
	for _, server := range servers {
		for _, b := range server.boxes() {
			if at, idle := b.idle(q.rest); idle && (oldest == nil || at.Before(last)) {
				of, oldest, last = server, b, at
			}
		}
	}
	if oldest == nil || !oldest.retire(q.rest) {
		return false
	}
	of.mu.Lock()
	_, mine := of.sessions[oldest.id]
	delete(of.sessions, oldest.id)
	of.mu.Unlock()
	oldest.close()
	if !mine {
		return false // its connection ends, and gives what it had
	}
	q.mu.Lock()
	q.servers[s] = true
	q.mu.Unlock()
	return true
}

func (q *quota) give() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used--
}

// forget is called when a connection has ended.
func (q *quota) forget(s *Server) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.servers, s)
}

// A Server serves one connection.
type Server struct {
	id      string // of the connection, where it has one
	config  Config
	mcp     *mcp.Server
	carrier func(*mcp.CallToolRequest) context.Context // what carried a call, or nil
	ctx     context.Context                            // ends with the connection
	end     context.CancelFunc
	every   time.Duration // between two notifications of progress
	room    *room         // of what its commands print

	mu       sync.Mutex
	sessions map[string]*box
	opening  int // that are about to be in sessions
	parked   map[string]*parked
	calls    sync.WaitGroup // that go on beside those that asked for them
	closed   bool
	closing  sync.Once

	first sync.Mutex // held while the connection's own session is looked for or made
	own   *box

	jobs atomic.Int64 // background commands that were begun

	bareMu sync.Mutex
	bare   []*session.Environment // that calls had in place of a sandbox
}

// schemas are those of the tools, which are the same for every connection. The SDK keeps
// what it makes of one by the schema's address, and forgets none.
type schemas struct {
	cache *mcp.SchemaCache
	mu    sync.Mutex
	input map[string]*jsonschema.Schema // by the tool's name
}

func newSchemas() *schemas {
	return &schemas{cache: mcp.NewSchemaCache(), input: map[string]*jsonschema.Schema{}}
}

// New returns a server that has not begun to serve.
func New(c Config) *Server {
	if c.quota == nil {
		c.quota, c.room, c.schemas = newQuota(c.MaxSessions), newShared(1), newSchemas()
	}
	s := &Server{id: rand.Text(), config: c, room: &room{own: reserved, shared: c.room}, sessions: map[string]*box{},
		every: 2 * time.Second}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "sbxrun", Title: "sbxrun", Version: c.Version}, &mcp.ServerOptions{
		Instructions: s.instructions(),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		GetSessionID: func() string { return s.id },
		SchemaCache:  c.schemas.cache,
		// What is worth saying is in results.
		Logger: slog.New(slog.DiscardHandler),
	})
	s.addCommandTools()
	s.addFileTools()
	s.addSessionTools()
	return s
}

func (s *Server) instructions() string {
	if s.config.Why != "" {
		return fmt.Sprintf("Commands run on the host, WITHOUT a sandbox (%s). They start in %s.", s.config.Why,
			dirOf(s.config.Policy))
	}
	return fmt.Sprintf(
		`Commands run in a sandbox (profile %s). They start in %s. /tmp and HOME are private to the session and empty at first. What the policy refuses looks like a missing file, "permission denied" or "connection refused"; results name what of the network was refused. No call can change the policy: say what you would need instead.`,
		s.config.Policy.Profile, dirOf(s.config.Policy))
}

// dirOf is where the commands of a policy start.
func dirOf(p *policy.Policy) string {
	if o := p.OCI; o != nil && o.Process != nil && o.Process.Cwd != "" {
		return o.Process.Cwd
	}
	return "/"
}

// Serve serves a client that speaks newline-delimited JSON until it is gone or
// the context ends. When it returns nothing of the sessions is left.
func (s *Server) Serve(ctx context.Context, r io.ReadCloser, w io.WriteCloser) error {
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	defer s.close()
	// A client that has closed its end is gone: what runs for it ends now, not
	// when it would have.
	ran := make(chan error, 1)
	go func() { ran <- s.mcp.Run(s.ctx, &lines{r: r, w: w, gone: func() { go s.close() }}) }()
	var err error
	select {
	case err = <-ran:
	case <-s.ctx.Done():
		s.close()
		// What is being written to a client that does not read never is.
		select {
		case err = <-ran:
		case <-time.After(farewell):
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// close ends every session, and returns when they have ended whoever calls first.
func (s *Server) close() {
	s.closing.Do(func() {
		s.end()
		s.mu.Lock()
		s.closed = true
		list := s.sessions
		s.sessions = map[string]*box{}
		s.mu.Unlock()
		var all sync.WaitGroup
		s.bareMu.Lock()
		for _, e := range s.bare {
			all.Go(func() { e.Sandbox.Close() })
		}
		s.bareMu.Unlock()
		for _, b := range list {
			all.Go(func() {
				b.close()
				s.config.quota.give()
			})
		}
		all.Wait()
		ended := make(chan struct{})
		go func() {
			s.calls.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(farewell): // one may be telling a client that does not read of its progress
		}
		s.config.quota.forget(s)
	})
}

// bounded ends a call's context with the connection too, and with what carried it.
func (s *Server) bounded(ctx context.Context, req *mcp.CallToolRequest) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stops := []func() bool{context.AfterFunc(s.ctx, cancel)}
	if s.carrier != nil {
		if carrier := s.carrier(req); carrier != nil {
			stops = append(stops, context.AfterFunc(carrier, cancel))
		}
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// add adds a tool. The schema of its arguments is that of their type, with edits.
func add[In, Out any](s *Server, t *mcp.Tool, edit func(map[string]*jsonschema.Schema),
	do func(context.Context, *mcp.CallToolRequest, In) (*mcp.CallToolResult, Out, error)) {
	t.InputSchema = input[In](s.config.schemas, t.Name, edit)
	mcp.AddTool(s.mcp, t, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		ctx, done := s.bounded(ctx, req)
		defer done()
		doing := func(ctx context.Context) (*mcp.CallToolResult, Out, error) {
			return caught(t.Name, func() (*mcp.CallToolResult, Out, error) { return do(ctx, req, in) })
		}
		var res *mcp.CallToolResult
		var out Out
		var err error
		if s.config.Asks && rounds(req) && elicits(req.Session) {
			res, out, err = inRounds(ctx, s, req, doing)
		} else {
			res, out, err = doing(ctx)
		}
		if err != nil {
			words := "error: " + quote.Error(err)
			if h := driver.HintOf(err); h != "" {
				words += " (hint: " + h + ")"
			}
			err = errors.New(strings.TrimSuffix(remarks(words), "\n"))
		}
		return res, out, err
	})
}

// caught does what one call asks for. If that panics, it is the error of this call alone:
// others have sessions here.
func caught[Out any](tool string, do func() (*mcp.CallToolResult, Out, error)) (res *mcp.CallToolResult, out Out,
	err error) {
	defer func() {
		if v := recover(); v != nil {
			fmt.Fprintf(os.Stderr, "sbxrun: error: mcp: %s: %v\n%s", tool, v, debug.Stack())
			res, err = nil, fmt.Errorf("%s failed by a fault of sbxrun's, and what it began may have run: "+
				"please report what the server wrote to its standard error", tool)
		}
	}()
	return do()
}

func input[In any](all *schemas, tool string, edit func(map[string]*jsonschema.Schema)) *jsonschema.Schema {
	all.mu.Lock()
	defer all.mu.Unlock()
	if schema := all.input[tool]; schema != nil {
		return schema
	}
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic("mcpserver: " + tool + ": " + err.Error()) // of a type here: found by any test
	}
	if edit != nil {
		edit(schema.Properties)
	}
	all.input[tool] = schema
	return schema
}

// listed is a list for the model: names in it are quoted as JSON does.
func listed(words string, list any) *mcp.CallToolResult {
	text, err := json.Marshal(list)
	if err != nil {
		panic("mcpserver: " + err.Error()) // of a type here
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: remarks(words +
		"; what follows is from inside")}, &mcp.TextContent{Text: string(quote.JSON(text))}}}
}

// text is a result's words for the model.
func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}
