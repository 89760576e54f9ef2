//go:build linux

package integration

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// notRun are the examples that TestExamples cannot run, each with the reason.
var notRun = map[string]string{
	"make run":  "installs packages",
	"make test": "runs this test",

	`cmd := sbxrun.Command("make", "test")`: goCode,
	`cmd.Options.Profile = "aicode"`:        goCode,
	"out, err := cmd.Output()":              goCode,

	"sbxrun --allow-host '*.example.org:443' -- curl -O https://files.example.org/x.tgz": needsNetwork,
	"sbxrun --allow-host example.org -- curl -sI https://example.org":                    needsNetwork,

	"sbxrun agent claude": needsAgent,
	"sbxrun agent codex --allow-host api.example.com -- exec 'run the tests'":                                 needsAgent,
	"sbxrun agent claude --state client -- --dangerously-skip-permissions":                                    needsAgent,
	"sbxrun integrate claude-code --verify":                                                                   needsAgent,
	"sbxrun integrate shell --verify -- env SHELL=$HOME/.local/share/sbxrun/agents/shell/bash my-agent -p {}": needsAgent,
	"claude mcp add sandbox -- sbxrun mcp":                                                                    needsAgent,
	"claude mcp add sandbox -- sbxrun mcp --profile strict":                                                   needsAgent,
	`claude --append-system-prompt "$(sbxrun prompt --profile aicode)"`:                                       needsAgent,
	`CLAUDE_CODE_SHELL_PREFIX="$HOME/.local/sandboxed/bash -c" claude`:                                        needsAgent,

	`{ "hooks": { "PreToolUse": [ { "matcher": "Bash|Monitor|PowerShell",`:                              "settings of Claude Code",
	`"hooks": [ { "type": "command", "command": "sbxrun hook claude-code --profile aicode" } ] } ] } }`: "settings of Claude Code",

	"source <(sbxrun completion zsh)": "for another shell",
	"sbxrun completion fish | source": "for another shell",
	"sudo sbxrun setup":               changesHost,
	"sudo runc run -b bundle test":    "needs sudo",
}

const (
	goCode       = "Go: ExampleCommand has it"
	needsNetwork = "needs the network: the egress tests have their own"
	needsAgent   = "needs the agent: test/agents has it"
	changesHost  = "changes the host: TestSetup has its own"
)

// notRunAsRoot are those that change the host if root types them.
var notRunAsRoot = map[string]string{
	"sbxrun setup --yes --skip profile": changesHost,
	"sbxrun setup --undo":               changesHost,
}

// before prepares what an example is about: a session, a change set.
var before = map[string]string{
	"sbxrun session exec build -- make":                                        "sbxrun session create build",
	"n=$(sbxrun session exec -d -t build bash)":                                "sbxrun session create build",
	"n=$(sbxrun session exec -d build -- make)":                                "sbxrun session create build",
	"sbxrun session cp build:/tmp/out ./results":                               "sbxrun session create build; sbxrun session exec build -- mkdir /tmp/out",
	"sbxrun session cp --allow-protected .vscode build:/tmp/out ./results":     "sbxrun session exec build -- mkdir /tmp/out/.vscode",
	"sbxrun session requests build":                                            asking,
	"sbxrun session requests --follow --json build":                            asking + "; (sleep 1; sbxrun session stop -t 0s build) &",
	"sbxrun session grant build 3":                                             asking,
	"sbxrun session grant --once build 3":                                      asking,
	"sbxrun session grant --into ~/.config/sbxrun/profiles/build.yaml build 3": asking + "; mkdir -p ~/.config/sbxrun/profiles; echo 'extends: strict' >~/.config/sbxrun/profiles/build.yaml",
	"sbxrun apply":                                           "sbxrun --workspace overlay -- make",
	"sbxrun apply --on-conflict keep":                        "sbxrun --workspace overlay -- make",
	"sbxrun apply --allow-protected .vscode w1a2b3c4-567":    changeSet,
	"sbxrun discard":                                         "sbxrun --workspace overlay -- make",
	"sbxrun discard w1a2b3c4-567":                            changeSet,
	"curl --unix-socket DIR/api.sock http://sbxrun/v1/pools": "sbxrun serve >dir & until [ -s dir ]; do sleep 0.1; done; ln -s $(cat dir) DIR",
}

