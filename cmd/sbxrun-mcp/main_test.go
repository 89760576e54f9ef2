//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/native"
)

// TestMain makes of this binary the program too: its agent in a sandbox is the
// binary itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		main()
	}
	os.Exit(m.Run())
}

// program is the server, with a workspace of its own, ready to start.
func program(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	if err := (native.Driver{}).Available(context.Background()); err != nil {
		t.Skip("the native driver is needed: ", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Beside the home, as people have it, and not in /tmp, which is private.
	ws := filepath.Join(t.TempDir(), "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"mcp", "-C", ws}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	if os.Getuid() != 0 {
		cmd.Env = append(cmd.Env, "SBXRUN_ALLOW_DEGRADED=cgroup")
	}
	cmd.Stderr = os.Stderr
	return cmd, ws
}

// connect starts a server and a client of it, that end with the test.
func connect(t *testing.T, args ...string) (*mcp.ClientSession, string) {
	t.Helper()
	cmd, ws := program(t, args...)
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	cs, err := c.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs, ws
}

type object = map[string]any

// call calls a tool, and returns the structured result and the text.
func call(t *testing.T, cs *mcp.ClientSession, tool string, args any) (object, string, bool) {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	o, _ := res.StructuredContent.(object)
	return o, words(res), res.IsError
}

// words is the text of a result.
func words(res *mcp.CallToolResult) string {
	var b strings.Builder
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			b.WriteString(c.Text)
		}
	}
	return b.String()
}

// ok is call for what must not be refused.
func ok(t *testing.T, cs *mcp.ClientSession, tool string, args any) object {
	t.Helper()
	o, words, bad := call(t, cs, tool, args)
	if bad || o == nil {
		t.Fatalf("%s %v: refused: %s", tool, args, words)
	}
	return o
}

func refused(t *testing.T, cs *mcp.ClientSession, tool string, args any, want string) {
	t.Helper()
	_, words, bad := call(t, cs, tool, args)
	if !bad || !strings.Contains(words, want) {
		t.Errorf("%s %v: refused %t, says %q; want %q in a refusal", tool, args, bad, words, want)
	}
}

func TestTools(t *testing.T) {
	cs, _ := connect(t)
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		in, _ := json.Marshal(tool.InputSchema)
		if !strings.Contains(string(in), `"additionalProperties":false`) {
			t.Errorf("%s takes unknown arguments: %s", tool.Name, in)
		}
		if tool.OutputSchema == nil || tool.Annotations == nil || tool.Description == "" {
			t.Errorf("%s lacks an output schema, annotations or a description", tool.Name)
		}
	}
	slices.Sort(names)
	want := "bash bash_kill bash_output execute_command python_execute sandbox_fs_list sandbox_fs_read sandbox_fs_write session_create session_destroy session_list shell_execute"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("tools %s\nwant  %s", got, want)
	}
}

