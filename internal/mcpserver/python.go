//go:build unix

package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/internal/quote"
)

const (
	maxDependencies = 100
	maxRequirement  = 500 // bytes
)

// python is a session's virtual environment: what its calls asked for, installed
// in there by pip, under the session's network rules. It is in private storage and
// goes with the session.
type python struct {
	busy chan struct{} // holds one token, which who changes the environment has
	dir  string        // "" until it is made
	has  []string      // requirements that were installed
}

func newPython() python {
	p := python{busy: make(chan struct{}, 1)}
	p.busy <- struct{}{}
	return p
}

// checkRequirement refuses what pip would take for more than a requirement.
func checkRequirement(r string) error {
	switch {
	case strings.TrimSpace(r) == "":
		return errors.New("dependencies has an empty one")
	case len(r) > maxRequirement:
		return fmt.Errorf("dependencies has one of %d bytes, and %d are possible", len(r), maxRequirement)
	case strings.HasPrefix(strings.TrimSpace(r), "-"):
		return fmt.Errorf("dependencies: %s is an option of pip: want a requirement, such as requests or requests==2.32.0",
			quote.Text(r))
	case strings.ContainsFunc(r, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return errors.New("dependencies has one with a control character")
	}
	return nil
}

func (s *Server) callPython(ctx context.Context, req *mcp.CallToolRequest,
	in pythonArguments) (*mcp.CallToolResult, *Result, error) {
	if err := checkScript("code", in.Code); err != nil {
		return nil, nil, err
	}
	if len(in.Dependencies) > maxDependencies {
		return nil, nil, fmt.Errorf("dependencies has %d, and %d are possible", len(in.Dependencies), maxDependencies)
	}
	for _, r := range in.Dependencies {
		if err := checkRequirement(r); err != nil {
			return nil, nil, err
		}
	}
	b, notes, err := s.in(in.SessionID, "cwd", in.Cwd)
	if err != nil {
		return nil, nil, err
	}
	t := task{tool: "python_execute", args: []string{"python3", "-c", pythonWrapper, in.Code},
		asks: []string{"python3", "-c", in.Code}, cwd: in.Cwd, timeout: in.Timeout, says: true}
	begin := time.Now()
	dir, failed, err := s.install(ctx, req, b, in)
	if err != nil {
		return nil, nil, err
	}
	if failed != nil {
		failed.Notes = append(append(notes, failed.Notes...),
			"the dependencies could not be installed, and the code did not run")
		res := failed.content()
		res.IsError = true
		return res, failed, nil
	}
	if dir != "" {
		t.args[0] = path.Join(dir, "bin", "python")
	}
	if in.Timeout > 0 {
		// One limit for all of it.
		t.timeout = max(1, in.Timeout-time.Since(begin).Milliseconds())
	}
	out, said, err := s.run(ctx, req, b, t)
	if out == nil {
		return nil, nil, err
	}
	out.Value = middleCut(strings.ToValidUTF8(said, "\uFFFD"), maxText)
	out.Notes = append(notes, out.Notes...)
	return out.content(), out, nil
}

// makePython makes a directory that nobody else has, tells it on descriptor 3, and a
// virtual environment in it. What the system has is there too: it need not be fetched.
const makePython = `set -e
dir=$(mktemp -d "${TMPDIR:-/tmp}/python-XXXXXXXX")
python3 -m venv --system-site-packages "$dir" >&2
printf '%s\n' "$dir" >&3`

// install brings what a call depends on into the session's virtual environment, and
// returns that; "" for a call that depends on nothing. A result is what came of it
// if it failed.
func (s *Server) install(ctx context.Context, req *mcp.CallToolRequest, b *box,
	in pythonArguments) (dir string, failed *Result, err error) {
	if len(in.Dependencies) == 0 {
		return "", nil, nil
	}
	select {
	case <-b.python.busy:
	case <-ctx.Done():
		return "", nil, ctx.Err()
	}
	defer func() { b.python.busy <- struct{}{} }()
	begin := time.Now()
	step := func(says bool, args ...string) (*Result, string, error) {
		t := task{tool: "python_execute", args: args, cwd: dirOf(b.env.Policy), timeout: in.Timeout, says: says}
		if in.Timeout > 0 {
			t.timeout = max(1, in.Timeout-time.Since(begin).Milliseconds())
		}
		out, said, err := s.run(ctx, req, b, t)
		if out != nil {
			err = nil
		}
		return out, said, err
	}
	if b.python.dir == "" {
		out, said, err := step(true, "sh", "-c", makePython)
		if err != nil {
			return "", nil, err
		}
		dir := lastLine(said)
		if !out.succeeded() || dir == "" {
			return "", out, nil
		}
		b.python.dir = dir
	}
	var missing []string
	for _, r := range in.Dependencies {
		if !slices.Contains(slices.Concat(b.python.has, missing), r) {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return b.python.dir, nil, nil
	}
	args := []string{path.Join(b.python.dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-input",
		"--disable-pip-version-check", "--no-warn-script-location",
		// Half a minute of retries, as is the default, tells nothing that one does not.
		"--retries", "1", "--"}
	out, _, err := step(false, append(args, missing...)...)
	if err != nil {
		return "", nil, err
	}
	if !out.succeeded() {
		return "", out, nil
	}
	b.python.has = append(b.python.has, missing...)
	return b.python.dir, nil, nil
}
