//go:build !linux

package probe

import (
	"context"
	"os"
	"strconv"
)

// Host reports what the host can give. On this system there is nothing to
// probe yet.
func Host(context.Context) []Check { return nil }

// Child runs one probe; there is none on this system.
func Child([]string) int { return 1 }

// CanaryCommand is the first argument of the program that tries, inside a
// sandbox, what the sandbox is to deny.
const CanaryCommand = "__canary"

// Canary tries nothing on this system.
func Canary([]string) int { return 1 }

// ParseCanaries reports that nothing was tried.
func ParseCanaries(_ string, names []string) []Check {
	var out []Check
	for _, n := range names {
		out = append(out, Check{Name: n, Group: GroupBoundary, Cause: "it was not tried"})
	}
	return out
}

// Process identifies the calling process to a canary.
func Process() string { return strconv.Itoa(os.Getpid()) }
