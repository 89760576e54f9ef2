//go:build !linux

package standin

import (
	"errors"
	"os"

	"github.com/sbxrun/sbxrun/internal/holder"
)

// A Process is the one that calls a shell: an agent.
type Process struct{ holder.Process }

// Caller is the process that called this one.
func Caller() *Process { return &Process{holder.Process{Pid: os.Getppid()}} }

// Dir is not known.
func (p *Process) Dir() (string, error) { return "", errors.ErrUnsupported }

// anonymous is a file without a name.
func anonymous(name string) (*os.File, error) {
	f, err := os.CreateTemp("", name)
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}
