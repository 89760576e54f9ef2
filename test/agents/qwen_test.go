//go:build linux

package agents

import (
	"slices"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// qwenFlags have Qwen Code ask a model of ours, and nobody else.
var qwenFlags = []string{"--auth-type", "anthropic", "--model", "claude-sonnet-4-5", "--approval-mode", "yolo"}

// qwen runs Qwen Code.
func (w *world) qwen(m *model.Server, calls int) []string {
	w.Helper()
	env := []string{"ANTHROPIC_BASE_URL=" + w.serve(m), "ANTHROPIC_API_KEY=" + key, "QWEN_SANDBOX=false"}
	return w.converse(m, calls, w.command(env, slices.Concat([]string{client(w.T, qwen, "qwen")}, qwenFlags, []string{"go"})...))
}

// TestQwen: the real Qwen Code, joined by sbxrun integrate, has the tools of sbxrun mcp in
// the place of its own two that run commands, inside, also where a project says otherwise,
// and its model is told why something was refused.
func TestQwen(t *testing.T) {
	each(t, func(w *world) {
		own := model.Call{Tool: "run_shell_command", Input: map[string]any{"command": "cat " + w.canary, "is_background": false}}
		monitor := model.Call{Tool: "tool_search", Input: map[string]any{"query": "select:monitor"}}
		m := model.New(own, monitor)
		r := w.qwen(m, 2)
		w.expect("without sbxrun", r[0], "canary sings")
		w.expect("monitor, without sbxrun", r[1], `"name":"monitor"`)
		if out, ok := w.cli(nil, "integrate", "qwen", "--allow-degraded", "cgroup"); !ok {
			w.Fatal(out)
		}
		bash := func(command string) model.Call {
			return model.Call{Tool: "mcp__sandbox__bash", Input: map[string]any{"command": command}}
		}
		w.file(w.project+"/.qwen/settings.json", `{"tools": {"exclude": []}, "permissions": {"allow": ["Bash", "Monitor"], "deny": []}}`, 0o644)
		calls := []model.Call{own, monitor, bash("cd sub && pwd"), bash("pwd; exit 3"), bash(w.probe()), bash("echo x >" + w.project + "/.qwen/settings.json")}
		m = model.New(calls...)
		r = w.qwen(m, len(calls))
		w.expect("its own tool", r[0], "!canary sings")
		w.expect("monitor", r[1], `!"name":"monitor"`)
		w.expect("cd", r[2], w.project+"/sub")
		w.expect("where it led, and a code", r[3], w.project+"/sub", "exit code 3")
		w.inside(r[4], "aicode")
		w.expect("what is protected", r[5], "protected path .qwen")
	})
}
