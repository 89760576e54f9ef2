//go:build !linux

package probe

import "context"

// Host reports what the host can give. On this system there is nothing to
// probe yet.
func Host(context.Context) []Check { return nil }

// Child runs one probe; there is none on this system.
func Child([]string) int { return 1 }
