//go:build linux

package agents

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// codexHome makes a configuration for Codex: a model of ours, and the environments
// that its commands can run in, if any.
func (w *world) codexHome(address, environments string) (dir string) {
	w.Helper()
	dir = w.home + "/.codex"
	config := `model = "test"
model_provider = "ours"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.ours]
name = "ours"
base_url = "` + address + `/v1"
wire_api = "responses"
env_key = "OURS_KEY"
[analytics]
enabled = false
`
	os.Mkdir(dir, 0o755)
	err := os.WriteFile(dir+"/config.toml", []byte(config), 0o644)
	if err == nil && environments != "" {
		err = os.WriteFile(dir+"/environments.toml", []byte(environments), 0o644)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.own()
	return dir
}

// codex runs Codex with a model of ours.
func (w *world) codex(m *model.Server, calls int, environments string) []string {
	w.Helper()
	home := w.codexHome(w.serve(m), environments)
	cmd := w.command([]string{"CODEX_HOME=" + home, "OURS_KEY=" + key}, client(w.T, codex, "codex"), "exec", "--skip-git-repo-check", "go")
	return w.converse(m, calls, cmd)
}

// environments is Codex's file for one, in which a program runs its commands.
func (w *world) environments(program string, args ...string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Sprintf("default = \"sandbox\"\ninclude_local = false\n\n[[environments]]\nid = \"sandbox\"\nprogram = %q\nargs = [%s]\n", program, strings.Join(quoted, ", "))
}

func execCommand(cmd string, more ...any) model.Call {
	in := map[string]any{"cmd": cmd, "yield_time_ms": 20_000}
	for i := 0; i < len(more); i += 2 {
		in[more[i].(string)] = more[i+1]
	}
	return model.Call{Tool: "exec_command", Input: in}
}

// TestCodex: all that Codex executes runs inside, by environments.toml.
func TestCodex(t *testing.T) {
	each(t, func(w *world) {
		program := client(t, codex, "codex")
		environments := w.environments(programs+"/sbxrun", "--timeout", "none", "--ro", filepath.Dir(filepath.Dir(program)), "--env", "SHELL=/bin/bash",
			"--", program, "exec-server", "--listen", "stdio")
		calls := []model.Call{
			execCommand("pwd; echo $((40+2))"),
			execCommand("pwd; exit 3", "workdir", w.project+"/sub"),
			execCommand(w.probe()),
			execCommand("seq 1 20000"),
			execCommand("kill -9 $$"),
			execCommand("printf '%s|' \"it's\" '$HOME' 'a\"b'; echo err >&2; [ -t 1 ] && echo terminal", "tty", true),
			execCommand("echo begun; sleep 987 # "+w.mark, "yield_time_ms", 1000),
			execCommand("sleep 1; echo over > /tmp/behind; cat /tmp/behind"),
			execCommand("cat /tmp/behind; ps ax"),
		}
		m := model.New(calls...)
		r := w.codex(m, len(calls), environments)
		w.expect("a command", r[0], w.project, "42", "code 0")
		w.expect("another directory, and a code", r[1], w.project+"/sub", "code 3")
		w.inside(r[2], "strict")
		w.expect("much output", r[3], "20000", "truncated")
		w.expect("SIGKILL", r[4], "!code 0")
		w.expect("quotes, in a terminal", r[5], "it's|$HOME|a\"b|", "err", "terminal")
		w.expect("in the background", r[6], "begun", "running")
		w.expect("private storage", r[7], "over")
		w.expect("which stays", r[8], "over", "sleep 987")
		if !within(30*time.Second, func() bool { return len(w.processes()) == 0 }) {
			w.Errorf("left: %q", w.processes())
		}
	})
}

// TestCodexFailsClosed: without its sandbox, nothing runs.
func TestCodexFailsClosed(t *testing.T) {
	each(t, func(w *world) {
		program := client(t, codex, "codex")
		for _, environments := range []string{
			w.environments(programs+"/none", "--", program, "exec-server", "--listen", "stdio"),
			w.environments(programs+"/sbxrun", "--profile", "none", "--", program, "exec-server", "--listen", "stdio"),
			// It cannot be seen inside.
			w.environments(programs+"/sbxrun", "--hide", filepath.Dir(program), "--", program, "exec-server", "--listen", "stdio"),
		} {
			m := model.New(execCommand("echo $((40+2)) > " + w.project + "/ran; echo breach > " + filepath.Dir(w.canary) + "/breach"))
			home := w.codexHome(w.serve(m), environments)
			cmd := w.command([]string{"CODEX_HOME=" + home, "OURS_KEY=" + key}, program, "exec", "--skip-git-repo-check", "go")
			out, err := cmd.CombinedOutput()
			if _, serr := os.Stat(w.project + "/ran"); serr == nil {
				w.Errorf("it ran: %v\n%s", err, out)
			}
			if m.Served() == 0 && err == nil {
				w.Errorf("it neither asked nor failed: %s", out)
			}
		}
	})
}

// TestCodexTold: Codex's model is told of the sandbox, and so of what its refusals mean, by
// the instructions that docs/agents/codex.md gives it, and of a single refusal which rule it
// was.
func TestCodexTold(t *testing.T) {
	once(t, func(w *world) {
		w.codexHome("http://127.0.0.1:1", "")
		if out, ok := w.cli([]string{"CODEX_HOME=" + w.home + "/.codex"}, "integrate", "codex", "--allow-degraded", "cgroup", "--agent", client(t, codex, "codex")); !ok {
			t.Fatal(out)
		}
		text, ok := w.cli(nil, "prompt", "--profile", "aicode", "--command-policy", "none", "--allow-degraded", "cgroup")
		if !ok {
			t.Fatal(text)
		}
		m := model.New(execCommand("echo x >mise.toml"))
		var mu sync.Mutex
		asked := ""
		w.codexHome(w.serve(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			mu.Lock()
			asked += string(body)
			mu.Unlock()
			req.Body = io.NopCloser(bytes.NewReader(body))
			m.ServeHTTP(rw, req)
		})), "")
		cmd := w.command([]string{"CODEX_HOME=" + w.home + "/.codex", "OURS_KEY=" + key}, client(t, codex, "codex"), "exec", "--skip-git-repo-check", "-c", "developer_instructions="+text, "go")
		r := w.converse(m, 1, cmd)
		w.expect("a refusal", r[0], "ermission denied", "protected path mise.toml")
		mu.Lock()
		defer mu.Unlock()
		w.expect("what its model is told", asked, "Your shell commands run in a sandbox of sbxrun", "Files that other programs obey cannot be changed", "proxy.golang.org:443", w.project)
	})
}
