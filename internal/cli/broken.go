//go:build broken

package cli

// A holder's sandbox is without the layer that one lacks in a run: see package
// native.
func init() { holderEnv = append(holderEnv, "SBXRUN_BREAK") }
