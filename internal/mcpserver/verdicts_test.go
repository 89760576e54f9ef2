//go:build linux

package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ask calls a tool, and returns its text and its structured result.
func ask(ctx context.Context, cs *mcp.ClientSession, tool string, args map[string]any) (string, map[string]any, error) {
	res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return "", nil, err
	}
	var all []string
	for _, c := range res.Content {
		all = append(all, c.(*mcp.TextContent).Text)
	}
	var out map[string]any
	b, _ := json.Marshal(res.StructuredContent)
	json.Unmarshal(b, &out)
	return strings.Join(all, ""), out, nil
}

// TestGuessedJob: somebody who guesses the name of a background command that is just
// failing to start gets an answer. It ended the server.
func TestGuessedJob(t *testing.T) {
	cs := serve(t, server(t, nil), nil)
	for i := range 30 {
		id := fmt.Sprint("b", i+1)
		var all sync.WaitGroup
		all.Go(func() {
			ask(t.Context(), cs, "bash", map[string]any{"command": "true", "run_in_background": true, "cwd": "/nonexistent"})
		})
		all.Go(func() { ask(t.Context(), cs, "bash_output", map[string]any{"id": id, "wait": 1000}) })
		all.Go(func() { ask(t.Context(), cs, "bash_kill", map[string]any{"id": id}) })
		all.Wait()
	}
	if text, _, err := ask(t.Context(), cs, "bash", map[string]any{"command": "echo alive"}); err != nil || !strings.Contains(text, "alive") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestCaught: a fault in one call is that call's.
func TestCaught(t *testing.T) {
	stderr := os.Stderr
	os.Stderr, _ = os.Open(os.DevNull)
	defer func() { os.Stderr = stderr }()
	_, _, err := caught("bash", func() (*mcp.CallToolResult, int, error) { panic("fault") })
	if err == nil || !strings.Contains(err.Error(), "report") {
		t.Error(err)
	}
}

// TestBashStatus: what the script does to its shell does not change its exit code.
func TestBashStatus(t *testing.T) {
	cs := serve(t, server(t, nil), nil)
	for script, want := range map[string]float64{
		`set -e; cd "$(mktemp -d)"; rm -rf "$PWD"; exit 7`: 7,
		`set -e; cd "$(mktemp -d)"; rm -rf "$PWD"; true`:   0,
		`set -e; exec 187>&-; exit 7`:                      7,
		`IFS=1; sh -c "exit 121"`:                          121,
		`trap 'exit 9' EXIT; exit 3`:                       9,
		`trap 'echo mine' EXIT; (exit 4)`:                  4,
		`set -eu; false; true`:                             1,
		`trap 'exit 8' ERR; false`:                         8,
		`exit`:                                             0,
	} {
		_, out, err := ask(t.Context(), cs, "bash", map[string]any{"command": script})
		if err != nil || out["exit_code"] != want || out["stderr"] != "" {
			t.Errorf("%s: %v, %v; want %v", script, out, err, want)
		}
		cd := map[string]any{"command": "cd /; pwd"} // it works on
		if _, out, err := ask(t.Context(), cs, "bash", cd); err != nil || out["stdout"] != "/\n" {
			t.Errorf("after %s: %v, %v", script, out, err)
		}
	}
}

// TestJobNames: no background command of a connection has the name that one of another
// session had.
func TestJobNames(t *testing.T) {
	cs := serve(t, server(t, nil), nil)
	seen := map[any]bool{}
	for range 2 {
		_, session, err := ask(t.Context(), cs, "session_create", nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, out, err := ask(t.Context(), cs, "bash", map[string]any{"command": "sleep 60", "run_in_background": true, "session_id": session["session_id"]})
			if err != nil || out["id"] == nil || seen[out["id"]] {
				t.Errorf("%v, %v; before: %v", out, err, seen)
			}
			seen[out["id"]] = true
		}
	}
}

// TestCanceledStart: of a call that was canceled before its answer nothing goes on, neither
// a background command nor a session.
func TestCanceledStart(t *testing.T) {
	c := config(t, nil)
	ws := c.Policy.OCI.Process.Cwd
	s := New(c)
	cs := serve(t, s, nil)
	b, _, err := s.in("", "cwd", "")
	if err != nil {
		t.Fatal(err)
	}
	var marks []string
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond/8)
		mark := filepath.Join(ws, fmt.Sprint("late", i))
		if _, err := s.background(ctx, b, task{tool: "bash"}, "sleep 1; touch "+mark); err != nil {
			marks = append(marks, mark)
		}
		cancel()
	}
	if len(marks) == 0 {
		t.Fatal("none was canceled")
	}
	time.Sleep(1500 * time.Millisecond)
	for _, m := range marks {
		if _, err := os.Stat(m); err == nil {
			t.Errorf("%s: it went on", filepath.Base(m))
		}
	}
	before := len(s.boxes())
	own := b.id
	for i := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		_, out, err := ask(ctx, cs, "session_create", nil)
		cancel()
		if err == nil && out["session_id"] != nil {
			ask(t.Context(), cs, "session_destroy", map[string]any{"session_id": out["session_id"]})
		}
	}
	for range 100 { // the server hears of it a moment later
		if len(s.boxes()) == before {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	// An answer that crossed with the cancel is lost; the client finds the session in the list.
	_, out, err := ask(t.Context(), cs, "session_list", nil)
	list, _ := out["sessions"].([]any)
	for _, e := range list {
		if id := e.(map[string]any)["session_id"]; id != own {
			ask(t.Context(), cs, "session_destroy", map[string]any{"session_id": id})
		}
	}
	if err != nil || len(s.boxes()) != before {
		t.Errorf("%v: %d sessions, before %d", err, len(s.boxes()), before)
	}
}

// TestPageCharacters: however a command writes its text, no character is torn.
func TestPageCharacters(t *testing.T) {
	s := &stream{room: &room{own: 1 << 20}, limit: 1 << 20}
	got, at := "", int64(0)
	read := func(running bool) {
		part, next, rest, _, _ := s.page(at, 5, running, "")
		if strings.ToValidUTF8(part, "?") != part || running && rest {
			t.Errorf("%q at %d, more %t", part, at, rest)
		}
		got, at = got+part, next
	}
	want := "a€b\U0001f600cü"
	for _, b := range []byte(want) {
		s.collect([]byte{b})
		read(true)
	}
	read(false)
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.collect([]byte("\xc3")) // and what is none is not kept back for ever
	if part, _, _, _, _ := s.page(at, 5, true, ""); part != "" {
		t.Errorf("%q", part)
	}
	if part, _, _, _, _ := s.page(at, 5, false, ""); part != "\xc3" {
		t.Errorf("%q", part)
	}
}

// TestPageNoText: of what is no UTF-8 nothing is lost between two pages, however much longer
// the text is that stands for it, and no page is empty.
func TestPageNoText(t *testing.T) {
	for _, data := range []string{strings.Repeat("a\xff", 50), strings.Repeat("\xffé\xe2\x82a", 30), strings.Repeat("\xf0\x9f\x98a", 30),
		strings.Repeat("\xff", 99) + "a", strings.Repeat("€a\x80", 30), strings.Repeat("\U0001f600\xc3", 30)} {
		for _, as := range []Encoding{"", inBase64} {
			for most := int64(utf8.UTFMax); most < 12; most++ {
				s := &stream{room: &room{own: 1 << 20}, limit: 1 << 20}
				s.collect([]byte(data))
				got, at := "", int64(0)
				for rest := true; rest; {
					var part string
					was := at
					part, at, rest, _, _ = s.page(at, most, false, as)
					if at == was || as == "" && len(strings.ToValidUTF8(part, "\uFFFD")) > int(most) {
						t.Fatalf("%.20q by %d: from %d to %d, %q", data, most, was, at, part)
					}
					got += part
				}
				if got != data {
					t.Errorf("by %d, %q: %q, want %q", most, as, got, data)
				}
			}
		}
	}
}

// TestOutputNoText: all pages of what a background command printed have all of it.
func TestOutputNoText(t *testing.T) {
	cs := serve(t, server(t, nil), nil)
	const script = `for i in {1..9999}; do printf 'a\377'; done`
	_, job, err := ask(t.Context(), cs, "bash", map[string]any{"command": script, "run_in_background": true})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool {
		_, out, err := ask(t.Context(), cs, "bash_output", map[string]any{"id": job["id"], "stdout_offset": 1 << 20})
		return err != nil || out["running"] == false
	})
	count, truncated := 0, false
	for at, goes := any(0.0), true; goes; {
		text, out, err := ask(t.Context(), cs, "bash_output", map[string]any{"id": job["id"], "stdout_offset": at})
		if err != nil || strings.Contains(text, "left out") {
			t.Fatalf("%.100s, %v", text, err)
		}
		count += strings.Count(out["stdout"].(string), "a")
		at, truncated = out["next_stdout_offset"], truncated || out["stdout_truncated"] == true
		goes = out["more"] == true
	}
	if count != 9999 || truncated {
		t.Errorf("%d of 9999, truncated %t", count, truncated)
	}
}

