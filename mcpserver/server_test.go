//go:build linux

package mcpserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/command"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/files"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

func TestMain(m *testing.M) {
	files.Agent(os.Args[1:]) // in a sandbox, where this binary is the agent
	os.Exit(m.Run())
}

func TestDuplicate(t *testing.T) {
	for raw, want := range map[string]string{
		``: "", `{}`: "", `{"a":1,"b":1}`: "", `{"a":1,"A":1}`: "", `{"a":"a","b":"a"}`: "", `{"a":{"b":1},"c":{"b":1}}`: "",
		`{"a":[{"b":1},{"b":1}]}`: "", `{"a":["a","a"],"b":[]}`: "", `[1,1]`: "", `"x"`: "",
		`{"a":1,"a":2}`: "a", `{"a":1,"\u0061":2}`: "a", `{"x":{"b":1,"b":2}}`: "b", `{"x":[{"b":1,"c":[],"b":2}]}`: "b", `{"a":{},"a":1}`: "a", `{"a":[],"a":1}`: "a",
	} {
		if got, err := duplicate([]byte(raw)); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", raw, got, err, want)
		}
	}
	for _, raw := range []string{`{`, `{"a"}`, `]`, `{"a":1,}`, `x`} {
		if _, err := duplicate([]byte(raw)); err == nil {
			t.Errorf("%s: no error", raw)
		}
	}
}

func TestLastLine(t *testing.T) {
	for said, want := range map[string]string{
		"": "", "\n": "", "/a\n": "/a", "/a/../b\n": "/b", "/a\n/b\n": "/b", "/a\nb\n": "/a\nb", "/a": "", "a\n": "", "x/a\n": "", "/a\x00b\n": "",
		"/" + strings.Repeat("x", 5000) + "\n": "",
	} {
		if got := lastLine(said); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}

func TestMiddleCut(t *testing.T) {
	if got := middleCut("short", 5); got != "short" {
		t.Error(got)
	}
	for n := range 8 {
		got := middleCut(strings.Repeat("ü€", 20), 20+n)
		if !utf8.ValidString(got) || !strings.Contains(got, "left out") {
			t.Errorf("%d: %q", n, got)
		}
	}
}

// TestText: what a model reads names the cause (AGT-7).
func TestText(t *testing.T) {
	r := Result{Reason: driver.ReasonExit, ExitCode: 6, Stdout: "a", Stderr: "b", Denials: []driver.Denial{{Operation: "connect", Target: "x.org:443", Grant: "--allow-host x.org:443"}}}
	want := "a\n[stderr]\nb\n[exit code 6]\n[refused by the sandbox: connect x.org:443: not allowed; only the operator can allow it: --allow-host x.org:443]\n"
	if got := r.text(); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestSince(t *testing.T) {
	state := func(denied uint64, targets ...string) *driver.Status {
		st := &driver.Status{Network: &driver.Network{Denied: denied}}
		for _, x := range targets {
			st.Denials = append(st.Denials, driver.Denial{Target: x})
		}
		return st
	}
	for _, c := range []struct {
		before, after *driver.Status
		want          string
	}{
		{nil, nil, "[]"},
		{state(1, "a"), state(1, "a"), "[]"},
		{state(1, "a"), state(2, "a", "b"), "[b]"},
		{state(1, "a"), state(2, "a"), "[a]"},
	} {
		got := []string{}
		for _, d := range since(c.before, c.after) {
			got = append(got, d.Target)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v, want %s", got, c.want)
		}
	}
}

// server is a server of strict sandboxes, that has not begun to serve.
func server(t *testing.T, edit func(*profiles.Request)) *Server { return New(config(t, edit)) }

// config is of a server of strict sandboxes.
func config(t *testing.T, edit func(*profiles.Request)) Config {
	t.Helper()
	if err := (native.Driver{}).Available(t.Context()); err != nil {
		t.Skip("the native driver is needed: ", err)
	}
	ws := t.TempDir()
	req := &profiles.Request{Command: []string{"/"}, Dir: ws}
	if os.Getuid() != 0 {
		req.Degrade = policy.LayerCgroupMemory | policy.LayerCgroupCPU | policy.LayerCgroupPids
	}
	if edit != nil {
		edit(req)
	}
	r, err := profiles.Resolve(req, &profiles.Facts{Home: t.TempDir(), Cwd: ws, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		Environ: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, CPUs: runtime.NumCPU(), FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := command.New(command.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return Config{Policy: r.Policy, Rules: rules, MaxSessions: 2, Version: "test", Open: func(ctx context.Context) (*Environment, error) {
		sb, err := native.Driver{}.Open(ctx, r.Policy)
		return &Environment{Sandbox: sb, Policy: r.Policy, Driver: "native"}, err
	}}
}

// serve serves over a pipe and returns a client. The test waits for the server's end.
func serve(t *testing.T, s *Server, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	r, cw := io.Pipe()
	cr, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), r, w) }()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), &mcp.IOTransport{Reader: cr, Writer: cw}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cs.Close()
		cw.Close()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
		if len(s.sessions) != 0 {
			t.Errorf("%d sessions are left", len(s.sessions))
		}
		if s.own != nil && !s.own.ended() {
			t.Error("the connection's session is left")
		}
	})
	return cs
}

