//go:build linux

package agents

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// opencode runs opencode with a model of ours and a shell.
func (w *world) opencode(m *model.Server, calls int, shell string, env ...string) []string {
	w.Helper()
	config, err := json.Marshal(map[string]any{"autoupdate": false, "share": "disabled", "shell": shell,
		"permission": map[string]any{"*": "allow", "external_directory": "allow"},
		"model":      "anthropic/claude-sonnet-4-5", "small_model": "anthropic/claude-sonnet-4-5",
		"provider": map[string]any{"anthropic": map[string]any{"options": map[string]any{"baseURL": w.serve(m) + "/v1", "apiKey": key}}}})
	if err != nil {
		w.Fatal(err)
	}
	w.file(w.home+"/.config/opencode/opencode.json", string(config), 0o644)
	env = append([]string{"ANTHROPIC_API_KEY=" + key, "OPENCODE_DISABLE_AUTOUPDATE=1"}, env...)
	return w.converse(m, calls, w.command(env, client(w.T, opencode, "opencode"), "run", "go"))
}

func opencodeBash(command string, more ...any) model.Call {
	c := bash(command, more...)
	c.Tool = "bash"
	return c
}

// TestOpencode: the bash tool of the real opencode works as ever, inside.
func TestOpencode(t *testing.T) {
	for _, session := range []string{"", "SBXRUN_SHELL_SESSION=auto"} {
		name := "runs"
		if session != "" {
			name = "session"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			as := each
			if session != "" {
				as = once
			}
			as(t, func(w *world) {
				calls := []model.Call{
					opencodeBash("pwd; echo $((40+2))"),
					opencodeBash("pwd; exit 3", "workdir", w.project+"/sub"),
					opencodeBash(w.probe()),
					opencodeBash("printf '%s|' \"it's\" '$HOME' 'a\"b' $'c\\nd'; echo err >&2"),
					opencodeBash("echo begun; sleep 987 # "+w.mark, "timeout", 1500),
					opencodeBash("touch /tmp/stays; seq 1 20000"),
					opencodeBash("ls /tmp; ls "+w.dir, "workdir", "/usr"),
					opencodeBash("touch breach; pwd", "workdir", w.dir+"/outside"),
				}
				m := model.New(calls...)
				r := w.opencode(m, len(calls), programs+"/shell/bash", session)
				w.expect("a command", r[0], w.project, "42")
				w.expect("another directory", r[1], w.project+"/sub")
				w.inside(r[2], "strict")
				w.expect("quotes", r[3], "it's|$HOME|a\"b|c\nd|", "err")
				w.expect("a time limit", r[4], "begun", "timeout")
				w.expect("much output", r[5], "output truncated", "Full output saved")
				if session != "" {
					w.expect("private storage stays", r[6], "stays")
				} else {
					w.expect("private storage", r[6], "!stays")
				}
				w.expect("what the sandbox does not show", r[6], "!outside")
				w.expect("a directory outside, as the model chose", r[7], "is not in the sandbox")
				if _, err := os.Stat(w.dir + "/outside/breach"); err == nil {
					w.Error("it ran outside")
				}
				if !within(30*time.Second, func() bool { return len(w.processes()) == 0 }) {
					w.Errorf("left: %q", w.processes())
				}
			})
		})
	}
}

// TestOpencodeFailsClosed: where sbxrun cannot make its sandbox, nothing runs. A
// shell that is not there opencode passes over, for one outside: which docs say.
func TestOpencodeFailsClosed(t *testing.T) {
	once(t, func(w *world) {
		run := func(shell string, env ...string) (ran bool, result string) {
			r := w.opencode(model.New(opencodeBash("echo $((40+2)) > "+w.project+"/ran")), 1, shell, env...)
			return os.Remove(w.project+"/ran") == nil, r[0]
		}
		if ran, r := run(programs+"/shell/bash", "SBXRUN_PROFILE=none"); ran {
			w.Errorf("it ran: %s", r)
		}
		// What sbxrun integrate writes, without sbxrun.
		w.file(w.dir+"/gone/bash", "#!/bin/sh\nexec "+programs+"/none shell -- \"$@\"\n", 0o755)
		if ran, r := run(w.dir + "/gone/bash"); ran {
			w.Errorf("it ran: %s", r)
		}
		if ran, r := run(programs + "/none/bash"); !ran {
			w.Errorf("opencode does not pass over a shell that is not there any more: docs/agents/opencode.md is to say so: %s", r)
		}
	})
}
