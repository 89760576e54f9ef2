package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A caller is one way in which Claude Code 2.1 runs the commands of its Bash tool. The
// programs and arguments are those that strace(1) shows of the real one; test/agents runs
// the real one. What it does besides, above all asking its model, is left out.
type caller struct {
	name string
	env  []string
	cwd  string // the file in which a script tells its directory
	file string // both streams

	hook    []string // is asked about each call, if there is one
	argv    func(script string) []string
	snap    string // sourced by the script, "" for none
	sandbox string // SBXRUN_SANDBOX, as the command is to see it
	session bool
	started int
}

// calls measures what a call of Claude Code's Bash tool takes, by way of integration.
func (b *bench) calls() error {
	const section, first = "calls", "first calls"
	rounds, firsts := pick(b, 20, 100), pick(b, 4, 20)
	ws := filepath.Join(b.dir, "calls")
	if err := os.MkdirAll(filepath.Join(ws, "project"), 0o755); err != nil {
		return err
	}
	ws, err := filepath.EvalSymlinks(ws)
	if err != nil {
		return err
	}
	// The agent is this process, and its directory is the workspace.
	was, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Chdir(filepath.Join(ws, "project")); err != nil {
		return err
	}
	defer os.Chdir(was)

	var all []*caller
	defer func() {
		for _, c := range all {
			c.endSession(b.sbxrun)
		}
	}()
	for _, w := range []struct{ name, way, session string }{
		{"none", "none", ""},
		{"prefix, a session", "prefix", "auto"}, {"shell, a session", "shell", "auto"}, {"hook, a session", "hook", "auto"},
		{"prefix", "prefix", ""}, {"shell", "shell", ""}, {"hook", "hook", ""},
	} {
		c, err := b.newCaller(ws, w.name, w.way, w.session)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		all = append(all, c)
	}
	measure := func(section string, rounds int, begin func(*caller) error, list []*caller) error {
		got := make([]samples, len(list))
		for i := range got {
			got[i] = samples{}
		}
		for round := -2; round < rounds; round++ {
			for _, i := range rand.Perm(len(list)) {
				if err := begin(list[i]); err != nil {
					return err
				}
				took, err := list[i].call()
				if err != nil {
					return fmt.Errorf("%s: %w", list[i].name, err)
				}
				if round >= 0 {
					got[i][round] = took.Seconds() * 1e3
				}
			}
		}
		none := quantile(got[0].values(), 0.5)
		for i, c := range list {
			b.report.add(measured(section, c.name, "", "ms", got[i], got[0], fmt.Sprintf("adds %s ms", number(quantile(got[i].values(), 0.5)-none))))
		}
		b.report.print(os.Stdout, section)
		return nil
	}
	b.report.begin(section, "A call of Claude Code's Bash tool (one builtin), from the hook or the shell to the shell's end; ratio to none")
	if err := measure(section, rounds, func(*caller) error { return nil }, all); err != nil {
		return err
	}
	b.report.begin(first, "The same, where the call makes the session")
	list := all[:1:1]
	for _, c := range all {
		if c.session {
			list = append(list, c)
		}
	}
	return measure(first, firsts, func(c *caller) error { return c.endSession(b.sbxrun) }, list)
}

