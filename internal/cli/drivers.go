package cli

import (
	"errors"
	"strconv"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/nearest"
	"github.com/sbxrun/sbxrun/policy"
)

// Drivers returns all that this build has, for who documents them.
func Drivers() []driver.Driver { return engine.Drivers(&facts{}) }

// driverError says what to do about a driver that there is not.
func driverError(err error, f *facts) error {
	var invalid *policy.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "driver" {
		return err
	}
	hint := "sbxrun driver list tells what each is, and which work here"
	if near := nearest.Name(invalid.Value, driverNames(f)); near != "" {
		hint = "did you mean " + near + "?"
	}
	return engine.Usage("there is no driver "+strconv.Quote(invalid.Value)+": want "+invalid.Want, hint)
}
