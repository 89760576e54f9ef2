package cli

import (
	"reflect"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/profiles"
)

// followEvery is how often the files that network rules come from are read
// again while a sandbox runs: some hundred microseconds of work.
const followEvery = 2 * time.Second

// follow keeps the network rules of a running sandbox as the files say. A file
// that is broken leaves the last good rules in place, and is told once. The
// function that it returns ends it.
func (o *options) follow(r *profiles.Resolved, f *facts, proc driver.Process) func() {
	reloader, ok := proc.(driver.Reloader)
	if !ok {
		return nil
	}
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		rules, told := r.Policy.Egress, ""
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			again, err := r.Again(&o.req, &f.Facts)
			if err == nil && !reflect.DeepEqual(again.Policy.Egress, rules) {
				if err = reloader.Reload(again.Policy.Egress); err == nil {
					rules = again.Policy.Egress
					say.note("the network rules have changed", "")
				}
			}
			switch {
			case err == nil:
				told = ""
			case err.Error() != told:
				told = err.Error()
				say.warn("the network rules stay as they were: " + told)
			}
		}
	}()
	return func() { close(done) }
}
