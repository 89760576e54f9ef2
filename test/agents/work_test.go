//go:build linux

package agents

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// works are how each agent runs after one sbxrun integrate, with its flags.
var works = map[string]struct {
	title string
	flags []string
	call  func(command string) model.Call
	run   func(w *world, m *model.Server, calls int) []string
}{
	"claude-code": {title: claudeCode, flags: []string{"--session", "auto"}, call: func(c string) model.Call { return bash(c) },
		run: func(w *world, m *model.Server, calls int) []string {
			return w.claude(m, calls, nil, "--allowedTools", "Bash")
		}},
	"codex": {title: codex, call: func(c string) model.Call { return execCommand(c) },
		run: func(w *world, m *model.Server, calls int) []string { return w.codex(m, calls, "") }},
	"opencode": {title: opencode, flags: []string{"--session", "auto"}, call: func(c string) model.Call { return opencodeBash(c) },
		run: func(w *world, m *model.Server, calls int) []string {
			return w.opencode(m, calls, w.home+"/.local/share/sbxrun/agents/opencode/bash")
		}},
	"gemini": {title: gemini, call: func(c string) model.Call { return geminiBash(c) },
		run: func(w *world, m *model.Server, calls int) []string { return w.gemini(m, calls) }},
	"qwen": {title: qwen, call: func(c string) model.Call {
		return model.Call{Tool: "mcp__sandbox__bash", Input: map[string]any{"command": c}}
	}, run: func(w *world, m *model.Server, calls int) []string { return w.qwen(m, calls) }},
	"copilot": {title: copilot, call: func(c string) model.Call { return copilotBash(c) },
		run: func(w *world, m *model.Server, calls int) []string { return w.copilot(m, calls) }},
	"pi": {title: pi, flags: []string{"--session", "auto"}, call: func(c string) model.Call { return opencodeBash(c) },
		run: func(w *world, m *model.Server, calls int) []string { return w.pi(m, calls) }},
}

// TestWork: in a linked worktree each of the real agents edits, tests and commits, starts a
// server in the background and reaches it in its next command, and is told what is
// protected.
func TestWork(t *testing.T) {
	for name, a := range works {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			once(t, func(w *world) {
				// The repository is beside the project: its directory is the worktree.
				repo := w.dir + "/repository"
				os.RemoveAll(w.project)
				for _, args := range [][]string{{"init", "-q", repo}, {"-C", repo, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "--allow-empty", "-m", "first"},
					{"-C", repo, "worktree", "add", "-q", w.project}} {
					cmd := w.command(nil, append([]string{"git"}, args...)...)
					cmd.Dir = "/"
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Fatalf("git %q: %v: %s", args, err, out)
					}
				}
				w.integrate(name)
				calls := []model.Call{
					a.call("printf 'echo it is $((40+2))\\n' >t.sh && sh t.sh"),
					a.call("git add t.sh && git -c user.name=n -c user.email=e@x commit -qm worked && git log --format=%s"),
					a.call("python3 -m http.server 8123 --bind 127.0.0.1 --directory " + w.project + " >/dev/null 2>&1 & echo begun"),
					a.call("for i in $(seq 100); do curl -fsS http://127.0.0.1:8123/t.sh && break; sleep 0.1; done"),
					a.call("echo x >mise.toml"),
					a.call("grep Seccomp: /proc/self/status; cat " + w.canary + "; true"),
				}
				r := a.run(w, model.New(calls...), len(calls))
				w.expect("a test", r[0], "it is 42")
				w.expect("a commit", r[1], "worked", "first")
				w.expect("a server", r[2], "begun")
				w.expect("the server", r[3], "echo it is")
				w.expect("what is protected", r[4], "ermission denied", "protected path mise.toml")
				w.expect("where", r[5], "Seccomp:\t2", "!canary sings")
				if b, err := os.ReadFile(filepath.Join(w.project, "t.sh")); err != nil || string(b) != "echo it is $((40+2))\n" {
					t.Errorf("%q %v", b, err)
				}
				out, err := w.command(nil, "git", "-C", repo, "log", "--all", "--format=%s").CombinedOutput()
				if err != nil {
					t.Fatal(err)
				}
				w.expect("on the host", string(out), "worked")
			})
		})
	}
}

// integrate joins one of works, as its user would.
func (w *world) integrate(name string) {
	w.Helper()
	w.file(w.home+"/.gemini/settings.json", geminiKey, 0o644)
	if name == "codex" {
		w.codexHome("http://127.0.0.1:1", "")
	}
	installed := map[string]string{"claude-code": "claude"}[name]
	if installed == "" {
		installed = name
	}
	flags := append([]string{"integrate", name, "--allow-degraded", "cgroup", "--agent", client(w.T, works[name].title, installed)}, works[name].flags...)
	if out, ok := w.cli([]string{"CODEX_HOME=" + w.home + "/.codex"}, flags...); !ok {
		w.Fatal(out)
	}
}

// TestCancelled: if a real agent is interrupted, terminated or killed while its command
// runs, that ends, with what it left in the background. The signal goes to the agent's
// process group, as from a terminal: Qwen Code and Gemini CLI run in a child of their own.
// The commands do not sleep: Claude Code refuses one that begins so.
func TestCancelled(t *testing.T) {
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL}
	for name, a := range works {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			once(t, func(w *world) {
				w.integrate(name)
				for _, s := range signals {
					begun := w.project + "/begun-" + s.String()
					w.started = func(pid int) {
						go func() {
							if within(patience/2, func() bool { _, err := os.Stat(begun); return err == nil }) && len(w.processes()) > 1 {
								syscall.Kill(-pid, s)
							}
						}()
					}
					a.run(w, model.New(a.call("tail -f /dev/null && : "+w.mark+" & sh -c 'tail -f /dev/null; : "+w.mark+"' & echo x >'"+begun+"'; tail -f /dev/null; : "+w.mark)), 0)
					if _, err := os.Stat(begun); err != nil {
						t.Errorf("%v: %v", s, err)
					}
					if !within(30*time.Second, func() bool { return len(w.processes()) == 0 }) {
						t.Errorf("%v: left: %q", s, w.processes())
					}
				}
			})
		})
	}
}
