//go:build linux

package agents

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// geminiKey are settings of a user who signs in by a key.
const geminiKey = `{"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"enableAutoUpdate": false}, "privacy": {"usageStatisticsEnabled": false}}`

// geminiEnv has Gemini CLI ask a model of ours, in a project that its user trusts.
func geminiEnv(address string) []string {
	return []string{"GOOGLE_GEMINI_BASE_URL=" + address, "GEMINI_API_KEY=" + key, "GEMINI_CLI_TRUST_WORKSPACE=true", "GEMINI_SANDBOX=false"}
}

// gemini runs Gemini CLI.
func (w *world) gemini(m *model.Server, calls int) []string {
	w.Helper()
	return w.converse(m, calls, w.command(geminiEnv(w.serve(m)), client(w.T, gemini, "gemini"), "-p", "go", "--model", "gemini-2.5-flash", "--approval-mode", "yolo"))
}

func geminiBash(command string, more ...any) model.Call {
	c := bash(command, more...)
	c.Tool = "mcp_sandbox_bash"
	return c
}

// TestGemini: the real Gemini CLI, joined by sbxrun integrate, has the tools of
// sbxrun mcp in the place of its own, and they work as ever, inside. Without it its
// own tool is outside.
func TestGemini(t *testing.T) {
	each(t, func(w *world) {
		w.file(w.home+"/.gemini/settings.json", geminiKey, 0o644)
		own := model.Call{Tool: "run_shell_command", Input: map[string]any{"command": "cat " + w.canary}}
		m := model.New(own)
		r := w.gemini(m, 1)
		w.expect("without sbxrun", r[0], "canary sings")

		if out, ok := w.cli(nil, "integrate", "gemini", "--allow-degraded", "cgroup"); !ok {
			w.Fatal(out)
		}
		calls := []model.Call{
			own,
			geminiBash("cd sub && pwd && echo $((40+2))"),
			geminiBash("pwd; exit 3"),
			geminiBash(w.probe()),
			geminiBash("printf '%s|' \"it's\" '$HOME' 'a\"b' $'c\\nd'; echo err >&2"),
			geminiBash("echo begun; sleep 987 # "+w.mark, "timeout", 1500),
			geminiBash("touch breach", "dangerouslyDisableSandbox", true),
			geminiBash("seq 1 20000"),
		}
		m = model.New(calls...)
		r = w.gemini(m, len(calls))
		if tools := m.Tools(); slices.Contains(tools, "run_shell_command") || !slices.Contains(tools, "mcp_sandbox_bash") {
			w.Errorf("the tools are %q", tools)
		}
		w.expect("its own tool", r[0], "not found", "!canary sings")
		w.expect("cd", r[1], w.project+"/sub", "42")
		w.expect("where it led, and a code", r[2], w.project+"/sub", "exit code 3")
		w.inside(r[3], "aicode")
		w.expect("quotes", r[4], "it's|$HOME|a\"b|c\nd|", "err")
		w.expect("a time limit", r[5], "begun", "time limit")
		w.expect("a request to weaken", r[6], "dangerouslyDisableSandbox is refused")
		w.expect("much output", r[7], "\n20000\n", "left out")
		if _, err := os.Stat(w.project + "/breach"); err == nil {
			w.Error("what was refused ran")
		}

		// A project that says otherwise, which its user trusts.
		w.file(w.project+"/.gemini/settings.json", `{"tools": {"exclude": [], "allowed": ["run_shell_command"]}, "excludeTools": []}`, 0o644)
		m = model.New(own)
		if r = w.gemini(m, 1); strings.Contains(r[0], "canary sings") {
			w.Errorf("a project has its own tool back: %s", r[0])
		}
	})
}
