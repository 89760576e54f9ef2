package sbxrun

import (
	"context"
	"os"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/probe"
)

// A Diagnosis says what this host can isolate. If Strict is false, Error and Hint say why
// and what to do, and Weaker, which may be nil, what works instead.
type Diagnosis = engine.Diagnosis

// Doctor tries on this host what a sandbox is made of. Then it runs canaries in a
// sandbox: acts that the profile strict denies, each of which must fail. It starts this
// program's executable again for both, and the package answers before main does.
func Doctor(ctx context.Context) (*Diagnosis, error) { return engine.Diagnose(ctx) }

func init() {
	if len(os.Args) < 2 || os.Getenv(probe.MarkerName) == "" {
		return
	}
	switch os.Args[1] {
	case probe.Command:
		os.Exit(probe.Child(os.Args[2:]))
	case probe.CanaryCommand:
		os.Exit(probe.Canary(os.Args[2:]))
	}
}
