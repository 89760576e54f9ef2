//go:build !broken

package native

import "github.com/sbxrun/sbxrun/internal/reexec"

// breakLayer is where a build for tests takes a layer away, to see that the
// tests notice; see broken_linux.go. In every other build it is nothing.
func (s *starter) breakLayer(*reexec.Config) {}

func breaking() bool { return false }
