//go:build linux

package main

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/internal/cli"
)

// TestToken: a token comes from where it was put, and from nowhere that others see.
func TestToken(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	fresh := filepath.Join(dir, "fresh")
	first, made, err := tokenOf(&cli.HTTP{TokenFile: fresh})
	if err != nil || made || len(first) < 20 {
		t.Fatalf("%q, %v, %v", first, made, err)
	}
	if fi, err := os.Stat(fresh); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	if again, _, err := tokenOf(&cli.HTTP{TokenFile: fresh}); again != first || err != nil {
		t.Errorf("%q, %v; want %q", again, err, first)
	}
	if left, _ := filepath.Glob(dir + "/*.tmp"); left != nil {
		t.Errorf("left %q", left)
	}
	if got, _, err := tokenOf(&cli.HTTP{TokenFile: file("good", "a-token-of-mine-0123\n", 0o600)}); got != "a-token-of-mine-0123" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	own := filepath.Join(dir, "config", "sbxrun")
	if _, _, err := tokenOf(&cli.HTTP{TokenFile: filepath.Join(own, "token")}); err != nil {
		t.Errorf("in a configuration directory that is not there yet: %v", err)
	}
	if fi, err := os.Stat(own); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
	one, made, err := tokenOf(&cli.HTTP{})
	if two, _, _ := tokenOf(&cli.HTTP{}); err != nil || !made || one == two {
		t.Errorf("made %q and %q, %v, %v", one, two, made, err)
	}
	for _, h := range []cli.HTTP{
		{TokenFile: file("open", "a-token-of-mine-0123\n", 0o644)}, {TokenFile: file("group", "a-token-of-mine-0123\n", 0o640)},
		{TokenFile: file("short", "short\n", 0o600)}, {TokenFile: file("empty", "", 0o600)}, {TokenFile: dir},
		{TokenFile: file("two", "a-token-of-mine-0123\nanother-token-of-mine\n", 0o600)},
		{Token: "short"}, {Token: "a token with spaces in it"}, {TokenFile: "/nonexistent/token"},
	} {
		if got, _, err := tokenOf(&h); err == nil {
			t.Errorf("%+v: %q", h, got)
		} else if strings.Contains(err.Error(), "a-token-of-mine") {
			t.Errorf("the error shows the token: %v", err)
		}
	}
}

func TestHosts(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:1": "127.0.0.1:9 localhost:9 127.0.0.1:9 [::1]:9 x.example",
		"[::1]:0":     "[::1]:9 localhost:9 127.0.0.1:9 [::1]:9 x.example",
		"0.0.0.0:1":   "localhost:9 127.0.0.1:9 [::1]:9 x.example",
		"10.1.2.3:1":  "10.1.2.3:9 x.example",
	} {
		if got := strings.Join(hostsOf(&cli.HTTP{Address: netip.MustParseAddrPort(address), Hosts: []string{"x.example"}}, 9), " "); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// TestHTTPFlags: an address that other machines reach needs two words more.
func TestHTTPFlags(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--http", "0.0.0.0:0"}, "--http-remote"},
		{[]string{"--http", "[::]:0"}, "--http-remote"},
		{[]string{"--http", "192.0.2.1:80", "--token-file", "x"}, "--http-remote"},
		{[]string{"--http", "0.0.0.0:0", "--http-remote"}, "--token-file"},
		{[]string{"--http", "localhost:1"}, "127.0.0.1:7777"},
		{[]string{"--http", "7777"}, "127.0.0.1:7777"},
		{[]string{"--http", "127.0.0.1:0", "--http-host", "a/b"}, "host name"},
		{[]string{"--http", busy.Addr().String()}, "choose another port"},
		{[]string{"--http", "127.0.0.1:0", "--token-file", "/nonexistent/token"}, "a directory that is there"},
		{[]string{"--token-file", "x"}, "--http 127.0.0.1:7777"},
		{[]string{"--idle-timeout", "5m"}, "--http 127.0.0.1:7777"},
	} {
		cmd, _ := program(t, c.args...)
		cmd.Stderr = nil
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: %v, says %q; want %q", c.args, err, out, c.want)
		}
	}
}

const theToken = "a-token-of-mine-0123"

// overHTTP is a server over HTTP that ends with the test.
func overHTTP(t *testing.T, args ...string) (url, token, ws string) {
	t.Helper()
	cmd, ws := program(t, append([]string{"--http", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(cmd.Env, "SBXRUN_MCP_TOKEN="+theToken, "HARMLESS_OTHER=here")
	cmd.Stderr = nil
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		timer.Stop()
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	for s := bufio.NewScanner(errs); url == "" && s.Scan(); {
		if strings.Contains(s.Text(), "Bearer") {
			t.Errorf("the token is told: %s", s.Text())
		}
		_, url, _ = strings.Cut(s.Text(), "serving at ")
	}
	return url, theToken, ws
}

// TestHTTPToken: commands do not see the token, even under a policy that passes
// every variable on, or shows the directory that its file is in. Nor do they change
// that file, or the command policy; what lies beside them they do.
func TestHTTPToken(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"token": theToken, "policy": "{}", "other": "HARMLESS_FILE"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url, _, ws := overHTTP(t, "--inherit-env", "--rw", dir, "--token-file", dir+"/token", "--command-policy", dir+"/policy")
	curl := func(session, body string) (string, error) {
		c := exec.Command("curl", "-sS", "-i", "--max-time", "60", url, "-H", "Authorization: Bearer a-token-of-mine-0123", "-H", "Mcp-Session-Id: "+session,
			"-H", "Content-Type: application/json", "-H", "Accept: application/json, text/event-stream", "-d", body)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	out, err := curl("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}`)
	_, id, ok := strings.Cut(out, "Mcp-Session-Id: ")
	if !ok || err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	id, _, _ = strings.Cut(id, "\r\n")
	if out, err := curl(id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil || !strings.Contains(out, " 202 ") {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = curl(id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bash","arguments":{"command":"env; cat /proc/*/environ > all; cd `+dir+`; cat token other policy; for f in token policy other; do echo x > $f; mv $f $f.old; done"}}}`)
	seen, _ := os.ReadFile(ws + "/all")
	if err != nil || !strings.Contains(out, "HARMLESS_OTHER=here") || !strings.Contains(out, "HARMLESS_FILE") || strings.Contains(out, "a-token-of-mine") || strings.Contains(string(seen), "a-token-of-mine") {
		t.Errorf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{"token": theToken, "policy": "{}", "other.old": "x\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
