//go:build unix && !linux

package files

import (
	"errors"
	"io/fs"
	"os"
)

func unnamed(string, fs.FileMode) (*os.File, error) { return nil, errors.ErrUnsupported }

var named = func(*os.File, string) error { return errors.ErrUnsupported }
