//go:build linux

package mcpserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/profiles"
)

const token = "a-token-that-is-long-enough"

// listen serves over HTTP, until the test ends.
func listen(t *testing.T, c Config, idle time.Duration) (*HTTP, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	h, err := NewHTTP(c, HTTPConfig{Token: token, Hosts: []string{l.Addr().String(), "localhost:" + port, "[::1]:" + port, "sandbox.example"}, Idle: idle})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(h.connections) != 0 || h.config.quota.used != 0 {
			t.Errorf("%d connections and %d sandboxes are left", len(h.connections), h.config.quota.used)
		}
	})
	return h, "http://" + l.Addr().String() + "/mcp"
}

// withToken brings the token with every request.
type withToken struct{}

func (withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return http.DefaultTransport.RoundTrip(r)
}

func dial(t *testing.T, url string) *mcp.ClientSession {
	t.Helper()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: withToken{}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

func bashOver(t *testing.T, cs *mcp.ClientSession, script string) map[string]any {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": script}})
	if err != nil || res.IsError {
		t.Fatalf("%q: %v, %v", script, err, res)
	}
	return res.StructuredContent.(map[string]any)
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// TestHTTPAccess: who lacks the token, calls the server by a name that is not its
// own, or comes from another's page, is refused, and nothing begins (A09).
func TestHTTPAccess(t *testing.T) {
	h, url := listen(t, config(t, nil), time.Hour)
	_, port, _ := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp"))
	send := func(method, path string, edit func(*http.Request)) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, strings.TrimSuffix(url, "/mcp")+path, strings.NewReader(initialize))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Authorization", "Bearer "+token)
		edit(r)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		return res.StatusCode, res.Header.Get(sessionHeader)
	}
	for name, edit := range map[string]func(*http.Request){
		"no token":            func(r *http.Request) { r.Header.Del("Authorization") },
		"an empty token":      func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") },
		"a wrong token":       func(r *http.Request) { r.Header.Set("Authorization", "Bearer x"+token[1:]) },
		"part of the token":   func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[:len(token)-1]) },
		"more than the token": func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token+"x") },
		"another scheme":      func(r *http.Request) { r.Header.Set("Authorization", "Basic "+token) },
		"two tokens":          func(r *http.Request) { r.Header.Add("Authorization", "Bearer wrong-wrong-wrong") },
		"token in the query":  func(r *http.Request) { r.Header.Del("Authorization"); r.URL.RawQuery = "token=" + token },
		"a host of its own":   func(r *http.Request) { r.Host = "evil.example" },
		"with our port":       func(r *http.Request) { r.Host = "evil.example:" + port },
		"our name within":     func(r *http.Request) { r.Host = "localhost.evil.example:" + port },
		"another port":        func(r *http.Request) { r.Host = "localhost:1" },
		"no port":             func(r *http.Request) { r.Host = "localhost" },
		"a page":              func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"a local page":        func(r *http.Request) { r.Header.Set("Origin", "http://localhost:3000") },
		"a page over TLS":     func(r *http.Request) { r.Header.Set("Origin", "https://localhost:"+port) },
		"no page":             func(r *http.Request) { r.Header.Set("Origin", "null") },
		"two pages": func(r *http.Request) {
			r.Header["Origin"] = []string{"http://localhost:" + port, "http://evil.example"}
		},
	} {
		for _, method := range []string{"POST", "GET", "DELETE", "OPTIONS"} {
			if code, id := send(method, "/mcp", edit); code != http.StatusForbidden || id != "" {
				t.Errorf("%s, %s: %d, session %q", name, method, code, id)
			}
		}
	}
	if n := len(h.connections); n != 0 {
		t.Errorf("%d connections", n)
	}
	for name, edit := range map[string]func(*http.Request){
		"the address":       func(*http.Request) {},
		"a name":            func(r *http.Request) { r.Host = "LocalHost:" + port },
		"a name of a proxy": func(r *http.Request) { r.Host = "sandbox.example" },
		"our own page":      func(r *http.Request) { r.Header.Set("Origin", "http://localhost:"+port) },
	} {
		code, id := send("POST", "/mcp", edit)
		if code != http.StatusOK || id == "" {
			t.Errorf("%s: %d, session %q", name, code, id)
		}
		if code, _ := send("DELETE", "/mcp", func(r *http.Request) { r.Header.Set(sessionHeader, id) }); code != http.StatusNoContent {
			t.Errorf("the end of %s: %d", name, code)
		}
	}
	// Of the server as a whole, by who may not speak to it.
	conn, err := net.Dial("tcp", "localhost:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "OPTIONS * HTTP/1.1\r\nHost: localhost:%s\r\nConnection: close\r\n\r\n", port)
	if b, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 403 ") {
		t.Errorf("OPTIONS *: %q, %v", b, err)
	}
	for path, want := range map[string]int{"/": 404, "/mcp/": 404, "/mcp/../mcp": 404} {
		if code, _ := send("POST", path, func(*http.Request) {}); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	if code, _ := send("POST", "/mcp", func(r *http.Request) { r.Header.Set(sessionHeader, "x") }); code != http.StatusNotFound {
		t.Errorf("a session that is not there: %d", code)
	}
	if code, id := send("POST", "/mcp", func(r *http.Request) {
		r.Body = io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		r.ContentLength = -1
	}); id != "" && code == 200 && len(h.connections) > 0 {
		t.Errorf("what is no initialize made a connection: %d %q", code, id)
	}
}

