package cli

import (
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/profiles"
)

// resolve turns the request into a policy.
func (o *options) resolve(f *facts) (*profiles.Resolved, error) {
	return resolveRequest(&o.req, f)
}

// resolveHere gathers the facts, and turns the request with a command into a policy of them.
func (o *options) resolveHere(command ...string) (*profiles.Resolved, *facts, error) {
	f, err := engine.GatherFacts()
	if err != nil {
		return nil, nil, err
	}
	o.req.Command = command
	r, err := o.resolve(f)
	return r, f, err
}

// resolveRequest is [engine.Resolve]; it says what there is to note.
func resolveRequest(req *profiles.Request, f *facts) (*profiles.Resolved, error) {
	r, err := engine.Resolve(req, f)
	if err != nil {
		return nil, err
	}
	for _, n := range r.Notes {
		say.note(n, "")
	}
	return r, nil
}

// facts are what the host says; see [engine.GatherFacts].
type facts = engine.Facts