// asking makes a session that asks three questions.
const asking = "sbxrun session rm --force build; mkdir -p .git/hooks; sbxrun session create --ask build; " +
	"for i in 1 2 3; do sbxrun session exec build -- sh -c \"echo x >.git/hooks/$i\" & done; until sbxrun session requests build | grep -q ^3; do sleep 0.1; done"

// changeSet makes one of the name that examples have.
const changeSet = "sbxrun session create --workspace overlay w1a2b3c4-567; sbxrun session exec w1a2b3c4-567 -- sh -c 'mkdir -p .vscode; date +%N >.vscode/new'; sbxrun session stop w1a2b3c4-567"

// servers are examples that go on until they are stopped, and what shows that they serve.
var servers = map[string]string{
	"sbxrun serve &": "sbxrun pool status",
	"sbxrun serve --target-size 8 --memory 2g strict testing":              "sbxrun pool status | grep testing",
	"sbxrun mcp --http 127.0.0.1:7777 --token-file ~/.config/sbxrun/token": "grep 'serving at' served && test -s ~/.config/sbxrun/token",
}

// fails are those that are to fail.
var fails = map[string]int{"sbxrun command check --json 'git status; sudo reboot'": 1}

// An example is a command that documentation tells a reader to type.
type example struct {
	line   string
	shown  bool   // what it prints is shown, too
	output string // as shown
}

var comment = regexp.MustCompile(`\s+(#|//) .*$`)

// examplesIn are the commands of a text of Markdown.
func examplesIn(t *testing.T, name string) (all []example) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	shown := false
	for line := range strings.Lines(string(b)) {
		text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
		if !ok {
			shown = false
			continue
		}
		if command, ok := strings.CutPrefix(text, "$ "); ok {
			shown = true
			all = append(all, example{line: command, shown: true})
		} else if shown {
			all[len(all)-1].output += text + "\n"
		} else {
			all = append(all, example{line: comment.ReplaceAllString(text, "")})
		}
	}
	return all
}

// examplesOfHelp are the commands in the help of a command and of those below it.
func examplesOfHelp(t *testing.T, into map[string][]example, words ...string) {
	t.Helper()
	b, err := exec.Command(sbxrun, append(slices.Clone(words), "--help")...).Output()
	if err != nil {
		t.Fatal(words, err)
	}
	name := strings.Join(append([]string{"sbxrun"}, append(words, "--help")...), " ")
	section := ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		text, indented := strings.CutPrefix(line, "  ")
		switch {
		case !indented:
			section = line
		case section == "Examples:":
			into[name] = append(into[name], example{line: strings.TrimSpace(comment.ReplaceAllString(text, ""))})
		case section == "Available Commands:":
			if word, _, _ := strings.Cut(text, " "); word != "help" && word != "run" { // run has the examples of sbxrun
				examplesOfHelp(t, into, append(slices.Clone(words), word)...)
			}
		}
	}
}

var changeSetID = regexp.MustCompile(`\bw[a-z0-9]{8,}-\d+\b`)

