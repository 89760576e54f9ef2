//go:build !linux

package engine

import "errors"

// NewRefusals is ErrUnsupported.
func NewRefusals() (*Refusals, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (r *Refusals) Close() {}
