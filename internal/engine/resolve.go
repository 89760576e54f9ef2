package engine

import (
	"errors"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// Resolve makes a policy of a request, and the directories that a command must not be
// able to make ([profiles.Resolved.Missing]).
func Resolve(req *profiles.Request, f *Facts) (*profiles.Resolved, error) {
	r, err := profiles.Resolve(req, &f.Facts)
	if err != nil {
		return nil, Invalid(Unreadable(err, req, f))
	}
	if err := labelled(req.Require, r.Policy.OCI.Process); err != nil {
		return nil, err
	}
	return r, makeOwn(r)
}

// OperatorOf is what the operator's files say of a request.
func OperatorOf(req *profiles.Request, f *Facts) (profiles.Operator, error) {
	op, err := profiles.OperatorOf(req, &f.Facts)
	if err != nil {
		err = Invalid(Unreadable(err, req, f))
	}
	return op, err
}

// labelled reports a layer that was asked for and that is nothing without a name.
func labelled(require policy.Layers, p *specs.Process) error {
	switch {
	case require.Has(policy.LayerSELinux) && p.SelinuxLabel == "":
		return Usage("flag --require: selinux is a label, and there is none", "add --selinux-label LABEL")
	case require.Has(policy.LayerAppArmor) && p.ApparmorProfile == "":
		return Usage("flag --require: apparmor is a profile of AppArmor's, and there is none", "add --apparmor-profile NAME")
	}
	return nil
}

// ShowProfile returns the values of a profile as they take effect here.
func ShowProfile(name string) ([]profiles.Entry, error) {
	f, err := GatherFacts()
	if err != nil {
		return nil, err
	}
	entries, err := profiles.Show(&profiles.Request{Profile: name}, &f.Facts)
	if err != nil {
		return nil, Invalid(Unreadable(err, &profiles.Request{}, f))
	}
	return entries, nil
}

// Unflagged is an error about a profile that was named without the flag.
func Unflagged(err error) error {
	var e *profiles.Error
	if errors.As(err, &e) && e.Where == "flag --profile" {
		plain := *e
		plain.Where = ""
		err = Invalid(&plain)
	}
	return err
}
