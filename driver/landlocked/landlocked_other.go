//go:build !linux

package landlocked

import (
	"context"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

func unavailable() error {
	return &driver.UnavailableError{What: "driver " + Name, Cause: "Landlock is Linux's",
		Fix: "use another driver; see sbxrun driver list"}
}

// Available reports that the driver needs Linux.
func (Driver) Available(context.Context) error { return unavailable() }

// Check reports what the driver could not enforce.
func (Driver) Check(p *policy.Policy) error { return check(p) }

// Start reports that the driver needs Linux.
func (Driver) Start(context.Context, *policy.Policy, driver.Stdio) (driver.Process, error) {
	return nil, unavailable()
}
