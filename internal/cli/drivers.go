package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/bwrap"
	"github.com/sbxrun/sbxrun/containeruse"
	"github.com/sbxrun/sbxrun/docker"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/gvisor"
	"github.com/sbxrun/sbxrun/landlocked"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/seatbelt"
)

// drivers returns what this build can run policies with, in the order in which
// they are tried. The host is last and never tried unless named.
func drivers(f *facts) []driver.Driver {
	return []driver.Driver{native.Driver{}, seatbelt.Driver{Home: f.Home}, landlocked.Driver{}, bwrap.Driver{},
		gvisor.Driver{}, gvisor.Driver{Runtime: "runc"}, gvisor.Driver{Runtime: "crun"}, docker.Driver{}, docker.Driver{Podman: true}, containeruse.Driver{}, hostDriver(f)}
}

// Drivers returns all that this build has, for who documents them.
func Drivers() []driver.Driver { return drivers(&facts{}) }

// fit sets a driver up for one run: what compiles a filter that is not built in,
// and for the native driver the caller's own proxy, and that it reads no counts
// that nobody will see.
func fit(d driver.Driver, f *facts, r *profiles.Resolved, frugal bool) driver.Driver {
	d = withImage(d, r.Image)
	p := r.Policy
	compiler, cache := "", ""
	if p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil {
		if exe, err := os.Executable(); err == nil {
			compiler = filepath.Join(filepath.Dir(exe), compilerProgram)
		}
		if dir := cacheHome(f); dir != "" {
			cache = filepath.Join(dir, "sbxrun", "seccomp")
		}
	}
	switch d := d.(type) {
	case native.Driver:
		d.Frugal, d.SeccompCompiler, d.CacheDir = frugal, compiler, cache
		if p.Egress.Mode == policy.EgressProxy {
			d.Upstream, d.NoProxy = environ("HTTPS_PROXY"), environ("NO_PROXY")
		}
		return d
	case docker.Driver:
		if isTerminal(os.Stderr) && !say.quiet {
			d.Progress = os.Stderr
		}
		return d
	case landlocked.Driver:
		d.SeccompCompiler, d.CacheDir = compiler, cache
		if p.Egress.Mode == policy.EgressProxy {
			d.Upstream, d.NoProxy = environ("HTTPS_PROXY"), environ("NO_PROXY")
		}
		return d
	case seatbelt.Driver:
		if p.Egress.Mode == policy.EgressProxy {
			d.Upstream, d.NoProxy = environ("HTTPS_PROXY"), environ("NO_PROXY")
		}
		return d
	case bwrap.Driver:
		d.SeccompCompiler, d.CacheDir = compiler, cache
		return d
	}
	return d
}

// withImage gives a driver that runs images the one to run.
func withImage(d driver.Driver, image string) driver.Driver {
	switch d := d.(type) {
	case docker.Driver:
		d.Image = image
		return d
	case containeruse.Driver:
		d.Image = image
		return d
	}
	return d
}

// runsImages reports whether a driver has a use for an image.
func runsImages(d driver.Driver) bool {
	switch d.(type) {
	case docker.Driver, containeruse.Driver:
		return true
	}
	return false
}

// environ is a variable that programs know in both cases, the small one first
// as curl(1) has it.
func environ(name string) string {
	if v := os.Getenv(strings.ToLower(name)); v != "" {
		return v
	}
	return os.Getenv(name)
}

// A lowerer is a driver that hands the policy on to another program, in that
// program's own words: the arguments of one, the profile of the other.
type lowerer interface {
	// Lowered returns what the driver would use. It starts nothing, and works
	// where the driver does not.
	Lowered(p *policy.Policy) (any, error)
}

// driverError says what to do about a driver that there is not.
func driverError(err error, known []driver.Driver) error {
	var invalid *policy.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "driver" {
		return err
	}
	hint := "sbxrun driver list tells what each is, and which work here"
	var names []string
	for _, d := range known {
		names = append(names, d.Name())
	}
	if near := nearest(invalid.Value, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	return &usageError{"there is no driver " + strconv.Quote(invalid.Value) + ": want " + invalid.Want, hint}
}
