//go:build unix

package mcpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/files"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/session"
)

// runIn is an environment as a driver, of which the command is the given process.
func runIn(e *session.Environment, p *specs.Process) driver.Driver {
	return place{session.In(e.Sandbox, e.Driver, p), sandboxed(e)}
}

// sandboxed reports whether commands are confined at all.
func sandboxed(e *session.Environment) bool { return e.Why == "" }

// place is a driver that says whether it isolates.
type place struct {
	driver.Driver
	sandboxed bool
}

func (p place) Sandboxed() bool { return p.sandboxed }

// unsandboxed is what a result says of a command that ran on the bare host.
func unsandboxed(e *session.Environment) []string {
	if sandboxed(e) {
		return nil
	}
	return []string{"NOT SANDBOXED: this ran on the host with all that its user can do, because " + e.Why}
}

// A box is one session.
type box struct {
	id      string
	created time.Time
	env     *session.Environment
	sandbox driver.Sandbox // the environment's
	files   files.Box
	own     bool
	python  python

	mu      sync.Mutex
	used    time.Time // when a call last named it, or ended
	calls   int       // commands that calls wait for
	retired bool      // it gives way to another
	cwd     string    // where the next command of tool bash starts
	jobs    []*job

	asking claims
	file   *engine.ProfileFile // that an answer can be added to, nil for none
	untold []string            // what came of answers, for the next result
}

var errClosed = errors.New("the connection is closed")

// use says that a call is about to use the session. It reports false if that has
// given way to another.
func (b *box) use() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = time.Now()
	return !b.retired
}

// busy says that a command runs for a call, until the function that it returns is
// called.
func (b *box) busy() (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.calls--
		b.used = time.Now()
	}
}

// idle reports whether nothing runs in the session and no call used it for a time,
// and when one last did.
func (b *box) idle(rest time.Duration) (last time.Time, idle bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.rests(rest)
}

// rests is idle. Preconditions: the caller holds b.mu.
func (b *box) rests(rest time.Duration) bool {
	i, ok := b.sandbox.(interface{ Idle() bool })
	return b.calls == 0 && time.Since(b.used) >= rest && ok && i.Idle()
}

// retire has no call use the session any more, if it is idle.
func (b *box) retire(rest time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = b.retired || b.rests(rest)
	return b.retired
}

func (b *box) ended() bool {
	select {
	case <-b.sandbox.Done():
		return true
	default:
		return false
	}
}

func (b *box) close() {
	b.sandbox.Close() // ends everything, whatever it reports
	b.files.Close()
	b.forget()
}

// forget gives up what background commands printed.
func (b *box) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.jobs {
		j.forget()
	}
}

// at is a path of the session's, from what a call gave.
func (b *box) at(p string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p == "" {
		return b.cwd
	}
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(b.cwd, p)
}

func checkPath(name, p string) error {
	if strings.ContainsRune(p, 0) {
		return fmt.Errorf("%s holds a NUL byte", name)
	}
	return nil
}

// filesLimit is how long a tool for files may take, where the policy's time limit is
// not shorter: each moves a few megabytes.
const filesLimit = time.Minute

// open builds a sandbox and makes it a session.
func (s *Server) open(own bool) (*box, error) {
	s.mu.Lock()
	for id, b := range s.sessions {
		if b.ended() {
			delete(s.sessions, id)
			s.config.quota.give()
			go b.close()
		}
	}
	closed, full := s.closed, len(s.sessions)+s.opening >= s.config.MaxSessions
	if !full {
		s.opening++
	}
	s.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	if full {
		return nil, fmt.Errorf("you have %d sessions, and no more are allowed: session_destroy ends one",
			s.config.MaxSessions)
	}
	opened := func() {
		s.mu.Lock()
		s.opening--
		s.mu.Unlock()
	}
	if !s.config.quota.take(s) {
		opened()
		return nil, errors.New("all clients together have too many sessions, and none of them is idle: try again later")
	}
	// The connection's context, not the call's: a session outlives the call
	// that made it.
	env, err := s.config.Open(s.ctx)
	if err != nil {
		opened()
		s.config.quota.give()
		return nil, err
	}
	id := "s-" + strings.ToLower(rand.Text())
	if env.Board != nil {
		env.Board.Attended(id)
	}
	b := &box{id: id, created: time.Now(), used: time.Now(), env: env, file: s.config.File,
		sandbox: env.Sandbox, own: own, cwd: dirOf(env.Policy), python: newPython()}
	b.files.Sandbox, b.files.Limit = env.Sandbox, filesLimit
	if l := b.limits(0).WallTime; l > 0 {
		b.files.Limit = min(l, filesLimit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening--
	if s.closed {
		s.config.quota.give()
		b.close() // whoever closed the connection may be waiting to be told of the end
		return nil, errClosed
	}
	s.sessions[b.id] = b
	return b, nil
}

// take takes a session out of those that there are, nil if it is none of them. Its place
// among those of all clients is the caller's to give back.
func (s *Server) take(id string) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sessions[id]
	delete(s.sessions, id)
	return b
}

// boxes are the sessions that have not ended.
func (s *Server) boxes() []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*box, 0, len(s.sessions))
	for _, b := range s.sessions {
		if !b.ended() {
			all = append(all, b)
		}
	}
	return all
}