// TestHTTPSessions: each connection has sessions of its own, which go with it. How many
// is bounded for each, and for all together: where there are too many, one that is idle
// gives way.
func TestHTTPSessions(t *testing.T) {
	h, url := listen(t, config(t, nil), time.Hour)
	one, two := dial(t, url), dial(t, url)
	bashOver(t, one, "echo one > /tmp/who")
	r := bashOver(t, two, "cat /tmp/who 2>/dev/null; echo two")
	if r["stdout"] != "two\n" {
		t.Errorf("two connections share: %v", r)
	}
	// By its id, one's session is not there for two.
	id := bashOver(t, one, "true")["session_id"]
	res, err := two.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "cat /tmp/who", "session_id": id}})
	if err != nil || !res.IsError {
		t.Errorf("a session of another connection: %v, %v", err, res)
	}
	create := func(cs *mcp.ClientSession) bool {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "session_create"})
		if err != nil {
			t.Fatal(err)
		}
		return !res.IsError
	}
	if !create(two) || create(two) {
		t.Error("one client, two sandboxes: is not what it can have")
	}
	// With three for all, a third client has to take one of another's.
	h.config.quota.mu.Lock()
	h.config.quota.most, h.config.quota.rest = 3, time.Hour
	h.config.quota.mu.Unlock()
	three := dial(t, url)
	if create(three) {
		t.Error("a session that was just used gave way")
	}
	h.config.quota.mu.Lock()
	h.config.quota.rest = 0
	h.config.quota.mu.Unlock()
	bashOver(t, one, "sleep 300 & echo stays > /tmp/who")
	four := dial(t, url)
	for i, c := range []struct {
		client *mcp.ClientSession
		want   bool
	}{{three, true}, {three, true}, {three, false}, {four, true}} {
		if create(c.client) != c.want {
			t.Errorf("create %d: idle sessions do not give way as they should", i)
		}
	}
	if r := bashOver(t, one, "cat /tmp/who"); r["stdout"] != "stays\n" {
		t.Errorf("a session in which something runs gave way: %v", r)
	}
	r = bashOver(t, two, "cat /tmp/who")
	if notes := fmt.Sprint(r["notes"]); !strings.Contains(notes, "had ended") {
		t.Errorf("whose session gave way is not told: %v", r)
	}
	for _, cs := range []*mcp.ClientSession{one, two, three, four} {
		cs.Close()
	}
	eventually(t, "the sessions of connections that ended are gone", func() bool {
		h.config.quota.mu.Lock()
		defer h.config.quota.mu.Unlock()
		return h.config.quota.used == 0 && len(h.config.quota.servers) == 0
	})
}

