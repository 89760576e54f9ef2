//go:build linux

package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bin has the programs under test.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "sbxrun-mcp-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(bin)
		build := exec.Command("go", "build", "-o", bin+"/", "github.com/sbxrun/sbxrun/cmd/sbxrun", "github.com/sbxrun/sbxrun/cmd/sbxrun-mcp")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// clients is where tools/deps put the clients.
func clients(t *testing.T) (dir, node string) {
	t.Helper()
	dir, err := filepath.Abs("../../.cache/clients/mcp")
	if err != nil {
		t.Fatal(err)
	}
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	node = filepath.Join(dir, "node_modules/node-linux-"+arch+"/bin/node")
	for _, name := range []string{"@modelcontextprotocol/sdk", "@modelcontextprotocol/client", "@modelcontextprotocol/conformance", "node-linux-" + arch} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", name)); err != nil {
			t.Fatalf("the client %s is not installed (%v): tools/deps test installs it", name, err)
		}
	}
	want, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if have, _ := os.ReadFile(filepath.Join(dir, "package-lock.json")); !bytes.Equal(have, want) {
		t.Fatalf("the clients in %s are not those of package-lock.json: tools/deps test installs them", dir)
	}
	return dir, node
}

// environ is that of a server, with a home of its own.
func environ(t *testing.T) []string {
	env := append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME=")
	if os.Getuid() != 0 {
		env = append(env, "SBXRUN_ALLOW_DEGRADED=cgroup")
	}
	return env
}

func workspace(t *testing.T) string {
	ws := filepath.Join(t.TempDir(), "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	return ws
}

// listen starts a server over HTTP, that ends with the test.
func listen(t *testing.T, ws string, args ...string) (u *url.URL, token string) {
	t.Helper()
	cmd := exec.Command(bin+"/sbxrun", append([]string{"mcp", "-C", ws, "--http", "127.0.0.1:0"}, args...)...)
	cmd.Env = environ(t)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(errs); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	patience := time.After(30 * time.Second)
	for u == nil || token == "" {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatal("the server ended")
			}
			t.Log(line)
			if _, s, ok := strings.Cut(line, "serving at "); ok {
				if u, err = url.Parse(s); err != nil {
					t.Fatal(err)
				}
			}
			if _, s, ok := strings.Cut(line, "Bearer "); ok {
				token = s
			}
		case <-patience:
			t.Fatal("the server does not begin to serve")
		}
	}
	return u, token
}

// TestTypeScript: the libraries that most agents are made with, of both generations,
// by the version of the protocol that they agree on with the server.
func TestTypeScript(t *testing.T) {
	dir, node := clients(t)
	for _, c := range []struct{ library, kind, version string }{
		{"sdk", "stdio", ""}, // it does not tell
		{"sdk", "http", "2025-11-25"},
		{"client-auto", "stdio", "2026-07-28"},
		// Over HTTP that version has no connection that sessions could belong to:
		// the client is told which versions there are, and takes one.
		{"client-auto", "http", "2025-11-25"},
		{"client-legacy", "stdio", "2025-11-25"},
	} {
		t.Run(c.library+"/"+c.kind, func(t *testing.T) {
			t.Parallel() // they wait, more than they work
			out, _, err := use(t, dir, node, c.library, c.kind)
			if err != nil {
				t.Errorf("the client: %v", err)
			}
			steps := map[string]any{}
			for line := range strings.Lines(out) {
				var s struct {
					Step  string
					Value any
				}
				if err := json.Unmarshal([]byte(line), &s); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				steps[s.Step] = s.Value
			}
			if got := steps["version"]; got != c.version {
				t.Errorf("protocol version %v, want %q", got, c.version)
			}
			check(t, steps)
		})
	}
	// A client that insists is told.
	if out, errs, err := use(t, dir, node, "client-2026-07-28", "http"); err == nil || out != "" || !strings.Contains(errs, "2025-11-25") {
		t.Errorf("%v\n%s%s", err, out, errs)
	}
}

// use runs the client against a server of its own, and returns what it printed.
func use(t *testing.T, dir, node, library, kind string) (out, errs string, err error) {
	t.Helper()
	ws := workspace(t)
	args := []string{"client.mjs", library, ws, kind}
	if kind == "stdio" {
		args = append(args, bin+"/sbxrun", "mcp", "-C", ws, "--kill-after", "100ms")
	} else {
		u, token := listen(t, ws, "--kill-after", "100ms")
		args = append(args, u.String(), token)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, args...)
	cmd.Env = append(environ(t), "CLIENTS="+dir)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	if e.Len() > 0 {
		t.Logf("%s", e.Bytes())
	}
	return o.String(), e.String(), err
}

