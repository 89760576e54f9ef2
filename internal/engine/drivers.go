package engine

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/sbxrun/sbxrun/bwrap"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/containeruse"
	"github.com/sbxrun/sbxrun/driver/docker"
	"github.com/sbxrun/sbxrun/driver/gvisor"
	"github.com/sbxrun/sbxrun/driver/host"
	"github.com/sbxrun/sbxrun/driver/landlocked"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/seatbelt"
)

// Drivers returns what this build can run policies with, in the order in which
// they are tried. The host is last and never tried unless named.
func Drivers(f *Facts) []driver.Driver {
	return []driver.Driver{native.Driver{Withheld: f.Withheld()}, seatbelt.Driver{Home: f.Home}, landlocked.Driver{},
		bwrap.Driver{}, gvisor.Driver{}, gvisor.Driver{Runtime: "runc"}, gvisor.Driver{Runtime: "crun"}, docker.Driver{},
		docker.Driver{Podman: true}, containeruse.Driver{}, hostDriver(f)}
}

// hostDriver returns the driver for the bare host.
func hostDriver(f *Facts) driver.Driver {
	return &host.Driver{Home: f.Home, Sweep: true}
}

// Select chooses what runs a policy. Log, which may be nil, is told of each driver
// that was tried.
func Select(ctx context.Context, f *Facts, r *profiles.Resolved, require policy.Layers,
	log func(driver.Step)) (driver.Driver, error) {
	known := Drivers(f)
	for i := range known {
		known[i] = withImage(known[i], r.Image)
	}
	d, err := driver.Select(ctx, known, r.Drivers, r.Policy, log)
	if err != nil {
		return nil, err
	}
	if r.Image != "" && !runsImages(d) {
		return nil, &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"image " + r.Image},
			Fix: "--driver docker or podman runs in an image"}
	}
	if !d.Sandboxed() && require != 0 {
		return nil, &driver.UnavailableError{
			What:  "layer " + require.String(),
			Cause: "driver " + d.Name() + " enforces none",
			Fix:   "leave out --require, or use a driver that isolates",
		}
	}
	return d, nil
}

// Stays reports that a driver's sandboxes cannot stay, for sessions or pools.
func Stays(d driver.Driver, what, fix string) error {
	if d.Describe().Stays {
		return nil
	}
	return &driver.UnsupportedError{Driver: d.Name(), Rules: []string{what}, Fix: fix}
}

// Fit sets a driver up for one run: what compiles a filter that is not built in,
// and for the native driver the caller's own proxy, and that it reads no counts
// that nobody will see. Progress, which may be nil, is where what is downloaded is told.
func Fit(d driver.Driver, f *Facts, r *profiles.Resolved, frugal bool, progress *os.File) driver.Driver {
	d = withImage(d, r.Image)
	p := r.Policy
	compiler, cache := "", ""
	if p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil {
		if exe, err := os.Executable(); err == nil && !f.library {
			compiler = filepath.Join(filepath.Dir(exe), compilerProgram)
		}
		if dir := cacheHome(f); dir != "" {
			cache = filepath.Join(dir, "sbxrun", "seccomp")
		}
	}
	upstream, noProxy := "", ""
	if p.Egress.Mode == policy.EgressProxy {
		upstream, noProxy = ProxyVariable("HTTPS_PROXY"), ProxyVariable("NO_PROXY")
	}
	switch d := d.(type) {
	case native.Driver:
		d.Frugal, d.SeccompCompiler, d.CacheDir, d.Upstream, d.NoProxy = frugal, compiler, cache, upstream, noProxy
		return d
	case docker.Driver:
		if progress != nil {
			d.Progress = progress
		}
		return d
	case landlocked.Driver:
		d.SeccompCompiler, d.CacheDir, d.Upstream, d.NoProxy = compiler, cache, upstream, noProxy
		return d
	case seatbelt.Driver:
		d.Upstream, d.NoProxy = upstream, noProxy
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

// ProxyVariable is a variable that programs know in both cases, the small one first
// as curl(1) has it.
func ProxyVariable(name string) string {
	if v := os.Getenv(strings.ToLower(name)); v != "" {
		return v
	}
	return os.Getenv(name)
}

// A DriverEntry is what there is to say of a driver.
type DriverEntry struct {
	Name      string        `json:"name"`
	Summary   string        `json:"summary,omitempty"`
	Sandboxed bool          `json:"sandboxed"`
	Auto      bool          `json:"auto"` // --driver auto may choose it
	Available bool          `json:"available"`
	Version   string        `json:"version,omitempty"` // of the program that it is made of
	Error     string        `json:"error,omitempty"`
	Hint      string        `json:"hint,omitempty"`
	Layers    policy.Layers `json:"layers"` // that it can give
	Claims    driver.Claims `json:"features"`
}

// EntryOf asks a driver for it.
func EntryOf(d driver.Driver) DriverEntry {
	about := d.Describe()
	e := DriverEntry{Name: d.Name(), Summary: about.Summary, Sandboxed: d.Sandboxed(), Auto: about.Auto, Available: true,
		Version: d.Version(), Layers: about.Claims.Layers(), Claims: about.Claims}
	if err := d.Available(context.Background()); err != nil {
		e.Available, e.Error, e.Hint = false, err.Error(), driver.HintOf(err)
	}
	return e
}

// DriverNames are the names of what this build has.
func DriverNames(f *Facts) (names []string) {
	for _, d := range Drivers(f) {
		names = append(names, d.Name())
	}
	return names
}
