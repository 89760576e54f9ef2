//go:build !darwin

package seatbelt

import (
	"context"
	"runtime"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

func available(context.Context) error {
	return &driver.UnavailableError{
		What:  "driver " + Name,
		Cause: "this is " + runtime.GOOS + ", and Seatbelt is macOS's",
		Fix:   "sbxrun --dry-run --driver seatbelt prints the profile that a Mac would use",
	}
}

func start(Driver, *policy.Policy, driver.Stdio) (driver.Process, error) {
	return nil, available(context.Background())
}