func TestBash(t *testing.T) {
	cs, ws := connect(t)
	r := ok(t, cs, "bash", object{"command": "echo out; echo err >&2; exit 7", "description": "say it"})
	if r["exit_code"] != 7.0 || r["reason"] != "exit" || r["stdout"] != "out\n" || r["stderr"] != "err\n" || r["sandboxed"] != true {
		t.Errorf("result %v", r)
	}

	// The directory stays, whichever way the script ends.
	for _, c := range []struct{ script, want string }{
		{"mkdir -p a/b && cd a", ws + "/a"},
		{"cd b; exit 3", ws + "/a/b"},
		{"pwd", ws + "/a/b"},
		{"set -e; cd ..; false; cd /", ws + "/a"},
		{"trap 'echo mine' EXIT; cd b", ws + "/a/b"},
		{"(cd /; exit 1)", ws + "/a/b"},
		{"cd ..; if", ws + "/a/b"}, // parsed as a whole, so nothing ran
		{"cd /usr; sleep 300 & cd /usr/bin", "/usr/bin"},
		{"exec 3>&-; cd /usr", "/usr"},
		{"pwd() { echo /nowhere; }; cd /", "/"},
		{"cd /tmp; mkdir 'x\n/usr'; cd 'x\n/usr'; cd /tmp", "/tmp"},
		{"mkdir gone; cd gone", "/tmp/gone"},
	} {
		if r := ok(t, cs, "bash", object{"command": c.script}); r["cwd"] != c.want {
			t.Errorf("%q: cwd %v, want %v; result %v", c.script, r["cwd"], c.want, r)
		}
	}
	ok(t, cs, "shell_execute", object{"script": "rmdir /tmp/gone"})
	if r := ok(t, cs, "bash", object{"command": "pwd"}); r["stdout"] != ws+"\n" || !strings.Contains(fmt.Sprint(r["notes"]), "is gone") {
		t.Errorf("after the directory went: %v", r)
	}
	// A directory for one call is for that call.
	if r := ok(t, cs, "bash", object{"command": "pwd; cd /usr", "cwd": "/usr/bin"}); r["stdout"] != "/usr/bin\n" || r["cwd"] != ws {
		t.Errorf("cwd of one call: %v", r)
	}
	// The wrapper's descriptor is not among the script's small ones.
	if r := ok(t, cs, "bash", object{"command": "for i in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$i ] && echo $i; done"}); r["stdout"] != "0\n1\n2\n" {
		t.Errorf("descriptors: %v", r)
	}
	if r := ok(t, cs, "bash", object{"command": "set -x; false"}); r["stderr"] != "++ false\n" || r["exit_code"] != 1.0 {
		t.Errorf("a trace: %v", r)
	}
	if r := ok(t, cs, "bash", object{"command": "true\nnonesuch"}); r["stderr"] != "bash: line 2: nonesuch: command not found\n" {
		t.Errorf("the number of a line: %v", r)
	}
	r = ok(t, cs, "bash", object{"command": "sleep 60", "timeout": 200})
	if r["reason"] != "timeout" || r["exit_code"] != 124.0 || r["timeout_ms"] != 200.0 {
		t.Errorf("time limit: %v", r)
	}
	r = ok(t, cs, "bash", object{"command": "head -c 2000000 /dev/zero | tr '\\0' x"})
	if n := len(r["stdout"].(string)); n < 30_000 || n > 30_100 || r["stdout_truncated"] != true {
		t.Errorf("output: %d bytes, truncated %v", len(r["stdout"].(string)), r["stdout_truncated"])
	}
}

// TestNoWeaker asks for less confinement in each way there is a word for (A04, A07).
func TestNoWeaker(t *testing.T) {
	cs, _ := connect(t, "--timeout", "700ms")
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	write := "echo touched > " + canary
	refused(t, cs, "bash", object{"command": write, "dangerouslyDisableSandbox": true}, "refused")
	for _, args := range []string{
		`{"command":"true","profile":"unrestricted"}`,
		`{"command":"true","Timeout":5}`,
		`{"command":"true","DANGEROUSLYDISABLESANDBOX":true}`,
		`{"command":"true","Command":"` + write + `"}`,
		`{"command":"true","command":"` + write + `"}`,
		`{"command":"true","timeout":"5"}`, `{"command":"true","timeout":1.5}`, `{"command":"true","timeout":600001}`, `{"command":"true","timeout":-1}`,
		`{"command":["true"]}`, `{"command":null}`, `{"command":""}`, `{}`, `[]`, `{"command":"tr\u0000ue"}`, `{"command":"true","cwd":"/\u0000"}`,
		`{"command":"true","session_id":"../x"}`, `{"command":"true","env":{"a":1}}`,
	} {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: json.RawMessage(args)})
		if err == nil && !res.IsError {
			t.Errorf("%s: not refused: %v", args, res.StructuredContent)
		}
	}
	if r := ok(t, cs, "bash", object{"command": write}); r["exit_code"] == 0.0 {
		t.Errorf("a file outside was written: %v", r)
	}
	if b, err := os.ReadFile(canary); err != nil || string(b) != "untouched" {
		t.Errorf("canary %q, %v", b, err)
	}
	// The operator's limit holds where a call asks for more.
	if r := ok(t, cs, "bash", object{"command": "sleep 60", "timeout": 600000}); r["reason"] != "timeout" || r["timeout_ms"] != 700.0 {
		t.Errorf("time limit: %v", r)
	}
	if r := ok(t, cs, "bash", object{"command": "echo fine"}); r["stdout"] != "fine\n" {
		t.Errorf("the neighbour: %v", r)
	}
}

