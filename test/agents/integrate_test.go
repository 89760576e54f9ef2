//go:build linux

package agents

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// configurations are what a user may have had before, by agent.
var configurations = map[string]struct{ file, content, installed, name string }{
	"claude-code": {".claude/settings.json", "{\n  \"env\": {\n    \"MINE\": \"1\"\n  },\n  \"cleanupPeriodDays\": 30\n}\n", "claude", claudeCode},
	"codex":       {".codex/environments.toml", "# mine\n", "codex", codex},
	"opencode":    {".config/opencode/opencode.json", "{\n  \"$schema\": \"https://opencode.ai/config.json\", // or it adds that itself\n  \"share\": \"disabled\",\n}\n", "opencode", opencode},
	"gemini":      {".gemini/settings.json", "{\"tools\": {\"exclude\": [\"x\"]}}\n", "gemini", gemini},
	"qwen":        {".qwen/settings.json", "{\"permissions\": {\"deny\": [\"x\"]}}\n", "qwen", qwen},
	"copilot":     {".copilot/settings.json", "{\"hooks\": {\"preToolUse\": []}}\n", "copilot", copilot},
	"pi":          {".pi/agent/settings.json", "{\"theme\": \"light\"}\n", "pi", pi},
	"goose":       {".config/goose/config.yaml", "# mine\nGOOSE_PROVIDER: x\n", "", ""},
}

// cli runs sbxrun as the world's user.
func (w *world) cli(env []string, args ...string) (out string, ok bool) {
	w.Helper()
	b, err := w.command(env, append([]string{programs + "/sbxrun"}, args...)...).CombinedOutput()
	return string(b), err == nil
}

// files are those below the home, and what they hold, but for what agents keep there
// for themselves.
func (w *world) files() map[string]string {
	w.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(w.home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !strings.Contains(path, "sbxrun/") && !slices.Contains([]string{"settings.json", "mcp-config.json", "environments.toml", "config.toml", "opencode.json", "opencode.jsonc", "config.yaml"}, filepath.Base(path)) {
			return nil
		}
		b, err := os.ReadFile(path)
		fi, serr := d.Info()
		if serr != nil {
			return serr
		}
		all[path] = fi.Mode().String() + " " + string(b)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// TestIntegrate: an agent's configuration is changed so that its commands run
// inside, which is proved, and changed back to the byte.
func TestIntegrate(t *testing.T) {
	for agent, c := range configurations {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			as := each
			if agent == "opencode" {
				as = once
			}
			as(t, func(w *world) {
				file := filepath.Join(w.home, c.file)
				flags := []string{"--allow-degraded", "cgroup"}
				if c.installed != "" {
					flags = append(flags, "--agent", client(t, c.name, c.installed))
				}
				with := func(more ...string) []string { return slices.Concat([]string{"integrate", agent}, flags, more) }
				contents := []string{c.content, ""}
				if agent == "opencode" {
					contents = contents[:1] // where there is none it makes one
				}
				for _, content := range contents {
					w.fresh(file, content)
					before := w.files()

					// Before, it is not in a sandbox, and the proof says so.
					if c.installed != "" {
						out, ok := w.cli(nil, with("--verify")...)
						// Codex has a sandbox of its own, if the host allows that: it only reads.
						// Copilot CLI gives its commands no key.
						if ok || agent != "codex" && (!strings.Contains(out, "read a file outside") || agent != "copilot" && !strings.Contains(out, "API key")) {
							w.Errorf("verified without a sandbox: %s", out)
						}
					} else if out, ok := w.cli(nil, with("--verify")...); ok {
						w.Errorf("verified without a configuration: %s", out)
					}
					w.fresh(file, content)

					if out, ok := w.cli(nil, with("--print")...); !ok || !strings.Contains(out, file) {
						w.Errorf("--print: %s", out)
					}
					if now := w.files(); !equal(now, before) {
						w.Errorf("--print changed something: %q", now)
					}
					if out, ok := w.cli(nil, with()...); !ok || !strings.Contains(out, file) {
						w.Fatalf("integrate: %s", out)
					}
					if out, ok := w.cli(nil, with()...); !ok || !strings.Contains(out, "nothing to change") {
						w.Errorf("again: %s", out)
					}
					if out, ok := w.cli(nil, with("--verify")...); !ok || !strings.Contains(out, "ran a test and committed") || !strings.Contains(out, "of your home it saw") {
						w.Errorf("--verify: %s", out)
					}
					// With other flags.
					if out, ok := w.cli(nil, with("--memory", "512m")...); !ok || !strings.Contains(out, "made") && !strings.Contains(out, "changed") {
						w.Errorf("other flags: %s", out)
					}
					if out, ok := w.cli(nil, with("--undo")...); !ok {
						w.Errorf("--undo: %s", out)
					}
					if now := w.files(); !equal(now, before) {
						w.Errorf("after --undo: %q, was %q", now, before)
					}
					if out, ok := w.cli(nil, with("--undo")...); !ok || !strings.Contains(out, "nothing to undo") {
						w.Errorf("--undo again: %s", out)
					}
				}
			})
		})
	}
}

