//go:build !linux

package cli

import (
	"errors"
	"os"
)

// A process is the one that calls a shell: an agent.
type process struct {
	pid   int
	began uint64
}

func caller() *process { return &process{pid: os.Getppid()} }

func (p *process) dir() (string, error) { return "", errors.ErrUnsupported }

// anonymous is a file without a name.
func anonymous(name string) (*os.File, error) {
	f, err := os.CreateTemp("", name)
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}

// ended returns a channel that is closed when a process has ended.
func ended(*process) (<-chan struct{}, error) { return nil, errors.ErrUnsupported }
