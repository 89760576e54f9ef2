//go:build linux

package agents

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// claude is a command that runs Claude Code with a model of ours.
func (w *world) claude(m *model.Server, calls int, env []string, args ...string) []string {
	w.Helper()
	env = append([]string{
		"ANTHROPIC_BASE_URL=" + w.serve(m), "ANTHROPIC_API_KEY=" + key,
		// Nothing that leaves this machine, and none of its own model's choices.
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "ENABLE_TOOL_SEARCH=false",
	}, env...)
	return w.converse(m, calls, w.command(env, append([]string{client(w.T, claudeCode, "claude"), "-p", "go"}, args...)...))
}

func bash(command string, more ...any) model.Call {
	in := map[string]any{"command": command, "description": "a test"}
	for i := 0; i < len(more); i += 2 {
		in[more[i].(string)] = more[i+1]
	}
	return model.Call{Tool: "Bash", Input: in}
}

var savedTo = regexp.MustCompile(`Full output saved to: (\S+)`)

// TestClaudeCode: the Bash tool of the real Claude Code works as ever, inside.
func TestClaudeCode(t *testing.T) {
	ways := []struct {
		name string
		env  []string
	}{
		{"prefix", []string{"CLAUDE_CODE_SHELL_PREFIX=" + programs + "/shell/bash -c"}},
		{"prefix in a session", []string{"CLAUDE_CODE_SHELL_PREFIX=" + programs + "/shell/bash -c", "SBXRUN_SHELL_SESSION=auto"}},
		{"shell", []string{"CLAUDE_CODE_SHELL=" + programs + "/shell/bash"}},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			each(t, func(w *world) { w.everyday(way.env, way.name != "shell") })
		})
	}
}

// everyday is what a working day with the Bash tool asks of a shell.
func (w *world) everyday(env []string, snapshot bool) {
	calls := []model.Call{
		bash("cd sub && pwd && echo $((40+2))"),
		bash("pwd; exit 3"),
		bash(w.probe()),
		bash("cd /tmp; pwd"),
		bash("pwd; seq 1 20000"),
		bash("kill -9 $$"),
		bash("it's"),
		bash("printf '%s|' \"it's\" '$HOME' 'a\"b' $'c\\nd'; echo err >&2"),
		bash("type find | head -1; no-such-command-here"),
		bash("echo begun; sleep 3; echo over > slept-"+w.mark, "timeout", 1000),
		bash("sleep 1; echo over > behind-"+w.mark, "run_in_background", true),
		bash("sleep 6; echo waited"),
		bash("echo stays; sleep 987 # "+w.mark, "run_in_background", true),
	}
	m := model.New(calls...)
	r := w.claude(m, len(calls), env, "--allowedTools", "Bash")
	sub := w.project + "/sub"
	w.expect("cd", r[0], sub, "42")
	w.expect("where it led, and a code", r[1], sub, "Exit code 3")
	w.inside(r[2], "strict")
	w.expect("a directory of the sandbox's own", r[3], "/tmp", "does not start in /tmp")
	w.expect("where it is still", r[4], sub+"\n1\n2\n")
	w.muchOutput(r[4])
	w.expect("SIGKILL", r[5], "Exit code 137")
	w.expect("a syntax error", r[6], "Exit code 2", "unexpected EOF")
	w.expect("quotes", r[7], "it's|$HOME|a\"b|c\nd|", "err")
	if snapshot {
		w.expect("a function of the snapshot", r[8], "find is a function", "Exit code 127")
	} else {
		w.expect("no snapshot", r[8], "find is /usr/bin/find", "Exit code 127")
	}
	w.expect("a time limit", r[9], "begun", "moved to the background")
	w.expect("in the background", r[10], "running in background")
	w.expect("in the foreground", r[11], "waited")
	for _, name := range []string{"slept-", "behind-"} {
		if !within(20*time.Second, func() bool { b, _ := os.ReadFile(sub + "/" + name + w.mark); return string(b) == "over\n" }) {
			w.Errorf("what went on in the background did not come to its end: %s", name)
		}
	}
	// The agent has ended, and what it left running in the background with it.
	if !within(30*time.Second, func() bool { return len(w.processes()) == 0 }) {
		w.Errorf("left: %q", w.processes())
	}
}

// muchOutput checks that what is more than a model is shown was kept, to its end.
func (w *world) muchOutput(result string) {
	w.Helper()
	w.expect("much output", result, "Output too large")
	if to := savedTo.FindStringSubmatch(result); to == nil {
		w.Errorf("no file for much output: %s", result)
	} else if b, err := os.ReadFile(to[1]); err != nil || !strings.Contains(string(b), "\n20000\n") || len(b) < 100_000 {
		w.Errorf("%s: %v, %d bytes", to[1], err, len(b))
	}
}

func within(d time.Duration, ok func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return ok()
}