type object = map[string]any

func check(t *testing.T, steps map[string]any) {
	t.Helper()
	list, _ := steps["list"].([]any)
	if len(list) != 12 {
		t.Errorf("%d tools", len(list))
	}
	for _, tool := range list {
		o := tool.(object)
		if o["output"] != true || o["annotations"] != true || o["closed"] != true {
			t.Errorf("a tool without schemas or annotations: %v", o)
		}
	}
	is := func(step string, want object) {
		t.Helper()
		got, ok := steps[step].(object)
		if !ok {
			t.Errorf("step %s did not come about: %v", step, steps[step])
			return
		}
		for k, v := range want {
			if fmt.Sprint(got[k]) != fmt.Sprint(v) {
				t.Errorf("step %s: %s is %v, want %v", step, k, got[k], v)
			}
		}
	}
	is("call", object{"exit_code": 3, "stdout": "out\n", "stderr": "err\n", "cwd": "/usr", "sandboxed": true, "reason": "exit"})
	is("again", object{"exit_code": 1, "stdout": "/usr\n"})
	is("refused", object{"isError": true})
	is("unknown", object{"isError": true})
	is("progress", object{"stdout": "went\n"})
	is("cancel", object{"how": "aborted"})
	is("background", object{"running": true, "stdout": "first\n"})
	if steps["end"] != true {
		t.Error("the client did not come to its end")
	}
}

// TestConformance runs the protocol's conformance suite against a server over
// HTTP. The baseline names what cannot pass, each with its reason; what fails
// beside it fails the test, and so does what is in it and passes.
func TestConformance(t *testing.T) {
	dir, node := clients(t)
	u, token := listen(t, workspace(t))
	front := bearer(t, u, token)
	results := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, dir+"/node_modules/@modelcontextprotocol/conformance/dist/index.js",
		"server", "--url", front, "--suite", "all", "--expected-failures", "baseline.yaml", "--output-dir", results)
	out, err := cmd.CombinedOutput()
	_, summary, ok := strings.Cut(string(out), "=== SUMMARY ===")
	if err != nil || !ok {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(summary)
	// A suite that ran nothing has no failures either.
	for _, name := range []string{"server-initialize", "ping", "tools-list", "logging-set-level", "server-sse-multiple-streams", "dns-rebinding-protection"} {
		if !regexp.MustCompile(`(?m)✓ ` + name + `: [1-9]\d* passed, 0 failed`).MatchString(summary) {
			t.Errorf("%s did not pass", name)
		}
	}
}

// TestBaseline: each line of the baseline says why.
func TestBaseline(t *testing.T) {
	data, err := os.ReadFile("baseline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimSpace(line), "- ") {
			if _, why, _ := strings.Cut(line, "# "); len(strings.Fields(why)) < 4 {
				t.Errorf("no reason: %s", line)
			}
		}
	}
}

// bearer is a server that passes requests on with the token, for a client that
// has no way to be given one. What it is called by is what the other is called by.
func bearer(t *testing.T, to *url.URL, token string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	here, there := ":"+port, ":"+to.Port()
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
		r.Out.Host = strings.Replace(r.In.Host, here, there, 1)
		for i, o := range r.Out.Header["Origin"] {
			r.Out.Header["Origin"][i] = strings.Replace(o, here, there, 1)
		}
		r.Out.Header.Set("Authorization", "Bearer "+token)
	}}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The server closes a request's body when the answer begins. Had the
		// transport sent it all, but not seen its end by then, it would give up
		// the connection, and with it the answer.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return "http://" + l.Addr().String() + "/mcp"
}

// TestPinned: the lock names each package's content, and no registry.
func TestPinned(t *testing.T) {
	data, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct{ Version, Integrity, Resolved string }
	}
	if err := json.Unmarshal(data, &lock); err != nil {
		t.Fatal(err)
	}
	var bad []string
	for name, p := range lock.Packages {
		if name != "" && (p.Integrity == "" || p.Resolved != "") {
			bad = append(bad, name)
		}
	}
	slices.Sort(bad)
	if len(lock.Packages) < 50 || len(bad) > 0 {
		t.Errorf("%d packages, without a hash or with an address: %q", len(lock.Packages), bad)
	}
}
