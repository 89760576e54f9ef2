package persona

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sbxrun/sbxrun/internal/strictjson"
)

// A Hook is what stands between Claude Code and its Bash tool, as a hook of the
// event PreToolUse.
type Hook struct {
	// Program is sbxrun and the flags of its shell.
	Program []string

	// Decision is what is said of the call: "allow" (it is not asked about), "ask"
	// or "" (its own rules decide).
	Decision string

	// Env are variables, NAME=VALUE, that Program is started with, beside those of
	// the agent's commands.
	Env []string

	// Outside says why commands are not sandboxed, "" if they are. They are left to
	// the agent as they are, and user and model are told.
	Outside string

	// Bare says why a call that says dangerouslyDisableSandbox is left to the agent
	// like that, "" if it is refused.
	Bare string

	// Left is called with each command that is left to the agent, and why that is;
	// its error blocks the call. Nil is not called.
	Left func(tool, command, why string) error
}

// Answer reads what Claude Code tells a hook and returns what to answer: nothing
// for a tool that runs no command. An error is one to block the call by: a hook
// that fails in any other way lets the command run as it was.
func (h *Hook) Answer(in []byte) ([]byte, error) {
	call, err := fields(in)
	if err != nil {
		return nil, fmt.Errorf("what Claude Code told the hook: %w", err)
	}
	var event, tool string
	if err := errors.Join(json.Unmarshal(call["hook_event_name"], &event),
		json.Unmarshal(call["tool_name"], &tool)); err != nil || event != "PreToolUse" {
		return nil, errors.New("this is no call of a hook for PreToolUse")
	}
	switch tool {
	case "Bash", "Monitor", "PowerShell":
	default:
		return nil, nil
	}
	input, err := fields(call["tool_input"])
	if err != nil {
		return nil, fmt.Errorf("the input of %s: %w", tool, err)
	}
	var command string
	if err := json.Unmarshal(input["command"], &command); err != nil {
		return nil, fmt.Errorf("the command of %s: %w", tool, err)
	}
	switch weaken, err := weakens(input); {
	case err != nil, weaken && h.Bare == "":
		return h.answer("deny", h.noWeakening(), nil)
	case weaken:
		return h.leave(tool, command, h.Bare)
	}
	if h.Outside != "" {
		return h.leave(tool, command, h.Outside)
	}
	if tool == "PowerShell" {
		return h.answer("deny", "there is no sandbox for PowerShell: use Bash", nil)
	}
	if bytes.ContainsRune([]byte(command), 0) {
		return h.answer("deny", "the command holds a NUL byte", nil)
	}
	rewritten, err := encode(h.rewrite(command))
	if err != nil {
		return nil, err
	}
	input["command"] = rewritten
	return h.answer(h.Decision, "", input)
}

// weakens reports whether a call asks for no sandbox. An error is one that nobody can
// read.
func weakens(input map[string]json.RawMessage) (weaken bool, err error) {
	if raw, ok := input["dangerouslyDisableSandbox"]; ok {
		err = json.Unmarshal(raw, &weaken)
	}
	return weaken, err
}

// noWeakening tells the model why such a call is refused.
func (h *Hook) noWeakening() string {
	if h.Outside != "" || h.Bare != "" {
		return "dangerouslyDisableSandbox is refused: call without it"
	}
	return "commands run in a sandbox that no call can leave: call without dangerouslyDisableSandbox"
}

// rewrite returns a command that runs another in the sandbox, and then changes to
// the directory in which that ended: sbxrun tells it only if the sandbox shows it.
func (h *Hook) rewrite(command string) string {
	var run bytes.Buffer
	for _, kv := range h.Env {
		name, v, _ := strings.Cut(kv, "=")
		run.WriteString(name + "=" + Quote(v) + " ")
	}
	for _, a := range h.Program {
		run.WriteString(Quote(a) + " ")
	}
	return "{ __sbxrun=$(" + run.String() + "--cwd-fd 3 -- -c " + Quote(command) +
		" 3>&1 1>&4 4>&-); __sbxrun_code=$?; } 4>&1; " +
		`[ -z "$__sbxrun" ] || \builtin cd -- "$__sbxrun"; (exit "$__sbxrun_code")`
}

// leave answers a call whose command stays as it is. That it need not be asked about
// was said of commands in a sandbox.
func (h *Hook) leave(tool, command, why string) ([]byte, error) {
	if h.Left != nil {
		if err := h.Left(tool, command, why); err != nil {
			return nil, err
		}
	}
	decision := h.Decision
	if decision == "allow" {
		decision = ""
	}
	note := "NOT SANDBOXED: this runs on the host with all that its user can do, because " + why
	return encode(reply{Message: "sbxrun: " + note,
		Specific: specific{Event: "PreToolUse", Decision: decision, Context: note}})
}

func (h *Hook) answer(decision, reason string, input map[string]json.RawMessage) ([]byte, error) {
	return encode(reply{Specific: specific{Event: "PreToolUse", Decision: decision, Reason: reason, Input: input}})
}

// reply is what Claude Code reads: a message for its user, and what is about the
// call.
type reply struct {
	Message  string   `json:"systemMessage,omitempty"`
	Specific specific `json:"hookSpecificOutput"`
}

type specific struct {
	Event    string                     `json:"hookEventName"`
	Decision string                     `json:"permissionDecision,omitempty"`
	Reason   string                     `json:"permissionDecisionReason,omitempty"`
	Input    map[string]json.RawMessage `json:"updatedInput,omitempty"`
	Context  string                     `json:"additionalContext,omitempty"` // for the model
}

// encode is json.Marshal that leaves &, < and > as they are: people read it.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// fields reads an object that has one meaning; see [strictjson.Check].
func fields(raw []byte) (m map[string]json.RawMessage, err error) {
	if err := strictjson.Check(raw); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &m); err != nil || m == nil {
		return nil, errors.New("not a JSON object")
	}
	return m, nil
}
