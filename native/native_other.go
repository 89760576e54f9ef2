//go:build !linux

package native

import (
	"context"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

func unavailable() error {
	return &driver.UnavailableError{What: "driver " + Name, Cause: "it is made of Linux namespaces",
		Fix: "use --driver seatbelt on macOS, or --driver docker"}
}

// Available reports that the driver needs Linux.
func (Driver) Available(context.Context) error { return unavailable() }

// Check reports that the driver needs Linux.
func (Driver) Check(*policy.Policy) error { return unavailable() }

// Start reports that the driver needs Linux.
func (Driver) Start(context.Context, *policy.Policy, driver.Stdio) (driver.Process, error) {
	return nil, unavailable()
}

// Open reports that the driver needs Linux.
func (Driver) Open(context.Context, *policy.Policy) (driver.Sandbox, error) {
	return nil, unavailable()
}

// Prepare reports that the driver needs Linux.
func (Driver) Prepare(context.Context, *policy.Policy) (driver.Prepared, error) {
	return nil, unavailable()
}

var _ driver.Driver = Driver{}