// TestClaudeCodeFailsClosed: without its sandbox, nothing runs.
func TestClaudeCodeFailsClosed(t *testing.T) {
	each(t, func(w *world) {
		for _, env := range [][]string{
			{"CLAUDE_CODE_SHELL_PREFIX=" + programs + "/shell/none -c"},
			{"CLAUDE_CODE_SHELL_PREFIX=" + programs + "/shell/bash -c", "SBXRUN_PROFILE=none"},
			{"CLAUDE_CODE_SHELL_PREFIX=" + programs + "/shell/bash -c", "SBXRUN_SHELL_WORKSPACE=/"},
		} {
			m := model.New(bash("echo $((40+2)) > " + w.project + "/ran"))
			r := w.claude(m, 1, env, "--allowedTools", "Bash")
			if _, err := os.Stat(w.project + "/ran"); err == nil || !strings.Contains(r[0], "Exit code 12") {
				w.Errorf("%v: it ran (%v): %s", env, err, r[0])
			}
		}
	})
}

// hooks are settings with sbxrun as the hook of the Bash tool.
func hooks(w *world, flags string) string {
	w.Helper()
	b, err := json.Marshal(map[string]any{"hooks": map[string]any{"PreToolUse": []any{map[string]any{
		"matcher": "Bash|Monitor|PowerShell", "hooks": []any{map[string]any{"type": "command", "command": programs + "/sbxrun hook claude-code " + flags}}}}}})
	if err != nil {
		w.Fatal(err)
	}
	return string(b)
}

// TestClaudeCodeRolledOut: who an operator's roll-out leaves out works as without
// sbxrun, and user, model and audit log are told.
func TestClaudeCodeRolledOut(t *testing.T) {
	each(t, func(w *world) {
		w.file(w.home+"/.config/sbxrun/config.yaml", "rollout:\n  enabled: false\naudit:\n  file: "+w.home+"/audit.jsonl\n", 0o644)
		const note = "NOT SANDBOXED: this runs on the host with all that its user can do, because rollout.enabled is false"
		calls := []model.Call{bash("cd sub; cat " + w.canary), bash("pwd; exit 3")}
		check := func(way string, r []string) {
			w.Helper()
			w.expect(way, r[0], "the canary sings")
			w.expect(way, r[1], w.project+"/sub", "Exit code 3")
		}
		r := w.claude(model.New(calls...), 2, []string{"CLAUDE_CODE_SHELL_PREFIX=" + programs + "/shell/bash -c"}, "--allowedTools", "Bash")
		check("shell", r)
		w.expect("shell", r[0], note)

		m := model.New(calls...)
		var mu sync.Mutex
		asked := ""
		listening := w.serve(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			mu.Lock()
			asked += string(body)
			mu.Unlock()
			req.Body = io.NopCloser(bytes.NewReader(body))
			m.ServeHTTP(rw, req)
		}))
		r = w.claude(m, 2, []string{"ANTHROPIC_BASE_URL=" + listening}, "--settings", hooks(w, "--decision allow"), "--allowedTools", "Bash")
		check("hook", r)
		mu.Lock()
		defer mu.Unlock()
		w.expect("what the model is told", asked, note)

		// Without sbxrun's word for it, Claude Code's own rules decide.
		r = w.claude(model.New(bash("touch asked")), 1, nil, "--settings", hooks(w, "--decision allow"))
		if _, err := os.Stat(w.project + "/asked"); err == nil {
			w.Errorf("it ran without being asked about: %q", r)
		}
		log, err := os.ReadFile(w.home + "/audit.jsonl")
		if err != nil {
			w.Fatal(err)
		}
		for _, want := range []string{`"source":"run"`, `"source":"hook"`, `"tool":"Bash"`, `"sandboxed":false,"unsandboxed_because":"rollout.enabled is false"`} {
			w.expect("the audit log", string(log), want)
		}
	})
}

// TestClaudeCodeUnsandboxed: where the operator allows it, a call of the hook's that
// asks for the host runs there, the one beside it does not, and it is told.
func TestClaudeCodeUnsandboxed(t *testing.T) {
	each(t, func(w *world) {
		w.file(w.home+"/.config/sbxrun/config.yaml", "agents:\n  unsandboxed: true\naudit:\n  file: "+w.home+"/audit.jsonl\n", 0o644)
		calls := []model.Call{bash("cat "+w.canary, "dangerouslyDisableSandbox", true), bash("echo \"[$(cat " + w.canary + ")]\"")}
		r := w.claude(model.New(calls...), 2, nil, "--settings", hooks(w, ""), "--allowedTools", "Bash")
		w.expect("who asked", r[0], "the canary sings")
		w.expect("who did not", r[1], "[]")
		log, err := os.ReadFile(w.home + "/audit.jsonl")
		if err != nil {
			w.Fatal(err)
		}
		w.expect("the audit log", string(log), `"source":"hook"`, `"sandboxed":false,"unsandboxed_because":"the call said dangerouslyDisableSandbox`)
	})
}

