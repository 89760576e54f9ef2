package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// Present returns the tree without what is optional and not on this host, which
// other programs would stumble over, and all of its operations.
func Present(tree *mounts.Tree) (*mounts.Tree, []mounts.Op, error) {
	ops, err := tree.Ops()
	if err != nil {
		return nil, nil, err
	}
	keep := *tree
	keep.Entries = nil
	for _, e := range tree.Entries {
		if e.Optional {
			at, ok := mounts.HostPath(ops, e.Target)
			if !ok && within(e.Target, "/proc") {
				at, ok = e.Target, true
			}
			if ok {
				if _, err := os.Lstat(at); err != nil {
					continue
				}
			}
		}
		keep.Entries = append(keep.Entries, e)
	}
	return &keep, ops, nil
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// Lookup reports a command that is certain not to be there, or not to be
// executable: other programs would say so only in words.
func Lookup(p *policy.Policy, ops []mounts.Op) error {
	found := error(syscall.ENOENT)
	for _, c := range reexec.Candidates(p.OCI.Process.Args[0], p.OCI.Process.Env) {
		if !strings.HasPrefix(c, "/") {
			c = strings.TrimSuffix(p.OCI.Process.Cwd, "/") + "/" + c
		}
		at, ok := mounts.HostPath(ops, c)
		if !ok {
			if inside(ops, c) {
				return nil // private, or the sandbox's own: who knows
			}
			continue
		}
		fi, err := os.Stat(at)
		switch {
		case err != nil && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)):
		case err != nil:
			return nil
		case fi.IsDir() || fi.Mode()&0o111 == 0:
			found = syscall.EACCES
		default:
			return nil
		}
	}
	return &driver.CommandError{Command: p.OCI.Process.Args[0], Err: found}
}

// inside reports whether a path is in storage of the sandbox's own.
func inside(ops []mounts.Op, target string) bool {
	for i := range ops {
		switch ops[i].Kind {
		case mounts.Scratch, mounts.Tmpfs, mounts.Proc, mounts.File:
			if within(target, ops[i].Target) {
				return true
			}
		}
	}
	return false
}
