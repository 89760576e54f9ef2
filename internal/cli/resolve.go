package cli

import (
	"github.com/sbxrun/sbxrun/profiles"
)

// resolve turns the request into a policy.
func (o *options) resolve(f *facts) (*profiles.Resolved, error) {
	return resolveRequest(&o.req, f)
}

func resolveRequest(req *profiles.Request, f *facts) (*profiles.Resolved, error) {
	r, err := profiles.Resolve(req, &f.Facts)
	if err != nil {
		return nil, invalid(unreadable(err, req, f))
	}
	for _, n := range r.Notes {
		say.note(n, "")
	}
	return r, nil
}
