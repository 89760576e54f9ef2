//go:build unix

package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/command"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
)

type bashArguments struct {
	Command     string   `json:"command" jsonschema:"the script, for bash"`
	Timeout     int64    `json:"timeout,omitempty" jsonschema:"time limit in milliseconds, at most 600000 and at most the operator's"`
	Description string   `json:"description,omitempty" jsonschema:"what the command does, in a few words; for people"`
	Background  bool     `json:"run_in_background,omitempty" jsonschema:"do not wait for the end: returns an id for bash_output and bash_kill"`
	Disable     bool     `json:"dangerouslyDisableSandbox,omitempty" jsonschema:"refused unless the operator allows it: commands run in the sandbox"`
	Explain     bool     `json:"explain,omitempty" jsonschema:"also report what the command looks for and the sandbox does not show: for a second try of what failed, as it takes time"`
	Encoding    Encoding `json:"output_encoding,omitempty" jsonschema:"base64 for output that is no text"`
	SessionID   string   `json:"session_id,omitempty" jsonschema:"the session to run in; without it the connection's own"`
	Cwd         string   `json:"cwd,omitempty" jsonschema:"directory to run in, for this call; without it where the last command of the session ended"`
}

type executeArguments struct {
	Command   string   `json:"command,omitempty" jsonschema:"a shell command; this or argv"`
	Argv      []string `json:"argv,omitempty" jsonschema:"a program and its arguments, run without a shell; this or command"`
	Timeout   int64    `json:"timeout,omitempty" jsonschema:"time limit in milliseconds, at most 600000 and at most the operator's"`
	Encoding  Encoding `json:"output_encoding,omitempty" jsonschema:"base64 for output that is no text"`
	SessionID string   `json:"session_id,omitempty" jsonschema:"the session to run in; without it the connection's own"`
	Cwd       string   `json:"cwd,omitempty" jsonschema:"directory to run in"`
}

type executeResult struct {
	Allowed  bool              `json:"allowed" jsonschema:"whether the command policy let it run"`
	Refusals []command.Refusal `json:"refusals" jsonschema:"which words were refused, and why"`
	Result   *Result           `json:"result,omitempty"`
}

type shellArguments struct {
	Script    string   `json:"script" jsonschema:"the script"`
	Shell     string   `json:"shell,omitempty" jsonschema:"bash (the default) or sh"`
	Args      []string `json:"args,omitempty" jsonschema:"what the script has as $1, $2, …"`
	Timeout   int64    `json:"timeout,omitempty" jsonschema:"time limit in milliseconds, at most 600000 and at most the operator's"`
	Encoding  Encoding `json:"output_encoding,omitempty" jsonschema:"base64 for output that is no text"`
	SessionID string   `json:"session_id,omitempty" jsonschema:"the session to run in; without it the connection's own"`
	Cwd       string   `json:"cwd,omitempty" jsonschema:"directory to run in"`
}

type pythonArguments struct {
	Code         string   `json:"code" jsonschema:"a Python 3 program; the value of a last expression is in the result"`
	Dependencies []string `json:"dependencies,omitempty" jsonschema:"what pip is to install first, into the session's own virtual environment: requests, pandas>=2"`
	Timeout      int64    `json:"timeout,omitempty" jsonschema:"time limit in milliseconds, at most 600000 and at most the operator's"`
	SessionID    string   `json:"session_id,omitempty" jsonschema:"the session to run in; without it the connection's own"`
	Cwd          string   `json:"cwd,omitempty" jsonschema:"directory to run in"`
}

// timed bounds the arguments that several tools have.
func timed(p map[string]*jsonschema.Schema) {
	p["timeout"].Minimum, p["timeout"].Maximum = new(1.0), new(float64(maxTimeout))
	if p["output_encoding"] != nil {
		encoded(p)
	}
}

// encoded says which words there are for an encoding.
func encoded(p map[string]*jsonschema.Schema) {
	p["output_encoding"].Enum = []any{"utf-8", string(inBase64)}
}