// TestProgress: who asks hears that a command runs, and who does not does not.
func TestProgress(t *testing.T) {
	s := server(t, nil)
	s.every = 10 * time.Millisecond
	var heard atomic.Int64
	two := make(chan struct{})
	cs := serve(t, s, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		if r.Params.ProgressToken != "tok" {
			t.Errorf("token %v", r.Params.ProgressToken)
		}
		if heard.Add(1) == 2 {
			close(two)
		}
	}})
	if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "sleep 0.3"}}); err != nil {
		t.Fatal(err)
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("%d notifications that nobody asked for", n)
	}
	p := &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "while [ ! -e go ]; do sleep 0.02; done"}}
	p.SetProgressToken("tok")
	ended := make(chan error, 1)
	go func() { _, err := cs.CallTool(t.Context(), p); ended <- err }()
	<-two // while it runs
	if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "touch go"}}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// TestDenials: a host that is not allowed is named, each time (AGT-7).
func TestDenials(t *testing.T) {
	cs := serve(t, server(t, func(r *profiles.Request) { r.AllowHosts = []string{"allowed.example:443"} }), nil)
	for range 2 {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "exec 5<>/dev/tcp/denied.example/443"}})
		if err != nil {
			t.Fatal(err)
		}
		o := res.StructuredContent.(map[string]any)
		words := res.Content[0].(*mcp.TextContent).Text
		if d, _ := o["denials"].([]any); len(d) == 0 || !strings.Contains(fmt.Sprint(d), "denied.example") || !strings.Contains(words, "refused by the sandbox") {
			t.Errorf("%v\n%s", o, words)
		}
	}
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "true"}})
	if err != nil {
		t.Fatal(err)
	}
	if d, _ := res.StructuredContent.(map[string]any)["denials"].([]any); len(d) != 0 {
		t.Errorf("a command that asked for nothing: %v", d)
	}
}

// TestSessionLost: the connection's session is replaced when it is gone, and that is said.
func TestSessionLost(t *testing.T) {
	s := server(t, nil)
	cs := serve(t, s, nil)
	bash := func() string {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "echo here"}})
		if err != nil || res.IsError {
			t.Fatal(err, res)
		}
		return res.Content[0].(*mcp.TextContent).Text
	}
	if got := bash(); got != "here\n" {
		t.Errorf("%q", got)
	}
	s.own.sandbox.Close()
	if got := bash(); !strings.Contains(got, "this is a new one") {
		t.Errorf("%q", got)
	}
	if got := bash(); got != "here\n" {
		t.Errorf("%q", got)
	}
}
