package driver

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// Auto is the name that stands for every driver that isolates and needs nothing
// of the user, in the order in which the program knows them; see
// [Description.Auto]. A weaker one comes after a stronger one, and runs only a
// policy that agreed to go without what it lacks.
const Auto = "auto"

// A Step is one driver that selection looked at.
type Step struct {
	Driver string
	Err    error // why it was passed over, nil for the one that was chosen
}

// Select returns the first driver of names that runs on this host and can
// enforce the policy. A driver that isolates nothing is taken only where its
// own name is in names; [Auto] never stands for it. Each step is reported to
// log, if it is not nil.
//
// If no driver will do, the error is the first one's: it is what the caller
// asked for first, and every other name was a way out.
func Select(ctx context.Context, known []Driver, names []string, p *policy.Policy, log func(Step)) (Driver, error) {
	if log == nil {
		log = func(Step) {}
	}
	// An unknown name is a mistake in the request, whether or not an earlier
	// name would have done.
	for _, name := range names {
		if name != Auto && find(known, name) == nil {
			return nil, unknown(name, driverNames(known))
		}
	}
	if len(names) == 1 {
		// With nothing to fall back to there is nothing to choose: Start finds
		// out whether the driver will do, and says why not. Asking it first
		// would build a sandbox only to throw it away. The same if only one of
		// those that auto stands for can enforce the policy.
		d := find(known, names[0])
		if names[0] == Auto {
			d = only(known, p)
		}
		if d != nil {
			log(Step{Driver: d.Name()})
			return d, nil
		}
	}
	var first error
	candidates := meant(known, names)
	for _, d := range candidates {
		err := d.Available(ctx)
		if err == nil {
			err = d.Check(p)
		}
		log(Step{Driver: d.Name(), Err: err})
		if err == nil {
			return d, nil
		}
		first = cmp.Or(first, err)
	}
	switch n := len(candidates); n {
	case 0:
		return nil, &UnavailableError{
			What:  "sandbox",
			Cause: "this build has no driver that isolates on this system",
			Fix:   "name a driver with --driver; host runs without any isolation",
		}
	case 1:
		return nil, first
	default:
		return nil, fmt.Errorf("none of %d drivers can run this; first %w", n, first)
	}
}

// meant are the drivers that known names stand for, in their order.
func meant(known []Driver, names []string) (all []Driver) {
	for _, name := range names {
		if name != Auto {
			all = append(all, find(known, name))
			continue
		}
		for _, d := range known {
			if automatic(d) {
				all = append(all, d)
			}
		}
	}
	return all
}

func unknown(name string, known []string) error {
	if planned(name) {
		return &UnavailableError{
			What: "driver " + name, Cause: "it is not part of this build",
			Fix: "there are " + strings.Join(known, ", "),
		}
	}
	return &policy.InvalidError{Field: "driver", Value: name, Want: "one of " + strings.Join(known, ", ")}
}

// automatic reports whether [Auto] stands for a driver.
func automatic(d Driver) bool { return d.Sandboxed() && d.Describe().Auto }

// only returns the driver that Auto stands for and that can enforce the policy,
// by its claims, if there is exactly one.
func only(known []Driver, p *policy.Policy) Driver {
	var found Driver
	for _, d := range known {
		if !automatic(d) {
			continue
		}
		claims := d.Describe().Claims
		if claims == nil {
			return nil
		}
		if claims.Refused(d.Name(), p) != nil {
			continue
		}
		if found != nil {
			return nil
		}
		found = d
	}
	return found
}

func find(known []Driver, name string) Driver {
	for _, d := range known {
		if d.Name() == name {
			return d
		}
	}
	return nil
}

func driverNames(known []Driver) []string {
	names := []string{Auto}
	for _, d := range known {
		names = append(names, d.Name())
	}
	return names
}

// planned reports whether a name is that of a driver that profiles may name and
// that a build may lack.
func planned(name string) bool {
	switch name {
	case "native", "landlock", "bwrap", "gvisor", "docker", "container-use", "seatbelt":
		return true
	}
	return false
}
