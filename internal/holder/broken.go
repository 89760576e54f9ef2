//go:build broken

package holder

// A holder's sandbox is without the layer that one lacks in a run: see package
// native.
func init() { environ = append(environ, "SBXRUN_BREAK") }
