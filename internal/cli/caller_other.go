//go:build !linux

package cli

import (
	"errors"
	"os"

	"github.com/sbxrun/sbxrun/internal/holder"
)

// A process is the one that calls a shell: an agent.
type process struct{ holder.Process }

func caller() *process { return &process{holder.Process{Pid: os.Getppid()}} }

func (p *process) dir() (string, error) { return "", errors.ErrUnsupported }

// anonymous is a file without a name.
func anonymous(name string) (*os.File, error) {
	f, err := os.CreateTemp("", name)
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}