func checkScript(name, s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return fmt.Errorf("%s is empty", name)
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("%s holds a NUL byte", name)
	case len(s) > maxScript:
		return fmt.Errorf("%s has %d bytes, and %d are possible: write it to a file with sandbox_fs_write, and run that",
			name, len(s), maxScript)
	}
	return nil
}

// in looks up the session of a call, after its words were checked, of which one is a
// path.
func (s *Server) in(id, name, path string) (*box, []string, error) {
	if err := checkPath(name, path); err != nil {
		return nil, nil, err
	}
	b, fresh, err := s.session(id)
	if fresh {
		return b, []string{"the connection's session had ended; this is a new one, with empty private directories"}, err
	}
	return b, nil, err
}

func (s *Server) addCommandTools() {
	runs := func(title string) *mcp.ToolAnnotations { return &mcp.ToolAnnotations{Title: title} }
	add(s, &mcp.Tool{
		Name: "bash",
		Description: "Run a bash script in the sandbox. The working directory persists from one call to the next, as does what it leaves running in the background; variables do not. " +
			"Standard input is empty. Of long output the middle is left out: print it to a file, and read that by parts.",
		Annotations: runs("Run a bash script"),
		Meta:        mcp.Meta{"anthropic/maxResultSizeChars": 4 * maxText},
	}, timed, s.callBash)
	add(s, &mcp.Tool{
		Name:        "execute_command",
		Description: "Run a command if the command policy allows it; a refusal names the word and the reason. Give command (for a shell) or argv (without one).\n" + s.config.Rules.Describe(),
		Annotations: runs("Run an allowed command"),
	}, func(p map[string]*jsonschema.Schema) {
		timed(p)
		p["argv"].Types, p["argv"].Type, p["argv"].MinItems = nil, "array", new(1)
	}, s.callExecute)
	add(s, &mcp.Tool{
		Name:        "shell_execute",
		Description: "Run a script by bash or sh with arguments. Unlike bash, it does not change where the session's next command starts.",
		Annotations: runs("Run a shell script"),
	}, func(p map[string]*jsonschema.Schema) {
		timed(p)
		p["shell"].Enum = []any{"bash", "sh"}
		p["args"].Types, p["args"].Type = nil, "array"
	}, s.callShell)
	add(s, &mcp.Tool{
		Name:        "python_execute",
		Description: "Run a Python 3 program in the sandbox. The value of a last expression is in the result, as repr() prints it. Nothing but files and installed dependencies persists from one call to the next; dependencies come from the package index that the operator set up, if the network rules reach it.",
		Annotations: runs("Run Python"),
	}, func(p map[string]*jsonschema.Schema) {
		timed(p)
		p["dependencies"].Types, p["dependencies"].Type, p["dependencies"].MaxItems = nil, "array", new(maxDependencies)
	}, s.callPython)
	s.addBackgroundTools()
}

func (s *Server) callBash(ctx context.Context, req *mcp.CallToolRequest,
	in bashArguments) (*mcp.CallToolResult, *Result, error) {
	if err := checkScript("command", in.Command); err != nil {
		return nil, nil, err
	}
	var bare *session.Environment
	if in.Disable {
		var err error
		if bare, err = s.openBare(); err != nil {
			return nil, nil, err
		}
		if bare == nil {
			s.denied("bash", in.SessionID, []string{"bash", "-c", in.Command},
				driver.Denial{Operation: "dangerouslyDisableSandbox", Target: "the host", Rule: "agents.unsandboxed",
					Grant: "agents.unsandboxed: true"})
			return nil, nil,
				errors.New(
					"dangerouslyDisableSandbox is refused: the operator does not allow it; call again without it, the command will run in the sandbox")
		}
	}
	b, notes, err := s.in(in.SessionID, "cwd", in.Cwd)
	if err != nil {
		return nil, nil, err
	}
	t := task{tool: "bash", cwd: in.Cwd, timeout: in.Timeout, env: bare, as: in.Encoding}
	if bare != nil && in.Cwd == "" && !policy.Below(b.at(""), dirOf(bare.Policy)) {
		// Where the session is, is not there on the host, or is another place.
		t.cwd = dirOf(bare.Policy)
	}
	var out *Result
	switch {
	case in.Background:
		out, err = s.background(ctx, b, t, in.Command)
	case bare != nil:
		t.args = []string{"bash", "-c", in.Command}
		if out, _, err = s.run(ctx, req, b, t); out != nil {
			err = nil
		}
	default:
		out, err = s.bash(ctx, req, b, in)
	}
	if err != nil {
		return nil, nil, err
	}
	out.Notes = append(notes, out.Notes...)
	return out.content(), out, nil
}

