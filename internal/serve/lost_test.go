//go:build unix

package serve

import (
	"context"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

type losing struct {
	driver.Sandbox
	err error
}

func (l losing) ExecWithin(context.Context, *specs.Process, *specs.LinuxResources, driver.Stdio) (driver.Process, error) {
	return nil, l.err
}

// TestLost: that a command may have run is a result, and no error of the request, which a
// client would make again.
func TestLost(t *testing.T) {
	q := &runRequest{Args: []string{"true"}}
	p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{}}}
	in := func(err error) (*driver.Result, error) {
		return q.in(t.Context(), losing{err: err}, "bare", p, nil)
	}
	if res, err := in(&driver.LostError{Err: driver.ErrSandboxGone}); err != nil || res.Reason != driver.ReasonLost || res.ExitCode != driver.ExitLost {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := in(&driver.SetupError{Driver: "bare", Err: syscall.EIO}); err == nil {
		t.Errorf("a sandbox that could not be built: %+v", res)
	}
}
