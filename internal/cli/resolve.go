package cli

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// resolve turns the request into a policy.
func (o *options) resolve(f *facts) (*profiles.Resolved, error) {
	return resolveRequest(&o.req, f)
}

// labelled reports a layer that was asked for and that is nothing without a name.
func labelled(require policy.Layers, p *specs.Process) error {
	switch {
	case require.Has(policy.LayerSELinux) && p.SelinuxLabel == "":
		return &usageError{"flag --require: selinux is a label, and there is none", "add --selinux-label LABEL"}
	case require.Has(policy.LayerAppArmor) && p.ApparmorProfile == "":
		return &usageError{"flag --require: apparmor is a profile of AppArmor's, and there is none", "add --apparmor-profile NAME"}
	}
	return nil
}

func resolveRequest(req *profiles.Request, f *facts) (*profiles.Resolved, error) {
	r, err := profiles.Resolve(req, &f.Facts)
	if err != nil {
		return nil, invalid(unreadable(err, req, f))
	}
	if err := labelled(req.Require, r.Policy.OCI.Process); err != nil {
		return nil, err
	}
	if err := makeOwn(r); err != nil {
		return nil, err
	}
	for _, n := range r.Notes {
		say.note(n, "")
	}
	return r, nil
}
