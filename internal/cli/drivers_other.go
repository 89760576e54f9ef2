//go:build !linux

package cli

import "github.com/sbxrun/sbxrun/driver"

// drivers returns what this build can run policies with.
func drivers(f *facts) []driver.Driver {
	return []driver.Driver{hostDriver(f)}
}
