package native

import (
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// Tree returns the file system that the driver builds for a policy on a host
// with such files, for who wants to build or to print the same by other means.
func Tree(p *policy.Policy, host Host) (*mounts.Tree, error) {
	low, err := lower(p, host)
	if err != nil {
		return nil, err
	}
	return &low.tree, nil
}
