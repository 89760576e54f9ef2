//go:build linux

package agents

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

var (
	block     = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	runsAgent = regexp.MustCompile(`(?m)(^| |; )(claude|codex exec|gemini -p|qwen|copilot)( |$)`)
)

// TestDocs runs what docs/agents and docs/agents.md show between fences, page by page and command by command, as it
// is there. Claude and codex are the real ones; that they answer to a model of ours
// and ask nobody is all that is added to them.
func TestDocs(t *testing.T) {
	pages, err := filepath.Glob("../../docs/agents/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("%q %v", pages, err)
	}
	for _, page := range append(pages, "../../docs/agents.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := block.FindAllStringSubmatch(string(text), -1)
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			if len(blocks) == 0 {
				t.Fatal("the page shows no command")
			}
			w := newWorld(t, os.Getuid())
			bin := w.dir + "/bin"
			os.Mkdir(bin, 0o755)
			for _, name := range []string{"sbxrun", "sbxrun-mcp"} {
				if err := os.Link(programs+"/"+name, bin+"/"+name); err != nil {
					t.Fatal(err)
				}
			}
			w.file(w.home+"/.gemini/settings.json", geminiKey, 0o644)
			w.file(w.home+"/.config/sbxrun/config.yaml", "allow_degraded: [cgroup]\n", 0o644)
			if err := os.Symlink(client(t, opencode, "opencode"), bin+"/opencode"); err != nil {
				t.Fatal(err)
			}
			os.Mkdir(w.home+"/project", 0o755)
			if err := os.Symlink(client(t, codex, "codex"), bin+"/codex"); err != nil {
				t.Fatal(err)
			}
			for _, b := range blocks {
				w.shows(bin, b[1])
			}
		})
	}
}

func (w *world) file(path, content string, mode os.FileMode) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		w.Fatal(err)
	}
	w.own()
}

// shows runs what one block shows.
func (w *world) shows(bin, script string) {
	w.Helper()
	probe := w.probe()
	m := model.New(bash(probe))
	if strings.Contains(script, "codex") {
		m = model.New(execCommand(probe))
	}
	if strings.Contains(script, "gemini") {
		m = model.New(geminiBash(probe))
	}
	if strings.Contains(script, "qwen") {
		m = model.New(model.Call{Tool: "mcp__sandbox__bash", Input: map[string]any{"command": probe}})
	}
	if strings.Contains(script, "copilot") {
		m = model.New(copilotBash(probe))
	}
	if regexp.MustCompile(`\bpi\b`).MatchString(script) {
		m = model.New(opencodeBash(probe))
	}
	if strings.Contains(script, "--disallowedTools Bash") {
		m = model.New(model.Call{Tool: "mcp__sandbox__bash", Input: map[string]any{"command": probe}})
	}
	address := w.serve(m)
	// What asks a person is not asked; what is asked of a model is asked of ours.
	claude := `for a; do case $a in mcp|-p) exec ` + client(w.T, claudeCode, "claude") + ` "$@";; esac; done
exec ` + client(w.T, claudeCode, "claude") + ` -p go --allowedTools Bash,mcp__sandbox__bash "$@"`
	w.file(bin+"/claude", "#!/bin/sh\n"+claude+"\n", 0o755)
	w.file(bin+"/gemini", `#!/bin/sh
case "$*" in *--model*) ;; *) set -- --model gemini-2.5-flash --approval-mode yolo "$@";; esac
exec `+client(w.T, gemini, "gemini")+` "$@"`+"\n", 0o755)
	w.file(bin+"/qwen", `#!/bin/sh
case "$*" in *--model*) ;; *) set -- `+strings.Join(qwenFlags, " ")+` "$@";; esac
exec `+client(w.T, qwen, "qwen")+` "$@"`+"\n", 0o755)
	w.file(bin+"/copilot", `#!/bin/sh
exec `+client(w.T, copilot, "copilot")+` "$@" --allow-all-tools`+"\n", 0o755)
	w.file(bin+"/pi", `#!/bin/sh
case "$*" in *--model*) ;; *) set -- `+strings.Join(w.piFlags(address), " ")+` "$@";; esac
exec `+client(w.T, pi, "pi")+` "$@"`+"\n", 0o755)
	w.codexHome(address, "")

	if strings.Contains(script, "sbxrun agent ") {
		// TestWhole runs these, with a model's host of its own.
		script = strings.ReplaceAll(script, "sbxrun agent ", "sbxrun agent --dry-run ")
		m = nil
	}
	env := []string{"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "ANTHROPIC_BASE_URL=" + address, "ANTHROPIC_API_KEY=" + key, "OURS_KEY=" + key,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "ENABLE_TOOL_SEARCH=false", "CODEX_HOME=" + w.home + "/.codex"}
	env = append(append(env, geminiEnv(address)...), copilotEnv(address)...)
	out, err := w.command(env, "bash", "-ec", script).CombinedOutput()
	if err != nil {
		w.Errorf("%v\n%s\n%s", err, script, out)
		return
	}
	runs := false
	for line := range strings.Lines(script) {
		line, _, _ = strings.Cut(line, " #")
		runs = runs || runsAgent.MatchString(strings.TrimSpace(line)) && !strings.Contains(line, "sbxrun ") && !strings.Contains(line, "claude mcp") && !strings.Contains(line, "append-system-prompt")
	}
	if m == nil || !runs {
		return
	}
	r := m.Results()
	if len(r) != 1 {
		w.Errorf("the agent ran no command; results %q, tools %q\n%s\n%s", r, m.Tools(), script, out)
		return
	}
	w.inside(r[0], "aicode")
}
