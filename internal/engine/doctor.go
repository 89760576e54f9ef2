package engine

import (
	"context"
	"os"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/probe"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// A Diagnosis is what doctor finds.
type Diagnosis struct {
	Strict bool          `json:"strict"` // a run under strict would work here
	Driver string        `json:"driver,omitempty"`
	Layers policy.Layers `json:"layers"` // that such a run requires
	Error  string        `json:"error,omitempty"`
	Hint   string        `json:"hint,omitempty"`
	Weaker *Weaker       `json:"weaker,omitempty"` // what works here, where strict does not
	Checks []probe.Check `json:"checks"`
}

// Weaker is a way to run commands that is weaker than strict, and was tried.
type Weaker struct {
	Driver  string        `json:"driver"`
	Without policy.Layers `json:"without"` // to be named with --allow-degraded
	Flags   string        `json:"-"`       // the same, as flags
}

// Diagnose finds out what this host can isolate, and proves that it does.
func Diagnose(ctx context.Context) (*Diagnosis, error) {
	f, err := GatherFactsAnywhere("/")
	if err != nil {
		return nil, err
	}
	d := &Diagnosis{}
	programs := map[string]probe.Check{} // that drivers are made of
	for _, c := range probe.Host(ctx) {
		if c.Group == probe.GroupDrivers {
			programs[c.Name] = c
		} else {
			d.Checks = append(d.Checks, c)
		}
	}
	for _, k := range Drivers(f) {
		c := probe.Check{Name: k.Name(), Group: probe.GroupDrivers, State: probe.Yes, Detail: madeOf(k.Name(), programs)}
		if !k.Sandboxed() {
			c.Detail += "; isolates nothing, and is never chosen unless named"
		}
		if err := k.Available(ctx); err != nil {
			c.State, c.Detail, c.Cause, c.Fix = probe.No, "", err.Error(), driver.HintOf(err)
		}
		d.Checks = append(d.Checks, c)
	}
	checks, err := d.try(ctx, f, profiles.Request{})
	d.Checks = append(d.Checks, checks...)
	if err == nil {
		err = BoundaryError(checks)
	}
	if err != nil {
		d.Error, d.Hint = err.Error(), HintOf(err)
		d.Weaker = tryWeaker(ctx, f)
	}
	d.Strict = err == nil
	return d, nil
}

// madeOf says what a driver that works here is made of: a program's version and path.
func madeOf(name string, checked map[string]probe.Check) string {
	switch name {
	case "gvisor":
		name = "runsc"
	case "container-use":
		for _, file := range []string{"cu", "container-use"} {
			if path, err := programs.Find(file); err == nil {
				return path
			}
		}
	}
	if c, ok := checked[name]; ok {
		return c.Detail
	}
	return "built in"
}

// WeakerHere is what runs on this host where strict does not, nil if strict does or nothing
// does.
func WeakerHere(ctx context.Context) *Weaker {
	f, err := GatherFactsAnywhere("/")
	if err != nil {
		return nil
	}
	if checks, err := new(Diagnosis).try(ctx, f, profiles.Request{}); err == nil && BoundaryError(checks) == nil {
		return nil
	}
	return tryWeaker(ctx, f)
}

// tryWeaker finds what comes nearest to strict on this host, by running the
// canaries under each: those whose acts it still denies have to hold.
func tryWeaker(ctx context.Context, f *Facts) *Weaker {
	for _, w := range []Weaker{
		{"native", policy.LayerCgroup, "--allow-degraded cgroup"},
		{"landlock", policy.LayerNamespaces | policy.LayerProtect, "--driver landlock --allow-degraded namespaces,protect"},
		{"landlock", policy.LayerNamespaces | policy.LayerProtect | policy.LayerCgroup,
			"--driver landlock --allow-degraded namespaces,protect,cgroup"},
	} {
		checks, err := new(Diagnosis).try(ctx, f, profiles.Request{Driver: w.Driver, Degrade: w.Without})
		if err == nil && BoundaryError(checks) == nil {
			return &w
		}
	}
	return nil
}

// try runs the canaries as a run under the strict profile would, with what req
// asks for besides.
func (d *Diagnosis) try(ctx context.Context, f *Facts, req profiles.Request) ([]probe.Check, error) {
	ws, err := os.MkdirTemp("", "sbxrun-doctor-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(ws)
	req.Profile, req.Dir, req.Command = "strict", ws, []string{"true"}
	r, err := profiles.Resolve(&req, &f.Facts)
	if err != nil {
		return nil, err
	}
	d.Layers = r.Policy.Require
	chosen, err := driver.Select(ctx, Drivers(f), r.Drivers, r.Policy, nil)
	if err != nil {
		return nil, err
	}
	d.Driver = chosen.Name()
	return SelfTest(ctx, chosen, r.Policy)
}
