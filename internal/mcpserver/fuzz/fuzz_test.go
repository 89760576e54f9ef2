//go:build unix

package fuzz

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/command"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/mcpserver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
)

// stage plays sandboxes: each command ends at once, and is counted.
type stage struct{ commands atomic.Int64 }

type sandbox struct {
	driver.Fixed
	stage *stage
	once  sync.Once
	done  chan struct{}
}

func (s *sandbox) Exec(_ context.Context, p *specs.Process, _ driver.Stdio) (driver.Process, error) {
	s.stage.commands.Add(1)
	for _, a := range append([]string{p.Cwd}, p.Args...) {
		if strings.ContainsRune(a, 0) {
			panic(fmt.Sprintf("a NUL byte in %q", p.Args))
		}
	}
	if !strings.HasPrefix(p.Cwd, "/") && p.Cwd != "" {
		panic(fmt.Sprintf("cwd %q", p.Cwd))
	}
	return process{}, nil
}
func (s *sandbox) ExecWithin(ctx context.Context, p *specs.Process, _ *specs.LinuxResources, stdio driver.Stdio) (driver.Process, error) {
	return s.Exec(ctx, p, stdio)
}
func (s *sandbox) Status() (*driver.Status, error) { return &driver.Status{}, nil }
func (s *sandbox) Done() <-chan struct{}           { return s.done }

func (s *sandbox) Close() error { s.once.Do(func() { close(s.done) }); return nil }

// End is Close.
func (s *sandbox) End() error { return s.Close() }

type process struct{ driver.Fixed }

func (process) Signal(syscall.Signal) error   { return os.ErrProcessDone }
func (process) Terminate() error              { return os.ErrProcessDone }
func (process) Kill() error                   { return os.ErrProcessDone }
func (process) Pty() *os.File                 { return nil }
func (process) Wait() (*driver.Status, error) { return &driver.Status{}, nil }

func config(tb testing.TB, s *stage) mcpserver.Config {
	rules, err := command.New(command.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	p := &policy.Policy{Profile: "fuzz", OCI: &specs.Spec{Process: &specs.Process{Cwd: "/ws"}}}
	return mcpserver.Config{Rules: rules, Service: engine.Service{Policy: p, MaxSessions: 1000, Version: "fuzz", Open: func(context.Context) (*session.Environment, error) {
		return &session.Environment{Sandbox: &sandbox{stage: s, done: make(chan struct{})}, Policy: p, Driver: "played"}, nil
	}}}
}

// client speaks to a server line by line.
type client struct {
	w  io.WriteCloser
	in chan []byte
	id int
}

func connect(tb testing.TB, s *stage) *client {
	r, cw := io.Pipe()
	cr, w := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		mcpserver.New(config(tb, s)).Serve(context.Background(), r, w)
		w.Close()
	}()
	c := &client{w: cw, in: make(chan []byte, 100)}
	go func() {
		defer close(c.in)
		for b := bufio.NewReader(cr); ; {
			line, err := b.ReadBytes('\n')
			if err != nil {
				return
			}
			c.in <- line
		}
	}()
	tb.Cleanup(func() {
		cw.Close()
		<-ended
	})
	c.ask(tb, "initialize", json.RawMessage(`{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"f","version":"1"}}`))
	fmt.Fprintln(cw, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

type answer struct {
	ID     any
	Result struct {
		IsError bool
		Tools   []struct {
			Name        string
			InputSchema struct {
				Properties map[string]any
				Required   []string
			}
		}
	}
	Error *struct{ Code int }
}

// ask sends a request, and returns what is answered.
func (c *client) ask(tb testing.TB, method string, params json.RawMessage) answer {
	tb.Helper()
	c.id++
	if _, err := fmt.Fprintf(c.w, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", c.id, method, params); err != nil {
		tb.Fatalf("the server does not read: %v", err)
	}
	patience := time.After(time.Minute)
	for {
		select {
		case line, ok := <-c.in:
			if !ok {
				tb.Fatalf("the server ended at %s", params)
			}
			var a answer
			if err := json.Unmarshal(line, &a); err != nil {
				tb.Fatalf("%q: %v", line, err)
			}
			if a.ID == float64(c.id) {
				return a
			}
		case <-patience:
			tb.Fatalf("no answer to %s", params)
		}
	}
}

// object reads JSON as a list of names and values, as they stand there; false if it
// is no object.
func object(raw []byte) (names []string, ok bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, false
		}
		names = append(names, t.(string))
		var skip json.RawMessage
		if d.Decode(&skip) != nil {
			return nil, false
		}
	}
	return names, true
}

