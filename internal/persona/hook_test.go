package persona

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func call(tool, input string) []byte {
	return []byte(`{"session_id":"s","cwd":"/x","hook_event_name":"PreToolUse","tool_name":"` + tool + `","tool_input":` + input + `}`)
}

func TestHook(t *testing.T) {
	h := &Hook{Program: []string{"/opt/my sbxrun", "shell", "--profile", "it's"}}
	out, err := h.Answer(call("Bash", `{"command":"echo 'a' > b && c","timeout":1000,"run_in_background":true,"description":"d","later":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		HookSpecificOutput map[string]json.RawMessage
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	g := got.HookSpecificOutput
	if _, ok := g["permissionDecision"]; ok || string(g["hookEventName"]) != `"PreToolUse"` {
		t.Errorf("%s", out)
	}
	var in struct {
		Command, Description string
		Timeout              int
		Background           bool `json:"run_in_background"`
		Later                []int
	}
	if err := json.Unmarshal(g["updatedInput"], &in); err != nil || in.Timeout != 1000 || !in.Background || in.Description != "d" || len(in.Later) != 1 {
		t.Errorf("%v %s", err, out)
	}
	if want := `'/opt/my sbxrun' 'shell' '--profile' 'it'"'"'s' --cwd-fd 3 -- -c 'echo '"'"'a'"'"' > b && c' 3>&1`; !strings.Contains(in.Command, want) {
		t.Errorf("%s\nlacks %s", in.Command, want)
	}
	if out, err := h.Answer(call("Read", `{"file_path":"/x"}`)); err != nil || out != nil {
		t.Errorf("%s %v", out, err)
	}
	if out, err := (&Hook{Decision: "allow"}).Answer(call("Bash", `{"command":"x"}`)); err != nil || !strings.Contains(string(out), `"permissionDecision":"allow"`) {
		t.Errorf("%s %v", out, err)
	}
	for _, c := range [][]byte{call("PowerShell", `{"command":"x"}`), call("Bash", `{"command":"x","dangerouslyDisableSandbox":true}`), call("Bash", `{"command":"x","dangerouslyDisableSandbox":"yes"}`), call("Bash", `{"command":"a\u0000b"}`)} {
		if out, err := h.Answer(c); err != nil || !strings.Contains(string(out), `"permissionDecision":"deny"`) || strings.Contains(string(out), "updatedInput") {
			t.Errorf("%s: %s %v", c, out, err)
		}
	}
	// What is not understood is blocked.
	for _, c := range []string{
		``, `{`, `[]`, `null`, `{}`, `{"hook_event_name":"PreToolUse"}`,
		`{"hook_event_name":"PostToolUse","tool_name":"Bash","tool_input":{"command":"x"}}`,
		`{"hook_event_name":"PreToolUse","tool_name":"Bash"}`,
		string(call("Bash", `{}`)), string(call("Bash", `{"Command":"x"}`)), string(call("Bash", `{"command":["x"]}`)), string(call("Bash", `"x"`)),
		string(call("Bash", `{"command":"x","command":"y"}`)), string(call("Bash", `{"command":"x"}`)) + `{}`,
		`{"hook_event_name":"PreToolUse","tool_name":"Read","tool_name":"Bash","tool_input":{"command":"x"}}`,
	} {
		if out, err := h.Answer([]byte(c)); err == nil {
			t.Errorf("%s: %s", c, out)
		}
	}
}

// TestHookOutside: a command that is not to be sandboxed is left as it is, and nobody
// is left in the dark; what lets a sandboxed one pass unasked does not let this one.
func TestHookOutside(t *testing.T) {
	var left []string
	h := &Hook{Program: []string{"/sbxrun", "shell"}, Outside: "rollout.enabled is false", Left: func(tool, command, why string) error {
		left = append(left, tool+" "+command)
		return nil
	}}
	const note = "NOT SANDBOXED: this runs on the host with all that its user can do, because rollout.enabled is false"
	for decision, want := range map[string]string{"": "", "allow": "", "ask": `"permissionDecision":"ask",`} {
		h.Decision, left = decision, nil
		for _, tool := range []string{"Bash", "Monitor", "PowerShell"} {
			out, err := h.Answer(call(tool, `{"command":"rm x"}`))
			if s := `{"systemMessage":"sbxrun: ` + note + `","hookSpecificOutput":{"hookEventName":"PreToolUse",` + want + `"additionalContext":"` + note + `"}}`; err != nil || string(out) != s {
				t.Errorf("%s %v, want %s", out, err, s)
			}
		}
		if strings.Join(left, "|") != "Bash rm x|Monitor rm x|PowerShell rm x" {
			t.Errorf("%q", left)
		}
	}
	left = nil
	if out, err := h.Answer(call("Bash", `{"command":"x","dangerouslyDisableSandbox":true}`)); err != nil || !strings.Contains(string(out), `"deny"`) || strings.Contains(string(out), "run in a sandbox") {
		t.Errorf("%s %v", out, err)
	}
	if out, err := h.Answer(call("Bash", `{}`)); err == nil {
		t.Errorf("%s", out)
	}
	if len(left) != 0 {
		t.Errorf("%q", left)
	}
	// Without a record it does not run.
	h.Left = func(string, string, string) error { return os.ErrPermission }
	if out, err := h.Answer(call("Bash", `{"command":"x"}`)); err == nil {
		t.Errorf("%s", out)
	}
}

// TestHookBare: where the operator allows it, a call that asks for the host has it,
// with the record; every other stays in the sandbox.
func TestHookBare(t *testing.T) {
	var left []string
	h := &Hook{Program: []string{"/sbxrun", "shell"}, Decision: "allow", Bare: "so it is", Left: func(tool, command, why string) error {
		left = append(left, tool+" "+command+" "+why)
		return nil
	}}
	out, err := h.Answer(call("Bash", `{"command":"x","dangerouslyDisableSandbox":true}`))
	if err != nil || !strings.Contains(string(out), "NOT SANDBOXED: this runs on the host with all that its user can do, because so it is") || strings.Contains(string(out), "updatedInput") || strings.Contains(string(out), "permissionDecision") {
		t.Errorf("%s %v", out, err)
	}
	if strings.Join(left, "|") != "Bash x so it is" {
		t.Errorf("%q", left)
	}
	for more, want := range map[string]string{``: "updatedInput", `,"dangerouslyDisableSandbox":false`: "updatedInput", `,"dangerouslyDisableSandbox":"true"`: `"deny"`, `,"dangerouslyDisableSandbox":1`: `"deny"`} {
		if out, err := h.Answer(call("Bash", `{"command":"x"`+more+`}`)); err != nil || !strings.Contains(string(out), want) || len(left) != 1 {
			t.Errorf("%s: %s %v %q", more, out, err, left)
		}
	}
	h.Left = func(string, string, string) error { return os.ErrPermission }
	if out, err := h.Answer(call("Bash", `{"command":"x","dangerouslyDisableSandbox":true}`)); err == nil {
		t.Errorf("%s", out)
	}
}

// TestRewriteInShell: the rewritten command keeps code, streams and directory, and
// nothing of the command runs but by the program.
func TestRewriteInShell(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// It stands for sbxrun shell, notes its arguments and tells a directory.
	fake := filepath.Join(dir, "it's sbxrun")
	if err := os.WriteFile(fake, []byte(`#!/bin/sh
printf '%s\n' "$@" "$A_HOME" > "`+dir+`/args"
echo out; echo err >&2; echo "`+dir+`/a b" >&3
exit 7
`), 0o755); err != nil {
		t.Fatal(err)
	}
	os.Mkdir(dir+"/a b", 0o755)
	for _, command := range []string{"true", "it's; touch " + dir + "/ran", "$(touch " + dir + "/ran)", "`touch " + dir + "/ran`", "'\ntouch " + dir + "/ran\n'", `"; touch ` + dir + `/ran; "`, "' --cwd-fd 9 -- -c '"} {
		h := &Hook{Program: []string{fake, "shell"}, Env: []string{"A_HOME=/it's $(touch " + dir + "/ran)"}}
		for _, shell := range []string{"bash", "sh"} {
			// As Claude Code runs it.
			rewritten := h.rewrite(command)
			if shell == "sh" {
				rewritten = strings.ReplaceAll(rewritten, `\builtin `, "")
			}
			cmd := exec.Command(shell, "-c", "eval "+Quote(rewritten)+" < /dev/null; echo code $?; pwd -P")
			cmd.Dir = dir
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || string(out) != "out\ncode 7\n"+dir+"/a b\n" || stderr.String() != "err\n" {
				t.Errorf("%s %q: %v %q %q", shell, command, err, out, stderr.String())
			}
			args, _ := os.ReadFile(dir + "/args")
			if want := "shell\n--cwd-fd\n3\n--\n-c\n" + command + "\n/it's $(touch " + dir + "/ran)\n"; string(args) != want {
				t.Errorf("arguments %q, want %q", args, want)
			}
			if _, err := os.Stat(dir + "/ran"); err == nil {
				t.Fatalf("%q ran outside", command)
			}
		}
	}
}

func FuzzHook(f *testing.F) {
	f.Add(call("Bash", `{"command":"x"}`))
	f.Add([]byte(`{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":"x","command":"y"}}`))
	h := &Hook{Program: []string{"/sbxrun", "shell"}}
	outside := &Hook{Program: h.Program, Decision: "allow", Outside: "it is not"}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := h.Answer(in)
		if err != nil || out == nil {
			return
		}
		var got struct {
			HookSpecificOutput struct {
				PermissionDecision string
				UpdatedInput       struct{ Command string }
			}
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		o := got.HookSpecificOutput
		if o.PermissionDecision != "deny" && !strings.HasPrefix(o.UpdatedInput.Command, "{ __sbxrun=$('/sbxrun' 'shell' --cwd-fd 3 -- -c '") {
			t.Fatalf("%s", out)
		}
		// Left to the agent it is neither changed nor allowed, and what is not
		// understood is blocked all the same.
		if left, err := outside.Answer(in); err == nil && left != nil && (bytes.Contains(left, []byte("updatedInput")) || bytes.Contains(left, []byte(`"allow"`)) || !bytes.Contains(left, []byte("SANDBOXED")) && !bytes.Contains(left, []byte(`"deny"`))) {
			t.Fatalf("%s", left)
		}
	})
}