func TestExecute(t *testing.T) {
	cs, _ := connect(t)
	r := ok(t, cs, "execute_command", object{"command": "echo a b | sort"})
	if res, _ := r["result"].(object); r["allowed"] != true || res["stdout"] != "a b\n" {
		t.Errorf("allowed: %v", r)
	}
	r = ok(t, cs, "execute_command", object{"argv": []string{"echo", "$HOME", "; id"}})
	if res, _ := r["result"].(object); res["stdout"] != "$HOME ; id\n" {
		t.Errorf("argv: %v", r)
	}
	refused(t, cs, "execute_command", object{"command": "ls | sudo tee x"}, "sudo")
	refused(t, cs, "execute_command", object{"argv": []string{"sudo", "ls"}}, "sudo")
	refused(t, cs, "execute_command", object{}, "either")
	refused(t, cs, "execute_command", object{"command": "ls", "argv": []string{"ls"}}, "either")

	if r := ok(t, cs, "shell_execute", object{"script": "echo $2; cd /usr", "shell": "sh", "args": []string{"x", "y z"}}); r["stdout"] != "y z\n" || r["cwd"] == "/usr" {
		t.Errorf("shell: %v", r)
	}
	if r := ok(t, cs, "python_execute", object{"code": "import os\nx = 6\nprint('hi')\nx * 7"}); r["stdout"] != "hi\n" || r["value"] != "42" || r["exit_code"] != 0.0 {
		t.Errorf("python: %v", r)
	}
	r = ok(t, cs, "python_execute", object{"code": "def f():\n    raise ValueError('no')\nf()"})
	if e := fmt.Sprint(r["stderr"]); r["exit_code"] != 1.0 || !strings.Contains(e, `File "<code>", line 2, in f`) || strings.Contains(e, "<string>") {
		t.Errorf("python: %v", r)
	}
	if r := ok(t, cs, "python_execute", object{"code": "if"}); r["exit_code"] != 1.0 || !strings.Contains(fmt.Sprint(r["stderr"]), "SyntaxError") {
		t.Errorf("python: %v", r)
	}
}

func TestFiles(t *testing.T) {
	cs, ws := connect(t)
	ok(t, cs, "sandbox_fs_write", object{"path": "a.txt", "content": "grüße\n"})
	if b, err := os.ReadFile(ws + "/a.txt"); err != nil || string(b) != "grüße\n" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.Chmod(ws+"/a.txt", 0o755); err != nil {
		t.Fatal(err)
	}
	ok(t, cs, "sandbox_fs_write", object{"path": ws + "/a.txt", "content": "AP8=", "encoding": "base64"})
	if r := ok(t, cs, "sandbox_fs_read", object{"path": "a.txt"}); r["content"] != "AP8=" || r["encoding"] != "base64" {
		t.Errorf("%v", r)
	}
	r := ok(t, cs, "sandbox_fs_list", object{})
	if list, _ := r["entries"].([]any); len(list) != 1 || list[0].(object)["mode"] != "0755" || list[0].(object)["name"] != "a.txt" {
		t.Errorf("%v", r)
	}
	ok(t, cs, "sandbox_fs_write", object{"path": "b", "content": "aüb"})
	r = ok(t, cs, "sandbox_fs_read", object{"path": "b", "length": 4, "offset": 0})
	if r["content"] != "aüb" || r["more"] != false {
		t.Errorf("%v", r)
	}
	for _, path := range []string{"", "x\x00y"} {
		refused(t, cs, "sandbox_fs_read", object{"path": path}, "path")
		refused(t, cs, "sandbox_fs_write", object{"path": path, "content": ""}, "path")
	}
	refused(t, cs, "sandbox_fs_write", object{"path": "b/", "content": ""}, "directory")
	ok(t, cs, "sandbox_fs_write", object{"path": "new/below/c", "content": "c"})
	if b, err := os.ReadFile(ws + "/new/below/c"); err != nil || string(b) != "c" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.MkdirAll(ws+"/.git/hooks", 0o755); err != nil { // not everywhere can a command make one
		t.Fatal(err)
	}
	for path, rule := range map[string]string{".git/hooks/pre-commit": ".git/hooks", "new/.vscode/tasks.json": ".vscode", ".mcp.json": ".mcp.json"} {
		refused(t, cs, "sandbox_fs_write", object{"path": path, "content": "x"}, "protected path "+rule+"; only the operator can allow it: --unprotect "+rule)
	}
	// What a link leads to outside is not there.
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(canary, ws+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"link", canary, strings.Repeat("../", 20) + canary} {
		refused(t, cs, "sandbox_fs_read", object{"path": path}, "")
	}
	call(t, cs, "sandbox_fs_write", object{"path": "link", "content": "x"})
	if b, err := os.ReadFile(canary); err != nil || string(b) != "secret" {
		t.Errorf("canary %q, %v", b, err)
	}
}

