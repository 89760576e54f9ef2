package cli

import (
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/native"
)

// drivers returns what this build can run policies with, in the order in which
// they are tried. The host is last and never tried unless named.
func drivers(f *facts) []driver.Driver {
	return []driver.Driver{native.Driver{}, hostDriver(f)}
}
