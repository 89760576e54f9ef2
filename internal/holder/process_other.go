//go:build !linux

package holder

import "errors"

// Ended returns a channel that is closed when a process has ended.
func (Process) Ended() (<-chan struct{}, error) { return nil, errors.ErrUnsupported }
