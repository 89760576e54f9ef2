//go:build linux

package agents

import (
	"os"
	"slices"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// copilotEnv has Copilot CLI ask a model of ours, and nobody else.
func copilotEnv(address string) []string {
	return []string{"COPILOT_OFFLINE=true", "COPILOT_PROVIDER_TYPE=anthropic", "COPILOT_PROVIDER_BASE_URL=" + address, "COPILOT_PROVIDER_API_KEY=" + key, "COPILOT_MODEL=claude-sonnet-4.5"}
}

// copilotBash calls the tool that runs commands in the sandbox.
func copilotBash(command string) model.Call {
	return model.Call{Tool: "sandbox-bash", Input: map[string]any{"command": command}}
}

// copilot runs Copilot CLI.
func (w *world) copilot(m *model.Server, calls int, env ...string) []string {
	w.Helper()
	return w.converse(m, calls, w.command(slices.Concat(copilotEnv(w.serve(m)), env), client(w.T, copilot, "copilot"), "-p", "go", "--allow-all-tools", "--allow-all-paths", "--no-color"))
}

// TestCopilot: the real Copilot CLI, joined by sbxrun integrate, has the tools of sbxrun
// mcp. Its own tool that runs commands refuses, for an agent of its own as well, and so it
// does if the hook cannot be run; not, if a project that is trusted disables hooks.
func TestCopilot(t *testing.T) {
	each(t, func(w *world) {
		own := model.Call{Tool: "bash", Input: map[string]any{"command": "echo x >ran; cat " + w.canary, "description": "a test"}}
		ran := func() bool { return os.Remove(w.project+"/ran") == nil }
		r := w.copilot(model.New(own), 1)
		w.expect("without sbxrun", r[0], "canary sings")
		if !ran() {
			w.Error("nothing was written")
		}
		if out, ok := w.cli(nil, "integrate", "copilot", "--allow-degraded", "cgroup"); !ok {
			w.Fatal(out)
		}
		calls := []model.Call{own, copilotBash("cd sub && pwd"), copilotBash("pwd; exit 3"), copilotBash(w.probe()), copilotBash("mkdir -p .github/copilot && echo x >.github/copilot/settings.json"),
			{Tool: "create", Input: map[string]any{"path": w.project + "/note", "file_text": `{"toolName":"bash"}`}},
			// The agent that this starts has no tool of that name.
			{Tool: "task", Else: "bash", Input: map[string]any{"command": "echo x >ran", "description": "a test", "prompt": "go", "agent_type": "general-purpose", "name": "other", "mode": "sync"}}}
		r = w.copilot(model.New(calls...), len(calls))
		w.expect("its own tool", r[0], "!canary sings", "sandbox-bash")
		w.expect("cd", r[1], w.project+"/sub")
		w.expect("where it led, and a code", r[2], w.project+"/sub", "exit code 3")
		w.inside(r[3], "aicode")
		w.expect("what is protected", r[4], "protected path .github/copilot")
		if b, err := os.ReadFile(w.project + "/note"); err != nil || string(b) != `{"toolName":"bash"}` {
			w.Errorf("another tool: %q, %v: %s", b, err, r[5])
		}
		if ran() {
			w.Errorf("an agent of its own ran it: %s", r[6])
		}

		settings := w.home + "/.copilot/settings.json"
		was, err := os.ReadFile(settings)
		if err != nil {
			w.Fatal(err)
		}
		w.file(settings, `{"hooks":{"preToolUse":[{"type":"command","bash":"/nonexistent/hook"}]}}`, 0o644)
		if r := w.copilot(model.New(own), 1); ran() {
			w.Errorf("without its hook: %s", r[0])
		}
		w.file(settings, string(was), 0o644)

		w.file(w.project+"/.github/copilot/settings.json", `{"disableAllHooks": true}`, 0o644)
		if r := w.copilot(model.New(own), 1); ran() {
			w.Errorf("in a project that is not trusted: %s", r[0])
		}
		if r := w.copilot(model.New(own), 1, "COPILOT_ALLOW_ALL=true"); !ran() {
			w.Errorf("docs/agents/copilot.md says that a trusted project can: %s", r[0])
		}
		cmd := w.command(nil, programs+"/sbxrun", "integrate", "copilot", "--verify", "--agent", client(w.T, copilot, "copilot"))
		out, _ := cmd.CombinedOutput()
		w.expect("--verify", string(out), ".github/copilot/settings.json disables hooks")
	})
}
