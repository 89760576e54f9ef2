//go:build unix && !linux

package files

import (
	"errors"
	"io/fs"
	"os"
)

func unnamed(*os.File, fs.FileMode) (*os.File, error) { return nil, errors.ErrUnsupported }

var named = func(_, _ *os.File, _ string) error { return errors.ErrUnsupported }
