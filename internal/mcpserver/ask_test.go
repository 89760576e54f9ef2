//go:build linux

package mcpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// TestElicit: a client that can ask its user is asked what a call is about to be refused, and
// the same call goes on; one that cannot has it refused at once.
func TestElicit(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		// A proxy through which the host reaches the network, and all hosts say hello.
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				c.Write([]byte("HTTP/1.1 200 OK\r\n\r\nhello\n"))
			}
			c.Close()
		}
	}()
	into := func(t *testing.T, patience time.Duration, file string) *Server {
		c := config(t, func(r *profiles.Request) { r.Ask, r.Profile = patience, file })
		if err := os.MkdirAll(dirOf(c.Policy)+"/.git/hooks", 0o755); err != nil {
			t.Fatal(err)
		}
		p := c.Policy
		facts, err := engine.GatherFactsAnywhere("")
		if err != nil {
			t.Fatal(err)
		}
		c.Asks, c.File = true, engine.NewProfileFile(file, facts)
		c.Open = func(ctx context.Context) (*session.Environment, error) {
			d, board, err := engine.Asking(native.Driver{Upstream: "http://" + l.Addr().String()}, patience, nil, audit.Record{})
			if err != nil {
				return nil, err
			}
			sb, err := d.Open(ctx, p)
			return &session.Environment{Sandbox: sb, Policy: p, Driver: "native", Board: board}, err
		}
		return New(c)
	}
	asks := func(t *testing.T, patience time.Duration) *Server { return into(t, patience, "") }
	call := func(t *testing.T, cs *mcp.ClientSession, script string) string {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": script}})
		if err != nil {
			t.Fatal(err)
		}
		return res.StructuredContent.(map[string]any)["stdout"].(string)
	}
	// By the gateway: the sandbox's loopback is its own.
	get := `exec 3<>/dev/tcp/127.0.0.1/3128; t=${HTTPS_PROXY#*//}; printf 'CONNECT %s HTTP/1.1\r\nProxy-Authorization: Basic %s\r\n\r\n' granted.example:7 "$(printf %s "${t%@*}" | base64 -w0)" >&3; timeout 5 grep -a -m1 hello <&3 || echo refused`
	hook := "echo x 2>/dev/null >.git/hooks/post-commit && echo written || echo refused"
	var mu sync.Mutex
	var asked []string
	answers := func(action, answer string) *mcp.ClientOptions {
		asked = nil
		return &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, r.Params.Message)
			res := &mcp.ElicitResult{Action: action}
			if answer != "" {
				res.Content = map[string]any{"answer": answer}
			}
			return res, nil
		}}
	}
	for _, version := range []string{"", "2025-06-18"} {
		for _, tt := range []struct {
			name, action, answer, script, first, second string
			questions                                   int
		}{
			{"a host for the session", "accept", answerAlways, get, "hello\n", "hello\n", 1},
			{"a host once", "accept", answerOnce, get, "hello\n", "hello\n", 2},
			{"no", "accept", answerNo, get, "refused\n", "refused\n", 1},
			{"declined", "decline", "", get, "refused\n", "refused\n", 1},
			{"a protected path for the session", "accept", answerAlways, hook, "written\n", "written\n", 1},
			{"a protected path once", "accept", answerOnce, hook, "written\n", "written\n", 2},
			{"a protected path, no", "cancel", "", hook, "refused\n", "refused\n", 1},
		} {
			t.Run(tt.name+" "+version, func(t *testing.T) {
				cs := serveBy(t, asks(t, 20*time.Second), answers(tt.action, tt.answer), version)
				if got := cs.InitializeResult().ProtocolVersion; version != "" && got != version {
					t.Fatalf("version %s", got)
				}
				if got := call(t, cs, tt.script); got != tt.first {
					t.Errorf("first: %q, want %q", got, tt.first)
				}
				if got := call(t, cs, tt.script); got != tt.second {
					t.Errorf("second: %q, want %q", got, tt.second)
				}
				mu.Lock()
				defer mu.Unlock()
				grant := "--allow-host granted.example:7"
				if tt.script == hook {
					grant = "--unprotect .git/hooks"
				}
				if len(asked) != tt.questions || !strings.Contains(asked[0], "To allow it: "+grant) {
					t.Errorf("asked %q", asked)
				}
			})
		}
	}
	for _, version := range []string{"", "2025-06-18"} {
		const old = "extends: strict\n"
		t.Run("for the profile "+version, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mi\u202ene.yaml")
			if err := os.WriteFile(file, []byte(old), 0o600); err != nil {
				t.Fatal(err)
			}
			cs := serveBy(t, into(t, 20*time.Second, file), answers("accept", answerFile), version)
			if got := call(t, cs, get) + call(t, cs, hook); got != "hello\nwritten\n" {
				t.Errorf("%q", got)
			}
			if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "    - granted.example:7  # granted in session s-") || !strings.Contains(string(b), "    - .git/hooks  # granted in session s-") {
				t.Errorf("%q, %v", b, err)
			}
			mu.Lock()
			if len(asked) != 2 || strings.Contains(asked[0], "\u202e") || !strings.Contains(asked[0], `"for this profile" adds that to "`+filepath.Dir(file)+`/mi\u202ene.yaml", too`) {
				t.Errorf("asked %q", asked)
			}
			mu.Unlock()
			next := serve(t, into(t, time.Hour, file), nil)
			if got := call(t, next, get) + call(t, next, hook); got != "hello\nwritten\n" {
				t.Errorf("the next: %q", got)
			}
		})
		for name, change := range map[string]func(file string) error{
			"removed": os.Remove,
			"a link": func(file string) error {
				return errors.Join(os.Rename(file, file+".old"), os.Symlink(file+".old", file))
			},
		} {
			t.Run("for a profile, meanwhile "+name+" "+version, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "mine.yaml")
				if err := os.WriteFile(file, []byte(old), 0o600); err != nil {
					t.Fatal(err)
				}
				answer := answers("accept", answerFile)
				handler := answer.ElicitationHandler
				answer.ElicitationHandler = func(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					if err := change(file); err != nil {
						t.Error(err)
					}
					return handler(ctx, r)
				}
				cs := serveBy(t, into(t, 20*time.Second, file), answer, version)
				res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": get}})
				if err != nil {
					t.Fatal(err)
				}
				out := res.StructuredContent.(map[string]any)
				if notes := fmt.Sprint(out["notes"]); out["stdout"] != "refused\n" || !strings.Contains(notes, "nothing was granted: ") || !strings.Contains(notes, file) {
					t.Errorf("%v", out)
				}
				if got := call(t, cs, get); got != "refused\n" {
					t.Errorf("again: %q", got)
				}
				if b, err := os.ReadFile(file + ".old"); err == nil && string(b) != old {
					t.Errorf("%q", b)
				}
			})
		}
		t.Run("for a preset "+version, func(t *testing.T) {
			said := answerFile
			if version == "" { // the SDK's client says nothing that is not offered
				said = answerNo
			}
			answer := answers("accept", said)
			handler := answer.ElicitationHandler
			answer.ElicitationHandler = func(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				if b, err := json.Marshal(r.Params); err != nil || strings.Contains(string(b), answerFile) {
					t.Errorf("offered: %s, %v", b, err)
				}
				return handler(ctx, r)
			}
			cs := serveBy(t, asks(t, 20*time.Second), answer, version)
			if got := call(t, cs, get) + call(t, cs, get); got != "refused\nrefused\n" {
				t.Errorf("%q", got)
			}
		})
	}
	t.Run("nobody can be asked", func(t *testing.T) {
		cs := serve(t, asks(t, time.Hour), nil)
		if got := call(t, cs, get) + call(t, cs, hook); got != "refused\nrefused\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a yes that is late", func(t *testing.T) {
		cs := serve(t, asks(t, 200*time.Millisecond), &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			time.Sleep(700 * time.Millisecond)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": answerAlways}}, nil
		}})
		if got := call(t, cs, get); got != "refused\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("two calls, of which the one that asks ends first", func(t *testing.T) {
		for _, version := range []string{"", "2025-06-18"} {
			s := asks(t, 20*time.Second)
			forms := make(chan string, 10)
			cs := serveBy(t, s, &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				forms <- r.Params.Message
				select { // the user is slow, and the first of the calls is over by then
				case <-time.After(2500 * time.Millisecond):
				case <-ctx.Done():
				}
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": answerAlways}}, ctx.Err()
			}}, version)
			call(t, cs, "true")
			first := make(chan string, 1)
			go func() { first <- call(t, cs, "sleep 1; echo first") }()
			time.Sleep(300 * time.Millisecond) // it attends first
			if got := call(t, cs, hook); got != "written\n" {
				t.Errorf("%q: %q after %d forms", version, got, len(forms))
			}
			if got := <-first; got != "first\n" {
				t.Errorf("%q: first: %q", version, got)
			}
		}
	})
	t.Run("calls at the same time", func(t *testing.T) {
		for _, version := range []string{"", "2025-06-18"} {
			cs := serveBy(t, asks(t, 20*time.Second), &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				time.Sleep(200 * time.Millisecond)
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": answerOnce}}, nil
			}}, version)
			call(t, cs, "true")
			var all sync.WaitGroup
			for i := range 6 {
				all.Go(func() {
					if got := call(t, cs, strings.ReplaceAll(hook, "post-commit", fmt.Sprint(i))); got != "written\n" {
						t.Errorf("%q: %d: %q", version, i, got)
					}
				})
			}
			all.Wait()
		}
	})
	t.Run("what runs between calls", func(t *testing.T) {
		cs := serveBy(t, asks(t, time.Hour), &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			<-ctx.Done() // the user has not answered when the call ends
			return nil, ctx.Err()
		}}, "2025-06-18")
		call(t, cs, "("+hook+") >out 2>&1 & sleep 1")
		if got := call(t, cs, "sleep 1; cat out"); got != "refused\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a client that always declines", func(t *testing.T) {
		cs := serveBy(t, asks(t, 20*time.Second), answers("decline", ""), "2025-06-18")
		call(t, cs, "for i in $(seq 300); do echo x 2>/dev/null >.git/hooks/$i; done")
		mu.Lock()
		defer mu.Unlock()
		if n := len(asked); n < 30 || n > 32 {
			t.Errorf("asked %d times", n)
		}
	})
	t.Run("a file that a tool writes", func(t *testing.T) {
		s := asks(t, time.Hour)
		cs := serve(t, s, answers("accept", answerOnce))
		first := make(chan bool)
		go func() { call(t, cs, "sleep 2"); close(first) }()
		time.Sleep(500 * time.Millisecond)
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_fs_write", Arguments: map[string]any{"path": dirOf(s.config.Policy) + "/.git/hooks/x", "content": "x"}})
		if err != nil || !res.IsError {
			t.Errorf("%v, %v", res, err)
		}
		<-first
		mu.Lock()
		defer mu.Unlock()
		if len(asked) != 0 {
			t.Errorf("asked %q", asked)
		}
	})
	t.Run("a call goes on when nobody answers", func(t *testing.T) {
		release := make(chan bool)
		cs := serve(t, asks(t, 200*time.Millisecond), &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			<-release
			return &mcp.ElicitResult{Action: "decline"}, nil
		}})
		go func() { time.Sleep(time.Second); close(release) }()
		if got := call(t, cs, hook+"; sleep 2; echo over"); got != "refused\nover\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a call asks no more often than its client comes back", func(t *testing.T) {
		cs := serve(t, asks(t, 20*time.Second), answers("accept", answerOnce))
		if got := call(t, cs, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo x 2>/dev/null >.git/hooks/$i && echo $i; done"); got != "1\n2\n3\n4\n5\n6\n7\n8\n9\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a call that is canceled", func(t *testing.T) {
		waits := make(chan bool, 1)
		cs := serve(t, asks(t, time.Hour), &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			waits <- true
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-waits; cancel() }()
		if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": get}}); err == nil {
			t.Error("it ended as if nobody had canceled it")
		}
	})
	t.Run("what a command is called", func(t *testing.T) {
		cs := serve(t, asks(t, 20*time.Second), answers("decline", ""))
		call(t, cs, `exec -a $'x\e[2J\nsbxrun: allow \u0430ll \u202e' bash -c 'echo x >".git/hooks/p\u0430y\n"'`)
		mu.Lock()
		defer mu.Unlock()
		if len(asked) != 1 || strings.ContainsFunc(asked[0], func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("asked %q", asked)
		}
	})
}