// TestOutput: a client that reads the structured result, and one that reads the text,
// have the same part of much output: its beginning and its end. Other bytes than text
// can be had in base64.
func TestOutput(t *testing.T) {
	cs, _ := connect(t)
	for tool, args := range map[string]object{
		"bash":          {"command": "seq 1 100000; seq 1 100000 >&2"},
		"shell_execute": {"script": "seq 1 100000; seq 1 100000 >&2"},
	} {
		r, words, _ := call(t, cs, tool, args)
		for _, name := range []string{"stdout", "stderr"} {
			s, _ := r[name].(string)
			if len(s) > 30_100 || !strings.HasPrefix(s, "1\n2\n") || !strings.HasSuffix(s, "\n100000\n") || r[name+"_truncated"] != true {
				t.Errorf("%s: %s has %d bytes: %.20q … truncated %v", tool, name, len(s), s, r[name+"_truncated"])
			}
			if !strings.Contains(words, s) || !strings.Contains(words, name+" has 588895 bytes, of which the middle is left out") {
				t.Errorf("%s: the text is another than the structured %s: %.500s", tool, name, words)
			}
		}
	}
	const print = "printf '\\377\\0\\1'; head -c 100000 /dev/zero"
	r := ok(t, cs, "bash", object{"command": print, "output_encoding": "base64"})
	b, err := base64.StdEncoding.DecodeString(r["stdout"].(string))
	if err != nil || len(b) != 22500 || !bytes.HasPrefix(b, []byte{0xff, 0, 1, 0}) || r["encoding"] != "base64" || r["stdout_truncated"] != true {
		t.Errorf("%v, %d bytes of %.20q: %v", err, len(b), b, r["encoding"])
	}
	id := ok(t, cs, "bash", object{"command": print, "run_in_background": true})["id"]
	var all []byte
	for offset := 0.0; ; {
		r := ok(t, cs, "bash_output", object{"id": id, "stdout_offset": offset, "output_encoding": "base64", "wait": 20000})
		b, err := base64.StdEncoding.DecodeString(r["stdout"].(string))
		if err != nil {
			t.Fatal(err)
		}
		all, offset = append(all, b...), r["next_stdout_offset"].(float64)
		if r["running"] == false && r["more"] == false {
			break
		}
	}
	if len(all) != 100_003 || !bytes.HasPrefix(all, []byte{0xff, 0, 1, 0}) {
		t.Errorf("pages make %d bytes", len(all))
	}
	refused(t, cs, "bash", object{"command": "true", "output_encoding": "hex"}, "")
}

func TestSessions(t *testing.T) {
	cs, _ := connect(t, "--max-sessions", "2")
	one := ok(t, cs, "session_create", object{})["session_id"]
	ok(t, cs, "bash", object{"command": "echo one > /tmp/x; cd /usr", "session_id": one})
	if r := ok(t, cs, "bash", object{"command": "cat /tmp/x; pwd"}); strings.Contains(r["stdout"].(string), "one") || strings.Contains(r["stdout"].(string), "/usr\n") {
		t.Errorf("two sessions share: %v", r)
	}
	if r := ok(t, cs, "bash", object{"command": "cat /tmp/x; pwd", "session_id": one}); r["stdout"] != "one\n/usr\n" {
		t.Errorf("a session forgot: %v", r)
	}
	if list := ok(t, cs, "session_list", object{})["sessions"].([]any); len(list) != 2 {
		t.Errorf("%v", list)
	}
	refused(t, cs, "session_create", object{}, "no more are allowed")
	ok(t, cs, "session_destroy", object{"session_id": one})
	refused(t, cs, "bash", object{"command": "true", "session_id": one}, "no session")
	refused(t, cs, "session_destroy", object{"session_id": one}, "no session")
}