// TestExamples types the commands that README.md, docs/start.md and every --help show,
// with an empty home, in a project. Where the text shows what a command prints, it
// has to print that; each other one has to succeed.
func TestExamples(t *testing.T) {
	texts := map[string][]example{"README.md": examplesIn(t, "README.md"), "docs/start.md": examplesIn(t, "docs/start.md")}
	examplesOfHelp(t, texts)
	unused := maps.Clone(notRun)
	for _, list := range texts {
		for _, e := range list {
			delete(unused, e.line)
		}
	}
	for line := range unused {
		t.Errorf("no text has this example, which is said not to be run: %s", line)
	}
	eachWho(t, func(f *fixture) {
		for path, text := range map[string]string{
			"fresh/project/Makefile":     "all:\n\t@date +%s%N >out; echo made\ntest:\n\t@echo tested\n",
			"fresh/project/sub/Makefile": "all:\n\t@echo made in sub\n",
			"fresh/project/package.json": `{"scripts": {"test": "echo tested"}}`,
			"fresh/project/data/file":    "data\n",
		} {
			f.write(path, text, 0o644)
		}
		f.write("fresh/project/untrusted", "#!/bin/sh\necho untrusted\n", 0o755)
		f.write("fresh/project/server", "#!/bin/sh\nexec sleep 1000\n", 0o755)
		home, run := f.path("fresh"), f.path("run")
		if err := os.Mkdir(run, 0o700); err != nil {
			f.Fatal(err)
		}
		f.own()
		env := []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + run, "PATH=" + filepath.Dir(sbxrun) + ":/usr/local/bin:/usr/bin:/bin"}
		if f.who.noCgroup != "" {
			env = append(env, "SBXRUN_ALLOW_DEGRADED=cgroup")
		}
		if o := f.do(call{args: f.who.command("git", "init", "-q", filepath.Join(home, "project")), env: env}); o.code != 0 {
			f.Fatal(o)
		}
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			f.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) { f.examples(t, texts[name], home, env) })
		}
	})
}

// examples types the examples of a text, one after the other, in one shell.
func (f *fixture) examples(t *testing.T, list []example, home string, env []string) {
	script := "cd " + home + "/project || exit\nexec </dev/null 2>&1\n"
	if list[0].line == "mkdir demo && cd demo && git init -q ." {
		script = "cd " + home + " || exit\nexec </dev/null 2>&1\n"
	}
	typed := map[int]example{}
	for i, e := range list {
		switch {
		case e.line == "sbxrun doctor" && (f.who.uid == 0 || list[0].line != "make run"):
			continue // it takes long: once is enough
		case notRun[e.line] != "", isRoot() && f.who.uid == 0 && notRunAsRoot[e.line] != "":
			continue
		case f.who.noCgroup != "" && (e.line == "sbxrun doctor" || e.shown):
			continue // doctor says so, and each run
		}
		typed[i] = e
		script += before[e.line] + "\necho '@begin " + strconv.Itoa(i) + "'\n"
		if serves := servers[e.line]; serves != "" {
			line := strings.ReplaceAll(strings.TrimSuffix(e.line, " &"), ":7777", ":0") // for two users at a time
			script += line + " &>served & p=$!; for _ in {1..300}; do " + serves + " &>/dev/null && break; sleep 0.1; done; " + serves + "; s=$?; kill $p; wait $p; cat served; (exit $s)"
		} else {
			script += e.line
		}
		script += "\necho \"@end $?\"\n"
	}
	script += "for id in $(sbxrun session ls | awk 'NR > 1 {print $1}'); do sbxrun session rm --force $id; done\n" +
		"kill $(jobs -p) 2>/dev/null; wait\n"
	file := f.write("script", script, 0o644)
	// The shell is no shell for one command, but one that somebody types into.
	o := f.do(call{args: f.who.command("bash", file), env: env, timeout: 3 * time.Minute})
	outputs := map[int]string{}
	ends := map[int]string{}
	for part := range strings.SplitSeq(o.stdout, "@begin ") {
		number, rest, _ := strings.Cut(part, "\n")
		if i, err := strconv.Atoi(number); err == nil {
			outputs[i], rest, _ = strings.Cut(rest, "@end ")
			ends[i], _, _ = strings.Cut(rest, "\n")
		}
	}
	plain := func(s string) string {
		return changeSetID.ReplaceAllString(strings.ReplaceAll(s, filepath.Join(home, "demo"), "/home/you/demo"), "ID")
	}
	for i, e := range typed {
		switch {
		case e.shown && plain(outputs[i]) != plain(e.output):
			t.Errorf("%s\nprints\n%sand the text says\n%s", e.line, outputs[i], e.output)
		case !e.shown && ends[i] != fmt.Sprint(fails[e.line]):
			t.Errorf("%s\nended with %q:\n%s", e.line, ends[i], outputs[i])
		}
	}
	if len(ends) < len(typed) {
		t.Errorf("the shell ended early: %v", o)
	}
}
