package cli

import (
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// resolve turns the request into a policy and the names of the drivers to try.
func (o *options) resolve(f *facts) (*policy.Policy, []string, error) {
	r := &o.req
	p := &policy.Policy{Profile: r.Profile, OCI: &specs.Spec{Process: &specs.Process{
		Args: r.Command, Env: f.Environ, Cwd: f.Cwd, Terminal: r.Terminal,
	}}}
	p.Limits.KillAfter = 5 * time.Second
	p.Limits.Output = 1 << 20
	if r.Timeout != nil {
		p.Limits.WallTime = *r.Timeout
	}
	if r.KillAfter != nil {
		p.Limits.KillAfter = *r.KillAfter
	}
	if r.MaxOutput != nil {
		p.Limits.Output = *r.MaxOutput
	}
	names := []string{driver.Auto}
	if r.Driver != "" {
		names[0] = r.Driver
	}
	return p, append(names, r.Fallback...), nil
}