func TestBackground(t *testing.T) {
	cs, _ := connect(t)
	id := ok(t, cs, "bash", object{"command": "echo e >&2; printf 'aü%.0s' 1 2 3; read x < <(sleep 300)", "run_in_background": true})["id"]
	var got string
	offset := 0.0
	for len(got) < 9 {
		r := ok(t, cs, "bash_output", object{"id": id, "stdout_offset": offset, "limit": 4, "wait": 20000})
		got += r["stdout"].(string)
		offset = r["next_stdout_offset"].(float64)
		if r["running"] != true {
			t.Fatalf("ended: %v", r)
		}
	}
	if got != "aüaüaü" {
		t.Errorf("pages make %q", got)
	}
	r := ok(t, cs, "bash_kill", object{"id": id})
	if r["running"] != false || r["signal"] != "SIGKILL" || r["stderr"] != "e\n" {
		t.Errorf("killed: %v", r)
	}
	if r := ok(t, cs, "bash", object{"command": "grep -l sleep /proc/[0-9]*/comm"}); r["stdout"] != "" {
		t.Errorf("left: %v", r)
	}
	refused(t, cs, "bash_output", object{"id": "b99"}, "no background command")
	id = ok(t, cs, "bash", object{"command": "exit 4", "run_in_background": true})["id"]
	if r := ok(t, cs, "bash_output", object{"id": id, "wait": 20000}); r["running"] != false || r["exit_code"] != 4.0 {
		t.Errorf("ended: %v", r)
	}
}

// TestConcurrent has 1,000 calls on their way at a time, in three sessions, and looks
// for anything of one in another's result (A08).
func TestConcurrent(t *testing.T) {
	cs, _ := connect(t, "--pids", "4096", "--memory", "4g")
	sessions := []any{nil}
	for range 2 {
		id := ok(t, cs, "session_create", object{})["session_id"]
		sessions = append(sessions, id)
	}
	for i, id := range sessions {
		args := object{"command": fmt.Sprintf("echo %d > /tmp/which", i)}
		if id != nil {
			args["session_id"] = id
		}
		ok(t, cs, "bash", args)
	}
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() {
			in := i % len(sessions)
			// Most end at once; some stay, and all of those are there together.
			script := fmt.Sprintf("read s < /tmp/which; echo %d in $s; echo %d >&2; exit %d", i, i, i%200)
			if i%10 == 0 {
				script = "sleep 1; " + script
			}
			args := object{"command": script}
			if sessions[in] != nil {
				args["session_id"] = sessions[in]
			}
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: args})
			if err != nil {
				t.Error(err)
				return
			}
			r, _ := res.StructuredContent.(object)
			if r["stdout"] != fmt.Sprintf("%d in %d\n", i, in) || r["stderr"] != fmt.Sprintf("%d\n", i) || r["exit_code"] != float64(i%200) || sessions[in] != nil && r["session_id"] != sessions[in] {
				t.Errorf("call %d: %v %s", i, r, words(res))
			}
		})
	}
	all.Wait()
	if list := ok(t, cs, "session_list", object{})["sessions"].([]any); len(list) != 3 {
		t.Errorf("the connection has %d sessions", len(list))
	}
}

// beat is a script that writes to a file of the workspace as long as a process of
// it lives, in spite of signals that can be caught.
const beat = `bash -c 'trap "" TERM HUP INT; while :; do date +%N > beat; sleep 0.02; done' & wait`

// alive reports whether the heart beats, once it has.
func alive(t *testing.T, ws string) bool {
	t.Helper()
	read := func() string { b, _ := os.ReadFile(ws + "/beat"); return string(b) }
	before := read()
	for range 50 {
		time.Sleep(20 * time.Millisecond)
		if now := read(); now != before && now != "" && before != "" {
			return true
		}
	}
	return false
}