// FuzzCall: a call with arguments that are not exactly those of the tool, each once,
// comes to no command, and every call is answered (A04, V11).
func FuzzCall(f *testing.F) {
	for _, s := range []struct{ tool, args string }{
		{"bash", `{"command":"true"}`}, {"bash", `{"command":"true","timeout":5,"cwd":"x","run_in_background":true}`}, {"bash", `{"command":"true","Command":"x"}`},
		{"bash", `{"command":"true","command":"x"}`}, {"bash", `{"command":"true","dangerouslyDisableSandbox":true}`}, {"bash", `{"command":"a\u0000b"}`},
		{"bash", `{"command":"true","cwd":"\u0000"}`}, {"bash", `{"command":"true","session_id":"s"}`}, {"bash", `[]`}, {"bash", `null`}, {"bash", `{"command":null}`},
		{"bash_output", `{"id":"b1","wait":1,"limit":4}`}, {"bash_kill", `{"id":"b1"}`}, {"execute_command", `{"command":"ls | sort"}`}, {"execute_command", `{"argv":["ls","-l"]}`},
		{"execute_command", `{"command":"sudo ls","argv":[]}`}, {"shell_execute", `{"script":"x","shell":"sh","args":["a"]}`}, {"python_execute", `{"code":"1","dependencies":["a","-r x"]}`},
		{"sandbox_fs_list", `{"path":"..","offset":1}`}, {"sandbox_fs_read", `{"path":"/etc/passwd","offset":1,"length":4}`}, {"sandbox_fs_write", `{"path":"x","content":"eA==","encoding":"base64"}`},
		{"session_create", `{}`}, {"session_list", `{}`}, {"session_destroy", `{"session_id":"x"}`}, {"nonesuch", `{}`}, {"bash", `{"command":{"a":[{"b":1,"b":2}]}}`},
	} {
		f.Add(s.tool, s.args)
	}
	s := &stage{}
	c := connect(f, s)
	schemas := map[string][]string{}
	for _, tool := range c.ask(f, "tools/list", json.RawMessage(`{}`)).Result.Tools {
		for name := range tool.InputSchema.Properties {
			schemas[tool.Name] = append(schemas[tool.Name], name)
		}
		if schemas[tool.Name] == nil {
			schemas[tool.Name] = []string{}
		}
	}
	if len(schemas) != 12 {
		f.Fatalf("%d tools", len(schemas))
	}
	f.Fuzz(func(t *testing.T, tool, args string) {
		if !json.Valid([]byte(args)) || strings.ContainsAny(args, "\n\r") {
			return // the framing's to refuse: FuzzLines
		}
		name, err := json.Marshal(tool)
		if err != nil {
			return
		}
		before := s.commands.Load()
		a := c.ask(t, "tools/call", json.RawMessage(fmt.Sprintf(`{"name":%s,"arguments":%s}`, name, args)))
		ran := s.commands.Load() != before
		names, isObject := object([]byte(args))
		known, exists := schemas[tool]
		fine := exists && isObject
		for i, n := range names {
			fine = fine && slices.Contains(known, n) && !slices.Contains(names[:i], n)
		}
		if ran && !fine && args != "null" {
			t.Errorf("a command came of %s %s", tool, args)
		}
		if !fine && args != "null" && a.Error == nil && !a.Result.IsError {
			t.Errorf("no refusal of %s %s", tool, args)
		}
	})
}

// FuzzLines: whatever bytes come, the connection goes on, and what follows is
// answered: no line ends the sessions of its client (A14, V11).
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "\n", "{", "{}\n", "[]\n", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":null,"method":"initialize"}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"x","capabilities":{},"clientInfo":{"name":"","version":""}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, strings.Repeat("[", 100_000), "\xff\x00\n", `{"jsonrpc":"2.0","id":"a","result":{}}`,
		`{"jsonrpc":"2.0","id":1,"id":2}`, `{"a":{"id":1},"id":-0,"jsonrpc":"2.0","method":""}`, `}}}`, `]]"`, `{"jsonrpc":"2.0","id":1,"method":"ping"} {}`, `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"bash","arguments":{"command":"x"}}}`} {
		f.Add([]byte(s))
	}
	c := connect(f, &stage{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := c.w.Write(append(slices.Clone(data), '\n')); err != nil {
			t.Fatalf("the server does not read: %v", err)
		}
		c.ask(t, "ping", json.RawMessage("{}"))
	})
}

// FuzzHTTP: without the token nothing but a refusal comes back, whatever the headers
// and the body are; with it no request makes the server fail (A09, V11).
func FuzzHTTP(f *testing.F) {
	const token = "the-token-of-the-server"
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	for _, s := range [][5]string{
		{"POST", "Bearer " + token, "", "", initialize}, {"POST", "", "", "", initialize}, {"GET", "Bearer " + token, "x", "", ""}, {"DELETE", "Bearer", "x", "", ""},
		{"POST", "bearer  " + token, "", "http://localhost:1", "[]"}, {"POST", "Bearer " + token + ",", "", "null", initialize}, {"PATCH", "Bearer " + token, "", "", "{"},
	} {
		f.Add(s[0], s[1], s[2], s[3], []byte(s[4]))
	}
	s := &stage{}
	h, err := mcpserver.NewHTTP(config(f, s), mcpserver.HTTPConfig{Token: token, Hosts: []string{"localhost:1"}, Idle: 50 * time.Millisecond})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(h.Close)
	f.Fuzz(func(t *testing.T, method, authorization, session, origin string, body []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a stream of news has no end
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, "http://localhost:1/mcp", bytes.NewReader(body))
		if err != nil {
			return
		}
		r.Header["Authorization"] = []string{authorization}
		r.Header["Content-Type"] = []string{"application/json"}
		r.Header["Accept"] = []string{"application/json, text/event-stream"}
		if session != "" {
			r.Header["Mcp-Session-Id"] = []string{session}
		}
		if origin != "" {
			r.Header["Origin"] = []string{origin}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		allowed := (origin == "" || strings.EqualFold(origin, "http://localhost:1")) && len(authorization) == len("bearer ")+len(token) && strings.EqualFold(authorization[:7], "bearer ") && authorization[7:] == token
		if allowed == (w.Code == http.StatusForbidden) {
			t.Errorf("%s, %q, origin %q: %d", method, authorization, origin, w.Code)
		}
		if s.commands.Load() != 0 {
			t.Fatal("a command came of a request that is no call")
		}
	})
}