// newCaller integrates Claude Code for a user of its own, and reads how it then calls.
func (b *bench) newCaller(ws, name, way, session string) (*caller, error) {
	dir := filepath.Join(ws, strings.NewReplacer(",", "", " ", "-").Replace(name))
	home, tmp, run := filepath.Join(dir, "home"), filepath.Join(dir, "tmp"), filepath.Join(dir, "run")
	snaps := filepath.Join(home, ".claude", "shell-snapshots")
	if err := errors.Join(os.MkdirAll(snaps, 0o755), os.Mkdir(tmp, 0o700), os.Mkdir(run, 0o700)); err != nil {
		return nil, err
	}
	c := &caller{name: name, session: session != "", sandbox: "aicode", file: filepath.Join(dir, "output"), cwd: filepath.Join(tmp, "claude-62fa-cwd"), snap: filepath.Join(snaps, "snapshot-bash-1795532398791-ock0ms.sh"),
		env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "LANG=C.UTF-8", "TERM=dumb", "SHELL=/bin/bash", "TMPDIR=" + tmp, "XDG_RUNTIME_DIR=" + run,
			"CLAUDECODE=1", "CLAUDE_CODE_ENTRYPOINT=cli", "GIT_EDITOR=true", "ANTHROPIC_API_KEY=none"}}
	var functions bytes.Buffer
	functions.WriteString("unalias -a 2>/dev/null || true\nshopt -s expand_aliases\n")
	for i := range 50 {
		fmt.Fprintf(&functions, "f%d () \n{ \n    local a=\"$1\";\n    echo \"$a\" | sed 's/a/b/'\n}\n", i)
	}
	if err := os.WriteFile(c.snap, functions.Bytes(), 0o644); err != nil {
		return nil, err
	}
	direct := func(script string) []string { return []string{"/bin/bash", "-c", script} }
	if way == "none" {
		c.argv, c.sandbox = direct, ""
		return c, nil
	}
	args := append([]string{"integrate", "claude-code", "--quiet"}, b.extra...)
	if session != "" {
		args = append(args, "--session", session)
	}
	if way == "hook" {
		args = append(args, "--by", "hook")
	}
	cmd := exec.Command(b.sbxrun, args...)
	cmd.Env = c.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, firstLine(string(out)))
	}
	text, err := os.ReadFile(filepath.Join(home, ".claude", "settings.json"))
	if err != nil {
		return nil, err
	}
	var settings struct {
		Env   map[string]string
		Hooks struct {
			PreToolUse []struct {
				Hooks []struct{ Command string }
			}
		}
	}
	if err := json.Unmarshal(text, &settings); err != nil {
		return nil, err
	}
	prefix := settings.Env["CLAUDE_CODE_SHELL_PREFIX"]
	switch way {
	case "hook":
		c.hook, c.argv = []string{"/bin/sh", "-c", settings.Hooks.PreToolUse[0].Hooks[0].Command}, direct
	case "prefix":
		c.argv = func(script string) []string { return direct(prefix + " " + quoted(script)) }
	case "shell": // it has no snapshot, and is a login shell
		c.snap = ""
		c.argv = func(script string) []string { return []string{strings.TrimSuffix(prefix, " -c"), "-c", "-l", script} }
	}
	return c, nil
}

// call runs a command, and sees that it ran where it was to.
func (c *caller) call() (time.Duration, error) {
	c.started++
	want := fmt.Sprint("call ", c.started)
	command := `test "$SBXRUN_SANDBOX" = "` + c.sandbox + `" && echo ` + want
	if err := os.RemoveAll(c.cwd); err != nil {
		return 0, err
	}
	out, err := os.Create(c.file)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	start := time.Now()
	if c.hook != nil {
		ask, err := json.Marshal(map[string]any{"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": map[string]any{"command": command, "description": "a call"}})
		if err != nil {
			return 0, err
		}
		cmd := exec.Command(c.hook[0], c.hook[1:]...)
		cmd.Env, cmd.Stdin = c.env, bytes.NewReader(ask)
		said, err := cmd.Output()
		if err != nil {
			return 0, err
		}
		var answer struct {
			HookSpecificOutput struct{ UpdatedInput struct{ Command string } }
		}
		if err := json.Unmarshal(said, &answer); err != nil {
			return 0, err
		}
		command = answer.HookSpecificOutput.UpdatedInput.Command
	}
	script := `\builtin shopt -u extglob 2>/dev/null || true && eval ` + quoted(command) + " < /dev/null && pwd -P >| " + c.cwd
	if c.snap != "" {
		script = "source " + c.snap + " 2>/dev/null || true && " + script
	}
	argv := c.argv(script)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.env, out, out
	err = cmd.Run()
	took := time.Since(start)
	said, _ := os.ReadFile(c.file)
	told, _ := os.ReadFile(c.cwd)
	if dir, e := os.Getwd(); err != nil || e != nil || string(said) != want+"\n" || string(told) != dir+"\n" {
		return 0, fmt.Errorf("%v: it said %q, and told the directory %q", err, said, told)
	}
	return took, nil
}

// quoted makes one word of a text, as Claude Code does.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }

// endSession removes the agent's session, so that the next call makes one.
func (c *caller) endSession(sbxrun string) error {
	if !c.session {
		return nil
	}
	ask := func(args ...string) ([]byte, error) {
		cmd := exec.Command(sbxrun, append([]string{"session"}, args...)...)
		cmd.Env = c.env
		return cmd.Output()
	}
	out, err := ask("ls", "--json")
	if err != nil {
		return err
	}
	var list []struct{ ID string }
	if err := json.Unmarshal(out, &list); err != nil {
		return err
	}
	for _, s := range list {
		if _, err := ask("rm", "--force", s.ID); err != nil {
			return err
		}
	}
	return nil
}