// TestClaudeCodeHook: the same by a hook that rewrites what the Bash tool is to run.
func TestClaudeCodeHook(t *testing.T) {
	each(t, func(w *world) {
		calls := []model.Call{
			bash("cd sub && pwd && echo $((40+2))"),
			bash("pwd; exit 3"),
			bash(w.probe()),
			bash("cd /tmp; pwd"),
			bash("pwd; seq 1 20000"),
			bash("printf '%s|' \"it's\" '$HOME' 'a\"b' $'c\\nd'; echo err >&2"),
			bash("true", "dangerouslyDisableSandbox", true),
			bash("sleep 1; echo over > behind-"+w.mark, "run_in_background", true),
			bash("sleep 3; cat behind-" + w.mark),
			bash("it's"),
			bash("mkdir .vscode"),
			bash("touch /usr/lib/new"),
		}
		m := model.New(calls...)
		r := w.claude(m, len(calls), nil, "--settings", hooks(w, ""), "--allowedTools", "Bash")
		sub := w.project + "/sub"
		w.expect("cd", r[0], sub, "42")
		w.expect("where it led, and a code", r[1], sub, "Exit code 3")
		w.inside(r[2], "strict")
		w.expect("a directory of the sandbox's own", r[3], "/tmp", "does not start in /tmp")
		w.expect("where it is still", r[4], sub+"\n1\n2\n")
		w.muchOutput(r[4])
		w.expect("quotes", r[5], "it's|$HOME|a\"b|c\nd|", "err")
		w.expect("a request to weaken", r[6], "dangerouslyDisableSandbox")
		w.expect("in the background", r[8], "over")
		w.expect("a syntax error", r[9], "Exit code 2", "unexpected EOF")
		w.expect("why a path is protected", r[10], "refused: ", "/sub/.vscode: protected path .vscode", "can allow it: --unprotect .vscode")
		w.expect("why a path is read-only", r[11], "refused: /usr/lib/new: read-only: /usr")

		// A hook that cannot say what to run has nothing run.
		m = model.New(bash("echo $((40+2)) > " + w.project + "/ran"))
		r = w.claude(m, 1, nil, "--settings", hooks(w, "--no-such-flag"), "--allowedTools", "Bash")
		w.expect("a broken hook", r[0], "unknown flag")
		if _, err := os.Stat(w.project + "/ran"); err == nil {
			w.Errorf("it ran: %s", r[0])
		}
	})
}

// TestClaudeCodeMCP: the same by the Model Context Protocol, with its own shell denied.
func TestClaudeCodeMCP(t *testing.T) {
	each(t, func(w *world) {
		config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"sandbox": map[string]any{"command": programs + "/sbxrun", "args": []string{"mcp", "-C", w.project}}}})
		if err != nil {
			w.Fatal(err)
		}
		call := func(command string, more ...any) model.Call {
			c := bash(command, more...)
			c.Tool = "mcp__sandbox__bash"
			return c
		}
		calls := []model.Call{
			bash("echo breach > " + w.project + "/ran"),
			call("cd sub && pwd && echo $((40+2))"),
			call("pwd; exit 3"),
			call(w.probe()),
			call("cd /tmp; pwd"),
			call("pwd; seq 1 20000"),
			call("sleep 100", "timeout", 1000),
			call("sleep 1; echo over > /tmp/behind", "run_in_background", true),
			call("sleep 3; cat /tmp/behind"),
			call("true", "dangerouslyDisableSandbox", true),
			call("mkdir " + w.project + "/.vscode"),
			call("touch /usr/lib/new"),
		}
		m := model.New(calls...)
		r := w.claude(m, len(calls), nil, "--mcp-config", string(config), "--strict-mcp-config", "--allowedTools", "mcp__sandbox__bash", "--disallowedTools", "Bash")
		if _, err := os.Stat(w.project + "/ran"); err == nil {
			w.Errorf("its own shell ran: %s", r[0])
		}
		w.expect("cd", r[1], w.project+"/sub", "42")
		w.expect("where it led, and a code", r[2], w.project+"/sub", "3")
		w.inside(r[3], "strict")
		w.expect("a directory of the sandbox's own", r[4], "/tmp")
		w.expect("much output: its beginning and end, as JSON", r[5], "\\n1\\n2\\n", "\\n20000\\n\"", "the middle is left out", "!\\n10000\\n")
		w.expect("a time limit", r[6], "timeout")
		w.expect("in the background", r[8], "over")
		w.expect("a request to weaken", r[9], "dangerouslyDisableSandbox")
		w.expect("why a path is protected", r[10], `"rule":"protected path .vscode"`, `"grant":"--unprotect .vscode"`, w.project+"/.vscode")
		w.expect("why a path is read-only", r[11], `"target":"/usr/lib/new"`, `"rule":"read-only: /usr"`)
	})
}

// TestControl is what the others are about: without sbxrun, the same agents' same
// command reads what lies outside, writes there, and has the key.
func TestControl(t *testing.T) {
	each(t, func(w *world) {
		probe := "cat " + w.canary + "; echo breach > " + w.dir + "/outside/breach; env"
		breach := func(what, result string) {
			w.expect(what, result, "canary sings", key)
			if os.Remove(w.dir+"/outside/breach") != nil {
				w.Errorf("%s: nothing was written: %s", what, result)
			}
		}
		breach(claudeCode, w.claude(model.New(bash(probe)), 1, nil, "--allowedTools", "Bash")[0])
		breach(codex, w.codex(model.New(execCommand(probe)), 1, "")[0])
	})
}
