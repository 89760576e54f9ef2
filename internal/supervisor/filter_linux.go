package supervisor

import (
	"context"
	"errors"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

// Filter is a policy's system call filter; the zero Program if it has none. The
// directory and the compiler are those of [seccomp.Custom].
func Filter(ctx context.Context, name string, p *policy.Policy, cacheDir,
	compiler string) (f seccomp.Program, err error) {
	fix := ""
	switch {
	case p.Seccomp != "":
		f, err = seccomp.Builtin(p.Seccomp)
	case p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil:
		if f, err = seccomp.Custom(ctx, p.OCI.Linux.Seccomp, cacheDir, compiler); errors.Is(err, seccomp.ErrNoCompiler) {
			fix = "a seccomp profile of your own needs sbxrun-seccomp beside sbxrun: make build"
		}
	}
	if err != nil {
		return f, &driver.SetupError{Driver: name, Err: err, Fix: fix}
	}
	return f, nil
}