func waitBeat(t *testing.T, ws string) {
	t.Helper()
	for range 1000 {
		if _, err := os.Stat(ws + "/beat"); err == nil && alive(t, ws) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the command did not begin")
}

// TestUnwatched: a session tells what nothing watches beside its memory limit.
func TestUnwatched(t *testing.T) {
	cs, _ := connect(t, "--seccomp", "default")
	ok(t, cs, "bash", object{"command": "true"})
	s := ok(t, cs, "session_list", object{})["sessions"].([]any)[0].(object)
	want := "[locks]"
	if !strings.Contains(fmt.Sprint(s["layers"]), "cgroup.memory") {
		want = "<nil>"
	}
	if got := fmt.Sprint(s["unwatched"]); got != want {
		t.Errorf("unwatched: %s, want %s", got, want)
	}
}

// TestCancel: what a cancelled call started is gone, and the session is not (A10).
func TestCancel(t *testing.T) {
	cs, ws := connect(t, "--kill-after", "100ms")
	ok(t, cs, "bash", object{"command": "echo kept > /tmp/kept"})
	script := "setsid " + beat
	if list := ok(t, cs, "session_list", object{})["sessions"].([]any); strings.Contains(fmt.Sprint(list[0].(object)["degraded"]), "cgroup") {
		// As documented: what left the process group, or ignores SIGTERM, ends with
		// the session.
		script = strings.Replace(beat, `trap "" TERM HUP INT;`, "", 1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "bash", Arguments: object{"command": script}})
		ended <- err
	}()
	waitBeat(t, ws)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call: %v", err)
	}
	for i := 0; alive(t, ws); i++ {
		if i == 20 {
			t.Fatal("the command outlives its call")
		}
	}
	if r := ok(t, cs, "bash", object{"command": "cat /tmp/kept"}); r["stdout"] != "kept\n" {
		t.Errorf("the session: %v", r)
	}
}

// TestDisconnect: nothing outlives the client's end, or the server's (A10), also if the
// client has long stopped reading.
func TestDisconnect(t *testing.T) {
	for _, how := range []string{"eof", "kill", "unread, eof", "unread, TERM"} {
		t.Run(how, func(t *testing.T) {
			cmd, ws := program(t)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, `"serverInfo"`) {
				t.Fatalf("%q, %v", line, err)
			}
			fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			b, _ := json.Marshal("setsid " + beat)
			fmt.Fprintf(in, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bash","arguments":{"command":%s}}}`+"\n", b)
			waitBeat(t, ws)
			if strings.HasPrefix(how, "unread") {
				for i := range 2000 { // more than a pipe holds, of calls and of what is none
					fmt.Fprintf(in, `{"jsonrpc":"2.0","id":"%d","method":"tools/list"}`+"\nx\n", i)
				}
			} else {
				go io.Copy(io.Discard, out)
			}
			switch how {
			case "kill":
				cmd.Process.Signal(syscall.SIGKILL)
			case "unread, TERM":
				cmd.Process.Signal(syscall.SIGTERM)
			default:
				in.Close()
			}
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				if how != "kill" && err != nil {
					t.Errorf("the server: %v", err)
				}
			case <-time.After(2 * time.Minute): // an emulated processor is slow
				cmd.Process.Kill()
				t.Fatal("the server does not end")
			}
			for i := 0; alive(t, ws); i++ {
				if i == 20 {
					t.Fatal("the command outlives the connection")
				}
			}
		})
	}
}

// TestCheck runs sbxrun command check.
func TestCheck(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(t.TempDir(), "rules.json")
	if err := os.WriteFile(rules, []byte(`{"custom_list":["frob"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"allowed":["frob"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"make test | tail -5"}, 0, "allowed\n"},
		{[]string{"ls; sudo reboot"}, 1, "sudo"},
		{[]string{"--json", "sudo ls"}, 1, `"allowed": false`},
		{[]string{"--command-policy", rules, "frob x"}, 0, "allowed\n"},
		{[]string{"--command-policy", rules, "make"}, 1, "make"},
		{[]string{"--command-policy", broken, "make"}, 125, ""},
		{nil, 125, ""},
	} {
		cmd := exec.Command(self, append([]string{"command", "check"}, c.args...)...)
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: exit code %d (%v), says %q; want %d and %q", c.args, code, err, out, c.code, c.want)
		}
	}
}
