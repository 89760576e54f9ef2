// Package files moves files into and out of a sandbox that stays, and looks at
// those in it.
//
// Everything is done by an agent, a program of our own that runs in the sandbox
// as any other command does: with the same view, the same user and under the same
// filters. So a path can be whatever it likes, a symbolic link, "..", a hard
// link: the agent gets no further than the command that made it could. Nothing
// on the host ever resolves a path of the sandbox's.
//
// What comes out is data from a stranger all the same. A tree is a tar stream,
// and [Extract] writes below one directory of the host and nowhere else.
//
// The agent is this process's own executable, copied to sealed memory (Linux);
// a program that uses this package calls [Agent] first thing in main.
package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// agentCommand is the agent's first argument.
const agentCommand = "sandbox-files"

// Info describes a file in a sandbox.
type Info struct {
	Path    string      `json:"path"`
	Type    string      `json:"type"` // file, dir, symlink, fifo, socket, device
	Size    int64       `json:"size"`
	Mode    fs.FileMode `json:"mode"` // permission bits, and set-user-id and the like
	ModTime time.Time   `json:"mod_time"`
	Target  string      `json:"target,omitempty"` // of a symbolic link
}

// An Error is what went wrong in the sandbox.
type Error struct {
	Op    string        `json:"op"`
	Path  string        `json:"path"`
	Text  string        `json:"text"`
	Errno syscall.Errno `json:"errno,omitempty"`

	// Denials are what the policy refused meanwhile.
	Denials []driver.Denial `json:"-"`
}

func (e *Error) Error() string {
	return e.Op + " " + quote.Inside(e.Path) + " in the sandbox: " + quote.Line(e.Text)
}

// Unwrap returns the errno, so that errors.Is(err, fs.ErrNotExist) holds.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// newError describes an error for the other side.
func newError(op, path string, err error) *Error {
	e := &Error{Op: op, Path: path, Text: err.Error()}
	if errors.As(err, &e.Errno) {
		e.Text = e.Errno.Error()
	}
	return e
}

// parseError reads what an agent that failed wrote.
func parseError(op, path string, stderr []byte, st *driver.Status) error {
	e := &Error{Denials: st.Denials}
	if json.Unmarshal(stderr, e) == nil && e.Text != "" {
		return e
	}
	if len(stderr) > 200 {
		stderr = stderr[:200]
	}
	return &Error{Op: op, Path: path, Text: fmt.Sprintf("the agent ended with code %d: %q", st.ExitCode, stderr),
		Denials: st.Denials}
}

// typeOf names a file's type.
func typeOf(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "dir"
	case fs.ModeSymlink:
		return "symlink"
	case fs.ModeNamedPipe:
		return "fifo"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}