// TestHTTPGone: a client that goes away in the middle of a call ends what the call
// started, and one that is silent ends its connection (A10).
func TestHTTPGone(t *testing.T) {
	ws := ""
	c := config(t, func(r *profiles.Request) { ws = r.Dir })
	h, url := listen(t, c, 300*time.Millisecond)
	cs := dial(t, url)
	bashOver(t, cs, "true")
	id := cs.ID()
	// The call, by a request that is then dropped.
	ctx, drop := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(`{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"bash","arguments":{"command":"while :; do date +%N > beat; sleep 0.02; done"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token, sessionHeader: id} {
		r.Header.Set(k, v)
	}
	go func() {
		if res, err := http.DefaultClient.Do(r); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	beats := func() bool {
		read := func() string { b, _ := os.ReadFile(filepath.Join(ws, "beat")); return string(b) }
		before := read()
		time.Sleep(300 * time.Millisecond)
		now := read()
		return before != "" && now != "" && now != before
	}
	eventually(t, "the command runs", beats)
	if len(h.connections) != 1 {
		t.Fatalf("%d connections", len(h.connections))
	}
	drop()
	eventually(t, "the command of a dropped request has ended", func() bool { return !beats() })
	if out := bashOver(t, cs, "echo here"); out["stdout"] != "here\n" {
		t.Errorf("the connection: %v", out)
	}
	// A stream that waits for news is no silence; without one there is.
	cs.Close()
	quiet := rawConnect(t, url)
	eventually(t, "a silent connection ends", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.connections[quiet] == nil
	})
}

// TestHTTPRoom: whatever other clients keep of the room for output, a client sees what a
// command of its own printed, up to the limit. Beyond that it is told what its end was lost to.
func TestHTTPRoom(t *testing.T) {
	h, url := listen(t, config(t, nil), time.Hour)
	cs := dial(t, url)
	took := int64(0)
	for n := int64(1 << 20); n > 0; {
		if h.config.room.Take(n) {
			took += n
		} else {
			n /= 2
		}
	}
	if took+maxConnections*reserved != maxKept {
		t.Errorf("all clients together can keep %d", took+maxConnections*reserved)
	}
	told := func(out map[string]any, is loss) {
		t.Helper()
		notes := fmt.Sprint(out["notes"])
		for _, l := range []loss{lostToLimit, lostToRoom, lostAtEnd} {
			if strings.Contains(notes, string(l)) != (l == is) {
				t.Errorf("%.200s; want %s", notes, is)
			}
		}
	}
	for range 3 {
		out := bashOver(t, cs, "echo important; echo also >&2")
		if out["stdout"] != "important\n" || out["stderr"] != "also\n" || out["stdout_truncated"] != false {
			t.Errorf("%v", out)
		}
	}
	const full = "head -c 1048576 /dev/zero | tr '\\0' x; head -c 1048576 /dev/zero | tr '\\0' y >&2"
	told(bashOver(t, cs, full), "")
	told(bashOver(t, cs, full+"; echo more"), lostToLimit)
	_, job, err := ask(t.Context(), cs, "bash", map[string]any{"command": full, "run_in_background": true})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool {
		_, out, err := ask(t.Context(), cs, "bash_output", map[string]any{"id": job["id"], "stdout_offset": 1 << 20, "stderr_offset": 1 << 20})
		return err != nil || out["running"] == false && out["next_stdout_offset"] == 1048576.0 && out["next_stderr_offset"] == 1048576.0
	})
	out := bashOver(t, cs, "echo important") // the job has all that is the client's
	if out["stdout"] != "" || out["stdout_truncated"] != true {
		t.Errorf("%v", out)
	}
	told(out, lostToRoom)
	// Another client is none the worse, and this one has its own again once it gives up the job.
	told(bashOver(t, dial(t, url), "echo important"), "")
	ask(t.Context(), cs, "session_destroy", map[string]any{"session_id": job["session_id"]})
	told(bashOver(t, cs, full), "")
	h.config.room.Return(took)
	if !h.config.room.Take(took) || h.config.room.Take(1) {
		t.Error("not all room, or more, is back")
	}
}

// TestSameID: a call with the id of one that is not answered yet is answered with an error
// that names the id, over lines and over HTTP; the first goes on, and its id is free after
// its answer.
func TestSameID(t *testing.T) {
	ws := ""
	c := config(t, func(r *profiles.Request) { ws = r.Dir })
	const wait, quick = "touch runs; while [ ! -e go ]; do sleep 0.02; done; echo first", "touch second"
	call := func(command string) string {
		return `{"jsonrpc":"2.0","id":"sev\"en","method":"tools/call","params":{"name":"bash","arguments":{"command":"` + command + `"}}}`
	}
	there := func(name string) bool { _, err := os.Stat(filepath.Join(ws, name)); return err == nil }
	ways := map[string]func(t *testing.T) (say func(string), next func() string){
		"lines": func(t *testing.T) (func(string), func() string) {
			r, cw := io.Pipe()
			cr, w := io.Pipe()
			ended := make(chan error, 1)
			go func() { ended <- New(c).Serve(context.Background(), r, w) }()
			t.Cleanup(func() { cw.Close(); go io.Copy(io.Discard, cr); <-ended })
			b := bufio.NewReader(cr)
			next := func() string { line, _ := b.ReadString('\n'); return line }
			say := func(s string) { io.WriteString(cw, s+"\n") }
			say(initialize)
			next()
			say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			return say, next
		},
		"HTTP": func(t *testing.T) (func(string), func() string) {
			_, url := listen(t, c, 0)
			id, answers := rawConnect(t, url), make(chan string, 3)
			return func(s string) {
				go func() {
					r, _ := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(s))
					for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token, sessionHeader: id} {
						r.Header.Set(k, v)
					}
					res, err := http.DefaultClient.Do(r)
					if err != nil {
						answers <- err.Error()
						return
					}
					defer res.Body.Close()
					b, _ := io.ReadAll(res.Body)
					answers <- string(b)
				}()
			}, func() string { return <-answers }
		},
	}
	for _, name := range []string{"lines", "HTTP"} {
		t.Run(name, func(t *testing.T) {
			for _, f := range []string{"go", "runs", "second"} {
				os.Remove(filepath.Join(ws, f))
			}
			say, next := ways[name](t)
			answer := func() string {
				t.Helper()
				got := make(chan string, 1)
				go func() { got <- next() }()
				select {
				case s := <-got:
					return s
				case <-time.After(30 * time.Second):
					t.Fatal("no answer")
					return ""
				}
			}
			say(call(wait))
			eventually(t, "the first runs", func() bool { return there("runs") })
			say(call(quick))
			if s := answer(); !strings.Contains(s, `"code":-32600`) || !strings.Contains(s, `sev`) || name == "lines" && !strings.Contains(s, `"id":null`) {
				t.Errorf("the second: %s", s)
			}
			if there("second") {
				t.Error("the second ran")
			}
			os.WriteFile(filepath.Join(ws, "go"), nil, 0o666)
			if s := answer(); !strings.Contains(s, `first\n`) {
				t.Errorf("the first: %s", s)
			}
			say(call(quick))
			if s := answer(); strings.Contains(s, `"error"`) || !there("second") {
				t.Errorf("the third: %s", s)
			}
		})
	}
}

// rawConnect begins a connection and says nothing more.
func rawConnect(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(initialize))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	id := res.Header.Get(sessionHeader)
	if res.StatusCode != 200 || id == "" {
		t.Fatal(fmt.Sprint(res.StatusCode, id))
	}
	return id
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 300 {
		if holds() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}
