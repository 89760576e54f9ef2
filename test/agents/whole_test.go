//go:build linux

package agents

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/internal/agents/model"
	"github.com/sbxrun/sbxrun/internal/pty"
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
					a.call("curl -sS -m 20 http://elsewhere.test/; true"),
					a.call("grep -E 'Seccomp:|NoNewPrivs:|CapEff:' /proc/self/status; cat " + w.canary + " ~/" + a.host + "/mine; echo breach > " + out + "/breach; echo breach > $HOME/breach; echo breach > /usr/breach; env; true"),
				}
				m := model.New(calls...)
				r := w.whole(name, m, len(calls), false)
				w.expect("a command", r[0], "42", "sandbox\naicode")
				if b, err := os.ReadFile(w.project + "/sub/file"); err != nil || string(b) != "written\n" {
					w.Errorf("%q %v", b, err)
				}
				w.expect("another host", r[1], "no rule allows elsewhere.test:80")
				w.expect("confinement", r[2], "Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "!canary sings", "!it is mine", "!mine-alone")
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

// TestWholeLogin: who has logged in inside is logged in the next time, and nowhere else.
func TestWholeLogin(t *testing.T) {
	each(t, func(w *world) {
		run := func(stdin string, args ...string) string {
			cmd := w.command(nil, append([]string{programs + "/sbxrun", "agent", "codex", "--agent", client(t, codex, "codex")}, args...)...)
			cmd.Stdin = strings.NewReader(stdin)
			out, _ := cmd.CombinedOutput()
			return string(out)
		}
		w.expect("before", run("", "login", "status"), "Not logged in")
		run(key, "login", "--with-api-key")
		w.expect("after", run("", "login", "status"), "API key configured")
		w.expect("with another state", run("", "--state", "other", "login", "status"), "Not logged in")
		if fi, err := os.Stat(w.kept("codex") + "/auth.json"); err != nil || fi.Mode().Perm() != 0o600 {
			w.Errorf("%v %v", fi, err)
		}
		if _, err := os.Stat(w.home + "/.codex"); err == nil {
			w.Error("it is in the user's own directory")
		}
		if out, ok := w.cli(nil, "--rw", w.home, "--", "cat", w.kept("codex")+"/auth.json"); ok || strings.Contains(out, key) {
			w.Errorf("another run reads it: %s", out)
		}
	})
}

// TestWholeTerminal: on a terminal the agent has one of its own. What its user chose and
// trusted there it does not ask again, and what is shown of their skills it can read.
func TestWholeTerminal(t *testing.T) {
	once(t, func(w *world) {
		w.file(w.home+"/.claude/skills/mine/SKILL.md", "---\nname: mine\ndescription: a skill of mine\n---\n", 0o644)
		first := w.screen([][2]string{{"text style", "\r"}, {"Press Enter", "\r"}, {"trust this folder", "\x1b[B\r"}, {"API Usage Billing", "/exit"}, {"/exit", "\r"}})
		w.expect("at first", first, "text style", "trust")
		second := w.screen([][2]string{{"API Usage Billing", "/exit"}, {"/exit", "\r"}})
		w.expect("the second time", second, "!text style", "!trust this folder")
		if fi, err := os.Stat(w.kept("claude") + "/skills"); err != nil || !fi.IsDir() {
			w.Errorf("no place for skills: %v %v", fi, err)
		}
	})
}

// control is what a terminal is told beside the text.
var control = regexp.MustCompile(`\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b\][^\x07]*\x07`)

// screen runs Claude Code on a terminal, and answers each text that it shows by keys. It
// returns all that was shown.
func (w *world) screen(answers [][2]string) string {
	w.Helper()
	master, tty, err := pty.Open(&specs.Box{Height: 40, Width: 120})
	if err != nil {
		w.Fatal(err)
	}
	defer master.Close()
	address := w.serve(model.New())
	cmd := w.command([]string{"TERM=xterm-256color", "ANTHROPIC_BASE_URL=" + address, "ANTHROPIC_AUTH_TOKEN=" + key}, programs+"/sbxrun", "agent", "claude", "--agent", client(w.T, claudeCode, "claude"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = false, true, true
	if err := tty.Chown(w.uid, -1); err != nil {
		w.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	tty.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var mu sync.Mutex
	var shown strings.Builder
	text := func() string {
		mu.Lock()
		defer mu.Unlock()
		return control.ReplaceAllString(shown.String(), " ")
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			mu.Lock()
			shown.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	has := func(what string) bool { return strings.Contains(strings.Join(strings.Fields(text()), " "), what) }
	for i, a := range answers {
		// It does not read keys as soon as it has drawn.
		answered := func() bool {
			if !has(a[0]) {
				return false
			}
			time.Sleep(time.Second)
			master.WriteString(a[1])
			return within(3*time.Second, func() bool {
				return i+1 < len(answers) && has(answers[i+1][0]) || cmd.Process.Signal(syscall.Signal(0)) != nil
			})
		}
		if !within(time.Minute, answered) {
			cmd.Process.Kill()
			<-ended
			w.Fatalf("%q was not shown, or not answered, in %s", a[0], text())
		}
	}
	if err := <-ended; err != nil {
		w.Errorf("%v: %s", err, text())
	}
	return strings.Join(strings.Fields(text()), " ")
}
