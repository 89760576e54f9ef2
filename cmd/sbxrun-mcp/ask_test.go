//go:build linux

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bearer brings the token.
type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+theToken)
	return http.DefaultTransport.RoundTrip(r)
}

// TestAskInto: the client's user can add a grant to the profile that the server was started
// with, by path or by name. Users of clients over HTTP, who share the server, cannot.
func TestAskInto(t *testing.T) {
	const word, old = "for this profile", "extends: strict\n"
	for _, tt := range []struct {
		name    string
		over    bool // HTTP
		named   bool
		offered bool
	}{{"by path", false, false, true}, {"by name", false, true, true}, {"over HTTP", true, false, false}} {
		t.Run(tt.name, func(t *testing.T) {
			config := t.TempDir()
			t.Setenv("XDG_CONFIG_HOME", config)
			file := filepath.Join(config, "sbxrun/profiles/mine.yaml")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(old), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"--ask=20s", "-P", file}
			if tt.named {
				args[2] = "mine"
			}
			var asked []string
			c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				b, err := json.Marshal(r.Params)
				asked = append(asked, string(b))
				answer := "no"
				if strings.Contains(string(b), word) {
					answer = word
				}
				return &mcp.ElicitResult{Action: "accept", Content: object{"answer": answer}}, err
			}})
			var transport mcp.Transport
			var ws string
			if tt.over {
				url, _, dir := overHTTP(t, args...)
				transport, ws = &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer{}}}, dir
			} else {
				cmd, dir := program(t, args...)
				transport, ws = &mcp.CommandTransport{Command: cmd}, dir
			}
			if err := os.MkdirAll(filepath.Join(ws, ".git/hooks"), 0o755); err != nil {
				t.Fatal(err)
			}
			cs, err := c.Connect(t.Context(), transport, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			out := ok(t, cs, "bash", object{"command": "(echo x >.git/hooks/a) 2>/dev/null && echo written || echo refused"})
			want, stdout := old, "refused\n"
			if tt.offered {
				want, stdout = old+"\nfiles:\n  unprotect:\n    - .git/hooks  # granted in session "+out["session_id"].(string)+"\n", "written\n"
			}
			b, err := os.ReadFile(file)
			if err != nil || string(b) != want || out["stdout"] != stdout || len(asked) != 1 {
				t.Errorf("%v: %q, %v; asked %q", out, b, err, asked)
			}
		})
	}
}