// session returns the session that a call names; "" is the connection's own.
// Fresh is true if that had ended and is another now.
func (s *Server) session(id string) (b *box, fresh bool, err error) {
	if id == "" {
		s.first.Lock()
		defer s.first.Unlock()
		if s.own != nil && s.own.use() && !s.own.ended() {
			return s.own, false, nil
		}
		fresh = s.own != nil
		if b, err = s.open(true); err != nil {
			return nil, false, err
		}
		s.own = b
		return b, fresh, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.sessions[id]
	switch {
	case !ok:
		return nil, false, fmt.Errorf("there is no session %s: session_list lists them", quote.Text(id))
	case !b.use() || b.ended():
		return nil, false, fmt.Errorf("session %s has ended: session_create makes another", id)
	}
	return b, false, nil
}

// SessionInfo describes a session to a client.
type SessionInfo struct {
	SessionID string   `json:"session_id"`
	Default   bool     `json:"default" jsonschema:"the connection's own session, which calls without a session_id use"`
	Created   string   `json:"created"`
	Cwd       string   `json:"cwd" jsonschema:"where the next command of bash starts"`
	Running   []string `json:"running" jsonschema:"background commands that run"`
	Profile   string   `json:"profile"`
	Driver    string   `json:"driver"`
	Layers    []string `json:"layers" jsonschema:"layers of isolation that are enforced"`
	Degraded  []string `json:"degraded" jsonschema:"layers that are missing, as the operator allowed"`
	Unwatched []string `json:"unwatched,omitempty" jsonschema:"memory of the kernel that is beside the memory limit, and that nothing watches"`
	Sandboxed bool     `json:"sandboxed"`
}

func (s *Server) info(b *box) SessionInfo {
	i := SessionInfo{SessionID: b.id, Default: b.own, Created: b.created.UTC().Format(time.RFC3339), Cwd: b.at(""),
		Running: []string{},
		Profile: b.env.Policy.Profile, Driver: b.env.Driver, Layers: []string{}, Degraded: []string{},
		Sandboxed: sandboxed(b.env)}
	if st, err := b.sandbox.Status(); err == nil {
		i.Layers, i.Degraded, i.Unwatched = names(st.Layers.String()), names(st.Degraded.String()), st.Unwatched
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.jobs {
		if j.running() {
			i.Running = append(i.Running, j.id)
		}
	}
	return i
}

func names(list string) []string {
	return append([]string{}, strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })...)
}

type noArguments struct{}

type sessionList struct {
	Sessions []SessionInfo `json:"sessions"`
}

type destroyArguments struct {
	SessionID string `json:"session_id" jsonschema:"the session to end"`
}

type destroyed struct {
	SessionID string `json:"session_id"`
	Destroyed bool   `json:"destroyed"`
}

func (s *Server) addSessionTools() {
	add(s, &mcp.Tool{
		Name:        "session_create",
		Description: "Create a session: a sandbox of its own, with private files and processes. Returns its id, for the session_id of other tools. Calls without a session_id use the connection's own session, which need not be created.",
		Annotations: &mcp.ToolAnnotations{Title: "Create a session", DestructiveHint: new(bool), OpenWorldHint: new(bool)},
	}, nil, func(ctx context.Context, _ *mcp.CallToolRequest, _ noArguments) (*mcp.CallToolResult, SessionInfo, error) {
		if err := ctx.Err(); err != nil {
			return nil, SessionInfo{}, err
		}
		b, err := s.open(false)
		if err != nil {
			return nil, SessionInfo{}, err
		}
		if err := ctx.Err(); err != nil { // nobody learns its name
			if s.take(b.id) == b {
				b.close()
				s.config.quota.give()
			}
			return nil, SessionInfo{}, err
		}
		words := []string{"session " + b.id + " is ready; commands start in " + quote.Inside(b.at(""))}
		return text(remarks(append(words, unsandboxed(b.env)...)...)), s.info(b), nil
	})
	add(s, &mcp.Tool{
		Name:        "session_list",
		Description: "List the sessions of this connection.",
		Annotations: &mcp.ToolAnnotations{Title: "List sessions", ReadOnlyHint: true, OpenWorldHint: new(bool)},
	}, nil, func(context.Context, *mcp.CallToolRequest, noArguments) (*mcp.CallToolResult, sessionList, error) {
		all := s.boxes()
		slices.SortFunc(all, func(a, b *box) int { return a.created.Compare(b.created) })
		out := sessionList{Sessions: []SessionInfo{}}
		for _, b := range all {
			out.Sessions = append(out.Sessions, s.info(b))
		}
		return listed(fmt.Sprintf("%d sessions", len(all)), out), out, nil
	})
	add(s, &mcp.Tool{
		Name:        "session_destroy",
		Description: "End a session: every process in it is killed, its private files are gone. Files in the workspace stay.",
		Annotations: &mcp.ToolAnnotations{Title: "End a session", OpenWorldHint: new(bool)},
	}, nil, func(_ context.Context, _ *mcp.CallToolRequest, in destroyArguments) (*mcp.CallToolResult, destroyed, error) {
		b := s.take(in.SessionID)
		if b == nil {
			return nil, destroyed{}, fmt.Errorf("there is no session %s: session_list lists them", quote.Text(in.SessionID))
		}
		defer s.config.quota.give()
		s.first.Lock()
		if s.own == b {
			s.own = nil // asked for: the next is no surprise
		}
		s.first.Unlock()
		b.close()
		return text(remarks("session " + b.id + " has ended")), destroyed{b.id, true}, nil
	})
}