// openBare returns the bare host to run in, nil if the operator does not allow it.
func (s *Server) openBare() (*session.Environment, error) {
	if s.config.Bare == nil {
		return nil, nil
	}
	e, err := s.config.Bare(s.ctx)
	if e == nil || err != nil {
		return nil, err
	}
	s.bareMu.Lock()
	defer s.bareMu.Unlock()
	for _, known := range s.bare {
		if known.Policy == e.Policy && known.Why == e.Why {
			return known, nil // the new one holds nothing
		}
	}
	s.bare = append(s.bare, e)
	return e, nil
}

func (s *Server) callExecute(ctx context.Context, req *mcp.CallToolRequest,
	in executeArguments) (*mcp.CallToolResult, executeResult, error) {
	out := executeResult{Refusals: []command.Refusal{}}
	if (in.Command == "") == (len(in.Argv) == 0) {
		return nil, out, errors.New("give either command or argv")
	}
	var decision command.Decision
	args := in.Argv
	if in.Command != "" {
		if err := checkScript("command", in.Command); err != nil {
			return nil, out, err
		}
		decision, args = s.config.Rules.Check(in.Command), []string{"bash", "-c", in.Command}
	} else {
		for _, a := range args {
			if strings.ContainsRune(a, 0) || len(a) > maxScript {
				return nil, out, errors.New("argv holds a NUL byte or an argument that is too long")
			}
		}
		decision = s.config.Rules.CheckArgs(args)
	}
	if !decision.Allowed {
		for _, r := range decision.Refusals {
			s.denied("execute_command", in.SessionID, args,
				driver.Denial{Operation: "execute", Target: r.Word, Rule: "command policy", Reason: r.String()})
		}
		out.Refusals = append(out.Refusals, decision.Refusals...)
		words := []string{"refused by the command policy, nothing ran"}
		for _, r := range decision.Refusals {
			words = append(words, r.String())
		}
		res := text(remarks(words...))
		res.IsError = true
		return res, out, nil
	}
	res, r, err := s.call(ctx, req, in.SessionID,
		task{tool: "execute_command", args: args, cwd: in.Cwd, timeout: in.Timeout, as: in.Encoding})
	out.Allowed, out.Result = r != nil, r
	return res, out, err
}

func (s *Server) callShell(ctx context.Context, req *mcp.CallToolRequest,
	in shellArguments) (*mcp.CallToolResult, *Result, error) {
	if err := checkScript("script", in.Script); err != nil {
		return nil, nil, err
	}
	for _, a := range in.Args {
		if strings.ContainsRune(a, 0) || len(a) > maxScript {
			return nil, nil, errors.New("args holds a NUL byte or an argument that is too long")
		}
	}
	shell := cmp.Or(in.Shell, "bash")
	return s.call(ctx, req, in.SessionID,
		task{tool: "shell_execute", args: append([]string{shell, "-c", in.Script, shell}, in.Args...), cwd: in.Cwd,
			timeout: in.Timeout, as: in.Encoding})
}

// call runs a command in a session.
func (s *Server) call(ctx context.Context, req *mcp.CallToolRequest, id string,
	t task) (*mcp.CallToolResult, *Result, error) {
	b, notes, err := s.in(id, "cwd", t.cwd)
	if err != nil {
		return nil, nil, err
	}
	out, _, err := s.run(ctx, req, b, t)
	if out == nil {
		return nil, nil, err
	}
	out.Notes = append(notes, out.Notes...)
	return out.content(), out, nil
}
