//go:build !linux

package gvisor

import (
	"context"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

func (d Driver) unavailable() error {
	return &driver.UnavailableError{What: "driver " + d.Name(), Cause: "OCI runtimes run on Linux",
		Fix: "use another driver; see sbxrun driver list"}
}

// Available reports that the driver needs Linux.
func (d Driver) Available(context.Context) error { return d.unavailable() }

// Check reports what a runtime could not be told.
func (d Driver) Check(p *policy.Policy) error { return d.check(p) }

// Start reports that the driver needs Linux.
func (d Driver) Start(context.Context, *policy.Policy, driver.Stdio) (driver.Process, error) {
	return nil, d.unavailable()
}
