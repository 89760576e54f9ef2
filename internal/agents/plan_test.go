package agents

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestUndo: whatever was changed since, and by whatever flags it is undone, what the
// plan put in goes and what was there comes back, or nothing is done and that is said.
func TestUndo(t *testing.T) {
	hook, other := Options{By: "hook", Flags: []string{"--ro", "/srv"}}, Options{Flags: []string{"--memory", "1g"}}
	change := func(s string) string { return strings.Replace(s, `"model": "a"`, `"model": "b"`, 1) }
	for name, tt := range map[string]struct {
		before string // of settings.json; "" is none
		apply  []Options
		since  func(string) string
		undo   Options
		want   string // "" is none
		err    string
	}{
		"a prefix of one's own":        {before: `{"model": "a", "env": {"CLAUDE_CODE_SHELL_PREFIX": "/my/wrapper", "X": "y"}}`, apply: []Options{{}}, since: change, want: `{"model": "b", "env": {"CLAUDE_CODE_SHELL_PREFIX": "/my/wrapper", "X": "y"}}`},
		"what is empty":                {before: `{"model": "a", "env": {}}`, apply: []Options{{}}, since: change, want: `{"model": "b", "env": {}}`},
		"an empty list":                {before: `{"model": "a", "hooks": {"PreToolUse": []}}`, apply: []Options{hook}, since: change, want: `{"model": "b", "hooks": {"PreToolUse": []}}`},
		"other flags":                  {before: `{"model": "a"}`, apply: []Options{{}, other}, want: `{"model": "a"}`},
		"other flags, changed":         {before: `{"model": "a"}`, apply: []Options{{}, other}, since: change, want: `{"model": "b"}`},
		"undone without the flags":     {before: `{"model": "a"}`, apply: []Options{hook}, since: change, want: `{"model": "b"}`},
		"undone by the wrong means":    {before: `{"model": "a"}`, apply: []Options{{}}, since: change, undo: hook, want: `{"model": "b"}`},
		"other means after a change":   {before: `{"model": "a"}`, apply: []Options{{}, hook}, since: change, want: `{"model": "b"}`},
		"a member that is there twice": {before: `{"model": "a"}`, apply: []Options{{}}, since: func(s string) string { return strings.Replace(s, "{", `{"env": {}, `, 1) }, err: "is there twice"},
		"no file":                      {apply: []Options{{}, hook, other}},
	} {
		dir := t.TempDir()
		site := Site{Home: dir, Config: filepath.Join(dir, "config"), Data: filepath.Join(dir, "data"), State: filepath.Join(dir, "state"), Claude: filepath.Join(dir, "claude"), Sbxrun: "/usr/bin/sbxrun"}
		file, shell := filepath.Join(dir, "claude", "settings.json"), filepath.Join(dir, "data", "sbxrun", "agents", "claude-code", "bash")
		text := func() string { b, _ := os.ReadFile(file); return string(b) }
		there := func(name string) bool { _, err := os.Lstat(name); return err == nil }
		plan := func(o Options) *Plan {
			p, err := NewPlan("claude-code", site, o)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		if tt.before != "" {
			if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(tt.before), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		for i, o := range tt.apply {
			if _, err := plan(o).Apply(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			by := o.By == "hook"
			if now := text(); strings.Contains(now, "PreToolUse\": [\n") != by || strings.Contains(now, shell+" -c") == by || there(shell) == by {
				t.Errorf("%s: applied %d: %s", name, i, now)
			}
			if i == 0 && tt.since != nil {
				if err := os.WriteFile(file, []byte(tt.since(text())), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		was := text()
		_, err := plan(tt.undo).Undo()
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) || text() != was || !there(shell) || !there(plan(tt.undo).state) {
				t.Errorf("%s: %v; %s", name, err, text())
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.want == "" && there(filepath.Dir(file)), there(filepath.Join(dir, "data")), there(plan(tt.undo).state):
			t.Errorf("%s: something is left", name)
		}
		var is, want any
		json.Unmarshal([]byte(text()), &is)
		json.Unmarshal([]byte(tt.want), &want)
		if !reflect.DeepEqual(is, want) || tt.since == nil && text() != tt.want {
			t.Errorf("%s: %s", name, text())
		}
	}
}

// TestUndoKeeps: a directory that was there stays, though it is empty.
func TestUndoKeeps(t *testing.T) {
	dir := t.TempDir()
	site := Site{Home: dir, Config: filepath.Join(dir, "config"), Data: filepath.Join(dir, "data"), State: filepath.Join(dir, "state"), Claude: filepath.Join(dir, "claude"), Sbxrun: "/usr/bin/sbxrun"}
	if err := os.Mkdir(site.Claude, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan("claude-code", site, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apply(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Undo(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(site.Claude); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(site.Data); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestApplyAgain: with other flags, the agent has its sandbox at every moment, and if
// they cannot be had it keeps the one that it has.
func TestApplyAgain(t *testing.T) {
	dir := t.TempDir()
	site := Site{Home: dir, Config: filepath.Join(dir, "config"), Data: filepath.Join(dir, "data"), State: filepath.Join(dir, "state"), Sbxrun: "/usr/bin/sbxrun"}
	settings, shell := filepath.Join(dir, "config", "opencode", "opencode.json"), filepath.Join(dir, "data", "sbxrun", "agents", "opencode", "bash")
	plan := func(flags ...string) *Plan {
		p, err := NewPlan("opencode", site, Options{Flags: flags})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if _, err := plan().Apply(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := plan("--ro", "/srv").Apply()
	if err != nil {
		t.Fatal(err)
	}
	// What names the shell is not touched, and that is replaced in its place.
	if len(changes) != 1 || changes[0].Path != shell || changes[0].Before == nil || changes[0].After == nil {
		t.Errorf("%+v", changes)
	}
	if now, err := os.ReadFile(settings); err != nil || string(now) != string(before) {
		t.Errorf("%s, %v", now, err)
	}
	wrapper, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(settings, []byte("broken"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := plan("--ro", "/opt").Apply(); err == nil {
		t.Error("no error")
	}
	if now, err := os.ReadFile(shell); err != nil || string(now) != string(wrapper) {
		t.Errorf("%s, %v", now, err)
	}
}

// A session that there is has its own policy: what a plan writes down adds no flags of
// one, which every command would be refused for.
func TestPlanProfile(t *testing.T) {
	dir := t.TempDir()
	site := Site{Home: dir, Config: filepath.Join(dir, "config"), Data: filepath.Join(dir, "data"), State: filepath.Join(dir, "state"), Claude: filepath.Join(dir, "claude"), Sbxrun: "/usr/bin/sbxrun"}
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Flags: []string{"--ro", "/srv"}}, " --profile aicode --ro /srv"},
		{Options{Flags: []string{"--ro", "/srv"}, By: "hook"}, " --profile aicode --ro /srv"},
		{Options{Flags: []string{"--session", "one"}, Session: true}, " --ignore-env --session one"},
		{Options{Flags: []string{"--session", "one"}, Session: true, By: "hook"}, " --ignore-env --session one"},
	} {
		p, err := NewPlan("claude-code", site, tt.o)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := p.Changes()
		if err != nil {
			t.Fatal(err)
		}
		written := ""
		for _, c := range changes {
			written += strings.NewReplacer("'", "").Replace(string(c.After))
		}
		if !strings.Contains(written, tt.want) || tt.o.Session && strings.Contains(written, "--profile") {
			t.Errorf("%+v: %s", tt.o, written)
		}
	}
}

// TestCopilotHook: the hook denies the one tool, whatever the arguments of others say.
func TestCopilotHook(t *testing.T) {
	for call, denied := range map[string]bool{
		`{"sessionId":"x","toolName":"bash","toolArgs":{"command":"x"}}`:                                     true,
		`{"toolName": "bash", "toolArgs": {}}`:                                                               true,
		`{"toolName":"bash","toolArgs":{"command":"\"toolName\":\"view\""}}`:                                 true,
		`{"toolName":"view","toolArgs":{"path":"bash"}}`:                                                     false,
		`{"toolName":"sandbox-bash","toolArgs":{"command":"bash"}}`:                                          false,
		`{"toolName":"create","toolArgs":{"file_text":"{\"toolName\":\"bash\"} \\\"toolName\\\":\\\"bash"}}`: false,
	} {
		for _, shell := range []string{"sh", "bash"} {
			cmd := exec.Command(shell, "-c", copilotHook)
			cmd.Stdin = strings.NewReader(call)
			out, err := cmd.Output()
			if err != nil || strings.Contains(string(out), `"permissionDecision":"deny"`) != denied || !denied && len(out) > 0 {
				t.Errorf("%s: %v %s", call, err, out)
			}
		}
	}
}

// TestNoProgram: the error says what to do.
func TestNoProgram(t *testing.T) {
	_, err := NewPlan("codex", Site{Home: t.TempDir()}, Options{})
	var e *EditError
	if !errors.As(err, &e) || e.Hint() != "install it, or name it: --agent FILE" {
		t.Errorf("%v", err)
	}
}

// TestCodexShell: bash does what it is asked to, and what was refused since it began is said
// after it: of a command that succeeded not what programs do without.
func TestCodexShell(t *testing.T) {
	dir := t.TempDir()
	shell, refusals := dir+"/bash", dir+"/refusals"
	if err := os.WriteFile(shell, []byte(codexShell), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/env", []byte("set -u; trap 'echo twice' EXIT; trap - EXIT; exec 5</dev/null\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const lines = `printf '%s\n' "2 - write a   2" "3 + path %s b 3" "" "7 + torn 6" "5 - write c 5" "6 - write d  6" "4 - e 4" \
	'a[$(echo bad >&2)] + x a[$(echo bad >&2)]' >"$SBXRUN_REFUSALS"; `
	for _, tt := range []struct {
		script, out, err string
		code             int
	}{
		{"echo $0 $1 $SHELL", "x y /bin/bash\n", "", 0},
		{"cat; exit 7", "in", "", 7},
		{lines + "echo done", "done\n", "sbxrun: note: path %s b\n", 0},
		{lines + "exit 3", "", "sbxrun: note: write a\nsbxrun: note: path %s b\nsbxrun: note: write c\nsbxrun: note: 2 refusals more\n", 3},
		{"echo ${sbxrun_last-} $was $n $kind $text $code $-; : >\"$SBXRUN_REFUSALS\"; exit 1", "mine 5 6 7 8 huBc\n", "", 1},
		{"f 1; exec 2>&-; exit 1", "f\n", "", 1},
		{"unlink \"$SBXRUN_REFUSALS\"; exit 1", "", "", 1},
		{"kill -KILL $$ 2>/dev/null", "", "Killed", 137}, // bash says so, with its own line
	} {
		if err := os.WriteFile(refusals, []byte("\n1 + before    1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(shell, "-c", tt.script, "x", "y")
		// What bash obeys reaches only the one that runs the script.
		cmd.Env = append(os.Environ(), "SBXRUN_REFUSALS="+refusals, "was=mine", "n=5", "kind=6", "text=7", "code=8",
			"SHELLOPTS=braceexpand", "BASH_FUNC_f%%=() { echo f; }",
			"BASH_FUNC_read%%=() { echo read; }", "BASH_ENV="+dir+"/env")
		var out, errs strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("in"), &out, &errs
		cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != tt.code || out.String() != tt.out || errs.String() != tt.err &&
			(tt.err != "Killed" || !strings.Contains(errs.String(), tt.err)) {
			t.Errorf("%s: %d, %q, %q", tt.script, code, out.String(), errs.String())
		}
	}
}
