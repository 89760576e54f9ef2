//go:build linux

package agents

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// A whole is an agent that sbxrun agent runs, with what its test has to know of it.
type whole struct {
	title string
	state string // its first directory, where sbxrun keeps it
	host  string // and below the user's home

	env   func(address string) []string // of the caller
	flags func(address string) []string // of sbxrun agent
	args  func(address string) []string // the agent's own
	again func(address string) []string // those that go on with the last conversation
	call  func(command string) model.Call

	login string // a file of its own, in its first directory, with the choice of a user who has logged in
	long  bool   // it takes long to start
}

func none(string) []string { return nil }

// wholes are the agents, with models of ours.
var wholes = map[string]*whole{
	"claude": {
		title: claudeCode, state: "claude", host: ".claude",
		env: func(address string) []string {
			return []string{"ANTHROPIC_BASE_URL=" + address, "ANTHROPIC_API_KEY=" + key}
		},
		flags: none,
		args:  func(string) []string { return []string{"-p", "go", "--allowedTools", "Bash"} },
		again: func(string) []string { return []string{"-p", "go", "--allowedTools", "Bash", "--continue"} },
		call:  func(c string) model.Call { return bash(c) },
	},
	"codex": {
		title: codex, state: "codex", host: ".codex",
		env:   func(string) []string { return []string{"OPENAI_API_KEY=" + key} },
		flags: func(address string) []string { return []string{"--allow-host", strings.TrimPrefix(address, "http://")} },
		args: func(address string) []string {
			return append(codexModel(address), "exec", "--skip-git-repo-check", "go")
		},
		again: func(address string) []string {
			return append(codexModel(address), "exec", "--skip-git-repo-check", "resume", "--last", "go")
		},
		call: func(c string) model.Call { return execCommand(c) },
	},
	"gemini": {
		title: gemini, state: "gemini", host: ".gemini",
		env: func(address string) []string {
			return []string{"GOOGLE_GEMINI_BASE_URL=" + address, "GEMINI_API_KEY=" + key}
		},
		flags: func(string) []string { return []string{"--env", "GEMINI_CLI_TRUST_WORKSPACE=true"} },
		args: func(string) []string {
			return []string{"-p", "go", "--model", "gemini-2.5-flash", "--approval-mode", "yolo"}
		},
		again: func(string) []string {
			return []string{"--resume", "latest", "-p", "go", "--model", "gemini-2.5-flash", "--approval-mode", "yolo"}
		},
		call: func(c string) model.Call {
			return model.Call{Tool: "run_shell_command", Input: map[string]any{"command": c}}
		},
		login: "settings.json",
	},
	"opencode": {
		title: opencode, state: "config-opencode", host: ".config/opencode",
		env: func(string) []string { return []string{"ANTHROPIC_API_KEY=" + key} },
		flags: func(address string) []string {
			config, _ := json.Marshal(map[string]any{"share": "disabled", "model": "anthropic/claude-sonnet-4-5", "small_model": "anthropic/claude-sonnet-4-5",
				"permission": map[string]any{"*": "allow", "external_directory": "allow"},
				"provider":   map[string]any{"anthropic": map[string]any{"options": map[string]any{"baseURL": address + "/v1"}}}})
			return []string{"--allow-host", strings.TrimPrefix(address, "http://"), "--env", "OPENCODE_CONFIG_CONTENT=" + string(config), "--env", "OPENCODE_DISABLE_MODELS_FETCH=1"}
		},
		args:  func(string) []string { return []string{"run", "go"} },
		again: func(string) []string { return []string{"run", "--continue", "go"} },
		call:  func(c string) model.Call { return opencodeBash(c) },
		long:  true,
	},
}

// codexModel has Codex ask a model of ours.
func codexModel(address string) []string {
	return []string{"-c", `model="test"`, "-c", `model_provider="ours"`, "-c", `model_providers.ours={name="ours", base_url="` + address + `/v1", wire_api="responses", env_key="OPENAI_API_KEY"}`}
}

// whole runs an agent as sbxrun agent does.
func (w *world) whole(name string, m *model.Server, calls int, again bool, flags ...string) []string {
	w.Helper()
	a, address := wholes[name], w.serve(m)
	args := append([]string{programs + "/sbxrun", "agent", name, "--agent", client(w.T, a.title, name)}, a.flags(address)...)
	args = append(append(args, flags...), "--")
	if again {
		args = append(args, a.again(address)...)
	} else {
		args = append(args, a.args(address)...)
	}
	return w.converse(m, calls, w.command(append(a.env(address), "SECRET_TOKEN=mine-alone"), args...))
}

// kept is where sbxrun keeps an agent's first directory.
func (w *world) kept(name string) string {
	return w.home + "/.local/state/sbxrun/agents/" + name + "/default/" + wholes[name].state
}

// TestWhole: an agent runs in a sandbox as a whole, its work is in the workspace, nothing
// else of the host is read or written, and what it keeps it finds again.
func TestWhole(t *testing.T) {
	for name, a := range wholes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			users := each
			if a.long {
				users = once
			}
			users(t, func(w *world) {
				if a.login != "" {
					w.file(w.kept(name)+"/"+a.login, geminiKey, 0o600)
				}
				w.file(w.home+"/"+a.host+"/mine", "it is mine\n", 0o600)
				out := filepath.Dir(w.canary)
				calls := []model.Call{
					a.call("cd sub && echo written > file; expr 40 + 2; echo sandbox; printenv SBXRUN_SANDBOX"),
					a.call("grep -E 'Seccomp:|NoNewPrivs:|CapEff:' /proc/self/status; cat " + w.canary + " ~/" + a.host + "/mine; echo breach > " + out + "/breach; echo breach > $HOME/breach; echo breach > /usr/breach; env; true"),
				}
				m := model.New(calls...)
				r := w.whole(name, m, len(calls), false)
				w.expect("a command", r[0], "42", "sandbox\naicode")
				if b, err := os.ReadFile(w.project + "/sub/file"); err != nil || string(b) != "written\n" {
					w.Errorf("%q %v", b, err)
				}
				w.expect("confinement", r[1], "Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "!canary sings", "!it is mine", "!mine-alone")
				if entries, err := os.ReadDir(out); err != nil || len(entries) != 1 {
					w.Errorf("outside: %v %v", entries, err)
				}
				if _, err := os.Lstat(w.home + "/breach"); err == nil {
					w.Error("it wrote in the home")
				}
				// Once more: it goes on where it was.
				os.Remove(w.project + "/sub/file")
				r = w.whole(name, model.New(calls...), len(calls), true)
				w.expect("the same conversation", r[0], "sandbox\naicode")
				if _, err := os.Stat(w.project + "/sub/file"); err == nil {
					w.Error("it began anew")
				}
				if entries, err := os.ReadDir(w.home + "/" + a.host); err != nil || len(entries) != 1 {
					w.Errorf("the user's own: %v %v", entries, err)
				}
			})
		})
	}
}