func equal(a, b map[string]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// fresh makes the home one with this file alone.
func (w *world) fresh(file, content string) {
	w.Helper()
	if err := os.RemoveAll(w.home); err != nil {
		w.Fatal(err)
	}
	os.Mkdir(w.home, 0o755)
	if content != "" {
		os.MkdirAll(filepath.Dir(file), 0o755)
		if err := os.WriteFile(file, []byte(content), 0o640); err != nil {
			w.Fatal(err)
		}
	}
	w.own()
}

// TestIntegrateCodex: the codex exec that the documentation names works in its user's
// own configuration, whose sandbox_mode is Codex's default or another. What that
// configuration prevents, --verify finds.
func TestIntegrateCodex(t *testing.T) {
	once(t, func(w *world) {
		program := client(t, codex, "codex")
		integrate := []string{"integrate", "codex", "--allow-degraded", "cgroup", "--agent", program}
		m := model.New(execCommand("echo hi > made; cat made; grep Seccomp: /proc/self/status"))
		rest := "model = \"test\"\nmodel_provider = \"ours\"\n%s\n[model_providers.ours]\nname = \"ours\"\nbase_url = \"" + w.serve(m) + "/v1\"\nwire_api = \"responses\"\nenv_key = \"OURS_KEY\"\n"
		file := w.home + "/.codex/config.toml"
		for _, own := range []string{"", "sandbox_mode = \"workspace-write\" # mine", "sandbox_mode=\"danger-full-access\""} {
			w.fresh(file, fmt.Sprintf(rest, own))
			before := w.files()
			if out, ok := w.cli(nil, integrate...); !ok {
				w.Fatal(out)
			}
			// What a user does with the same file meanwhile stays.
			now, err := os.ReadFile(file)
			if err != nil {
				w.Fatal(err)
			}
			w.file(file, string(now)+"[tui]\n", 0o640)
			out, err := w.command([]string{"OURS_KEY=" + key}, program, "exec", "--skip-git-repo-check", "run the tests").CombinedOutput()
			if err != nil || len(m.Results()) != 1 {
				w.Fatalf("%q: %v, %q\n%s", own, err, m.Results(), out)
			}
			w.expect(own, m.Results()[0], "hi", "Seccomp:\t2")
			if b, err := os.ReadFile(w.project + "/made"); err != nil || string(b) != "hi\n" {
				w.Errorf("%q: %v", own, err)
			}
			os.Remove(w.project + "/made")
			// Codex 0.146 notes there which directories are trusted.
			notes := w.dir + "/codex"
			w.file(notes, "#!/bin/sh\necho \"[projects.\\\"$PWD\\\"]\" >>\"${CODEX_HOME:-$HOME/.codex}/config.toml\"\nexec '"+program+"' \"$@\"\n", 0o755)
			for _, agent := range []string{program, notes} {
				if out, ok := w.cli(nil, append(integrate, "--verify", "--agent", agent)...); !ok {
					w.Errorf("%q: --verify: %s", own, out)
				}
			}
			if out, ok := w.cli(nil, append(integrate, "--undo")...); !ok {
				w.Error(out)
			}
			before[file] += "[tui]\n"
			if now := w.files(); !equal(now, before) {
				w.Errorf("%q: after --undo: %q, was %q", own, now, before)
			}
			m.Reset()
		}
		w.fresh(file, fmt.Sprintf(rest, "default_permissions = \":workspace\""))
		if out, ok := w.cli(nil, integrate...); ok || !strings.Contains(out, "default_permissions") {
			w.Errorf("a sandbox in a sandbox: %s", out)
		}
		// What only the run shows.
		w.fresh(file, fmt.Sprintf(rest, ""))
		if out, ok := w.cli(nil, integrate...); !ok {
			w.Fatal(out)
		}
		b, _ := os.ReadFile(file)
		w.file(file, strings.Replace(string(b), "danger-full-access", "read-only", 1), 0o640)
		if out, ok := w.cli(nil, append(integrate, "--verify")...); ok || !strings.Contains(out, "not verified") {
			w.Errorf("verified where nothing can run: %s", out)
		}
	})
}

// TestIntegrateOpencode: where its user's opencode.jsonc names a shell, that counts, and
// is what is changed.
func TestIntegrateOpencode(t *testing.T) {
	once(t, func(w *world) {
		program := client(t, opencode, "opencode")
		integrate := []string{"integrate", "opencode", "--allow-degraded", "cgroup", "--agent", program}
		file := w.home + "/.config/opencode/opencode.jsonc"
		w.fresh(file, "{\n  // mine\n  \"$schema\": \"https://opencode.ai/config.json\",\n  \"shell\": \"/bin/sh\",\n}\n")
		before := w.files()
		if out, ok := w.cli(nil, integrate...); !ok || !strings.Contains(out, "changed "+file) {
			w.Fatal(out)
		}
		if out, ok := w.cli(nil, append(integrate, "--verify")...); !ok {
			w.Errorf("--verify: %s", out)
		}
		if out, ok := w.cli(nil, append(integrate, "--undo")...); !ok {
			w.Error(out)
		}
		if now := w.files(); !equal(now, before) {
			w.Errorf("after --undo: %q, was %q", now, before)
		}
		w.fresh(file, "{\"shell\": ")
		if out, ok := w.cli(nil, integrate...); ok || !strings.Contains(out, "is not JSON") {
			w.Errorf("a file that cannot be read: %s", out)
		}
	})
}

// TestVerifyAgainst: a project that has Claude Code's commands started by something else
// is named by --verify, with what helps.
func TestVerifyAgainst(t *testing.T) {
	once(t, func(w *world) {
		integrate := []string{"integrate", "claude-code", "--allow-degraded", "cgroup", "--agent", client(t, claudeCode, "claude")}
		if out, ok := w.cli(nil, integrate...); !ok {
			w.Fatal(out)
		}
		if out, ok := w.cli(nil, append(integrate, "--verify")...); !ok || strings.Contains(out, "in this project") || !strings.Contains(out, "but: a project with a .claude/settings.json against it") {
			w.Errorf("no project is against it: %s", out)
		}
		w.file(w.project+"/.claude/settings.json", "{\"env\": {\"CLAUDE_CODE_SHELL_PREFIX\": \"\"}} // mine\n", 0o644)
		if out, ok := w.cli(nil, append(integrate, "--verify")...); !ok || !strings.Contains(out, w.project+"/.claude/settings.json sets CLAUDE_CODE_SHELL_PREFIX: in this project commands can run outside; claude --setting-sources user prevents that") {
			w.Errorf("a project is against it: %s", out)
		}
	})
}

// TestIntegrateHook: Claude Code by the other means, and without what a user
// changed in between being lost.
func TestIntegrateHook(t *testing.T) {
	each(t, func(w *world) {
		file := w.home + "/.claude/settings.json"
		w.fresh(file, "{\"hooks\": {\"PreToolUse\": [{\"matcher\": \"Edit\", \"hooks\": []}]}}\n")
		flags := []string{"integrate", "claude-code", "--by", "hook", "--allow-degraded", "cgroup", "--agent", client(t, claudeCode, "claude")}
		if out, ok := w.cli(nil, flags...); !ok {
			w.Fatal(out)
		}
		if out, ok := w.cli(nil, append(flags, "--verify")...); !ok {
			w.Error(out)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			w.Fatal(err)
		}
		changed := strings.Replace(string(b), "{", "{\"model\": \"mine\", ", 1)
		if err := os.WriteFile(file, []byte(changed), 0o640); err != nil {
			w.Fatal(err)
		}
		if out, ok := w.cli(nil, append(flags, "--undo")...); !ok {
			w.Error(out)
		}
		b, _ = os.ReadFile(file)
		if want := "{\"model\": \"mine\", \"hooks\": {\"PreToolUse\": [{\"matcher\": \"Edit\", \"hooks\": []}"; !strings.HasPrefix(string(b), want) || strings.Contains(string(b), "sbxrun") {
			w.Errorf("%s", b)
		}
	})
}

// TestIntegrateAny: an agent that is not listed gets a shell or a server, which are proved
// alone and by the agent. A stand-in does what its model would be asked to.
func TestIntegrateAny(t *testing.T) {
	each(t, func(w *world) {
		w.fresh(w.home+"/mcp.json", "{\"mine\": 1}\n")
		before := w.files()
		agent := w.home + "/agent"
		w.file(agent, "#!/bin/bash\nexec \"$SHELL\" -c \"$(printf %s \"$2\" | tail -n 1)\"\n", 0o755)
		shell := w.home + "/.local/share/sbxrun/agents/shell/bash"
		if out, ok := w.cli(nil, "integrate", "shell", "--allow-degraded", "cgroup"); !ok || !strings.Contains(out, "made "+shell) {
			w.Fatal(out)
		}
		for _, tt := range []struct {
			says string
			args []string
		}{
			{"verified: a command, given to the shell", nil},
			{"verified: a command that env ran", []string{"--", "env", "SHELL=" + shell, agent, "-p", "{}"}},
			{"verified: a command that env ran", []string{"--", "env", "SHELL=" + shell, agent, "-p"}},
			{"not in a sandbox: a command that env ran, asked by its own model, did not stay inside: it read a file outside", []string{"--", "env", "SHELL=/bin/bash", agent, "-p", "{}"}},
			{"not verified: the command did not run", []string{"--", "true"}},
		} {
			out, ok := w.cli(nil, append([]string{"integrate", "shell", "--verify"}, tt.args...)...)
			if ok != strings.HasPrefix(tt.says, "verified") || !strings.Contains(out, tt.says) {
				w.Errorf("%q: %s", tt.args, out)
			}
		}
		mcp := []string{"integrate", "mcp", "--file", w.home + "/mcp.json", "--allow-degraded", "cgroup"}
		if out, ok := w.cli(nil, mcp...); !ok || !strings.Contains(out, "changed "+w.home+"/mcp.json") {
			w.Fatal(out)
		}
		if out, ok := w.cli(nil, append(mcp, "--verify")...); !ok || !strings.Contains(out, "verified: a command, given to the server") {
			w.Error(out)
		}
		for _, args := range [][]string{{"shell"}, {"mcp", "--file", w.home + "/mcp.json"}} {
			if out, ok := w.cli(nil, append(append([]string{"integrate"}, args...), "--undo")...); !ok {
				w.Error(out)
			}
		}
		os.Remove(agent)
		if now := w.files(); !equal(now, before) {
			w.Errorf("%q", now)
		}
	})
}

// TestVerifyPartial: where a roll-out leaves agents out, one that is in it proves nothing
// of the others, and the proof says so.
func TestVerifyPartial(t *testing.T) {
	each(t, func(w *world) {
		w.fresh(w.home+"/.config/goose/config.yaml", "a: 1\n")
		integrate := []string{"integrate", "goose", "--allow-degraded", "cgroup", "--rollout-key", "in"}
		if out, ok := w.cli(nil, integrate...); !ok {
			w.Fatal(out)
		}
		for config, but := range map[string]bool{"": false, "rollout: {percent: 0, force: [in]}\n": true, "rollout: {enabled: false, force: [in]}\n": true} {
			w.file(w.home+"/.config/sbxrun/config.yaml", config, 0o644)
			if out, ok := w.cli(nil, append(integrate, "--verify")...); !ok || !strings.Contains(out, "verified: ") || strings.Contains(out, "but: the roll-out") != but {
				w.Errorf("%q: %s", config, out)
			}
		}
	})
}

// TestIntegrateRefuses: a file that cannot be changed safely is not touched.
func TestIntegrateRefuses(t *testing.T) {
	each(t, func(w *world) {
		for _, c := range []struct{ agent, file, content, says string }{
			{"claude-code", ".claude/settings.json", "{", "is not JSON"},
			{"opencode", ".config/opencode/opencode.json", "[]", "holds no JSON object"},
			{"goose", ".config/goose/config.yaml", "GOOSE_SHELL: /bin/zsh\n", "already"},
			{"no-such-agent", "x", "", "no agent that is known"},
		} {
			file := filepath.Join(w.home, c.file)
			w.fresh(file, c.content)
			before := w.files()
			if out, ok := w.cli(nil, "integrate", c.agent); ok || !strings.Contains(out, c.says) {
				w.Errorf("%s: %s", c.agent, out)
			}
			if now := w.files(); !equal(now, before) {
				w.Errorf("%s: %q", c.agent, now)
			}
		}
	})
}
