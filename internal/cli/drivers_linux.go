package cli

import "github.com/sbxrun/sbxrun/driver"

// drivers returns what this build can run policies with, in the order in which
// they are tried. The host is last and never tried unless named.
func drivers(f *facts) []driver.Driver {
	return []driver.Driver{hostDriver(f)}
}