// TestLostResult: where nobody knows how a command ended, the result says so, and has what
// was printed.
func TestLostResult(t *testing.T) {
	s := server(t, nil)
	cs := serve(t, s, nil)
	ask(t.Context(), cs, "bash", map[string]any{"command": "true"})
	go func() {
		time.Sleep(500 * time.Millisecond)
		killInit(t)
	}()
	text, out, err := ask(t.Context(), cs, "bash", map[string]any{"command": "echo printed; sleep 20"})
	if err != nil || out["reason"] != "lost" || out["stdout"] != "printed\n" || out["exit_code"] != 123.0 || !strings.Contains(text, "may have run") {
		t.Errorf("%s\n%v, %v", text, out, err)
	}
}

// killInit kills the first process of every sandbox that this process has.
func killInit(t *testing.T) {
	threads, _ := filepath.Glob("/proc/self/task/*/children")
	killed := 0
	for _, f := range threads {
		b, _ := os.ReadFile(f)
		for _, pid := range strings.Fields(string(b)) {
			var n int
			fmt.Sscan(pid, &n)
			if p, err := os.FindProcess(n); err == nil && p.Kill() == nil {
				killed++
			}
		}
	}
	if killed == 0 {
		t.Error("there is no sandbox to kill")
	}
}

// TestPythonValue: what is left out of a long value is counted, and its end is its end.
func TestPythonValue(t *testing.T) {
	cs := serve(t, server(t, nil), nil)
	_, out, err := ask(t.Context(), cs, "python_execute", map[string]any{"code": `"a"*100000+"END"`})
	v, _ := out["value"].(string)
	var left int
	if _, after, ok := strings.Cut(v, "[… "); ok {
		fmt.Sscan(after, &left)
	}
	if err != nil || !strings.HasSuffix(v, "END'") || left+len(v)-len(fmt.Sprintf("\n[… %d bytes left out here …]\n", left)) != 100005 {
		t.Errorf("%d bytes, %d left out, ends with %.20q, %v", len(v), left, v[max(0, len(v)-20):], err)
	}
}

// TestNeither: a message that asks nothing and answers nothing is told so.
func TestNeither(t *testing.T) {
	for _, text := range []string{`{"jsonrpc":"2.0","id":"x"}`, `{"jsonrpc":"2.0","id":1,"params":{}}`} {
		if _, err := decode([]byte(text)); err == nil {
			t.Errorf("%s: taken", text)
		}
	}
	for _, text := range []string{`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`} {
		if _, err := decode([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
