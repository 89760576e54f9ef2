//go:build unix && !linux

package session

import "errors"

// Birth is what a process passes on to what it starts. It is not known here.
func Birth() (string, error) { return "", errors.ErrUnsupported }
