package engine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/learn"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// A ProfileFile is a profile of the user's, to which grants are added. Nil is a preset.
type ProfileFile struct {
	Path  string // without symbolic links
	facts *Facts
}

// granting is held while a profile is written: answers can come at the same time.
var granting sync.Mutex

// NewProfileFile is the profile in a file; "" is a preset. Preconditions: no command runs that
// could change where the name leads.
func NewProfileFile(name string, f *Facts) *ProfileFile {
	if name == "" {
		return nil
	}
	path, _ := filepath.Abs(name)
	real, _ := filepath.EvalSymlinks(path)
	return &ProfileFile{cmp.Or(real, path), f} // what is wrong with it is told when it is to be written
}

// Takes reports whether a grant can be added: the profile is there as it was, and what the
// policy is for cannot write it.
func (f *ProfileFile) Takes(g driver.Grant, p *policy.Policy) bool {
	_, _, err := f.with(g, "", p)
	return err == nil
}

// with returns the text of the profile, and what it is to be.
func (f *ProfileFile) with(g driver.Grant, why string, p *policy.Policy) (old, text string, err error) {
	if f == nil {
		return "", "", errors.New("the profile is in no file of yours")
	}
	var b []byte
	dir := filepath.Dir(f.Path)
	real, _ := filepath.EvalSymlinks(dir)
	info, err := os.Lstat(f.Path)
	switch {
	case err != nil:
	case real != dir || !info.Mode().IsRegular() || names(info) > 1:
		err = errors.New(f.Path + " is no regular file, or has other names")
	case unix.Access(dir, unix.W_OK) != nil:
		err = errors.New(dir + " cannot be written")
	default:
		b, err = os.ReadFile(f.Path)
	}
	if err != nil {
		return "", "", Usage(err.Error(), "name a profile that is there, for example with the one line: extends: strict")
	}
	// Its directory counts: where the file itself is mounted, it takes the place of that mount.
	if writes(p, f.Path) || writes(p, dir) {
		return "", "", Usage(f.Path+": the sandbox can write there", "name a profile outside of what it can change")
	}
	if text, err = learn.Granted(string(b), g, why); err != nil {
		return "", "", Usage(f.Path+": nothing was added: "+err.Error(), "add it by hand: "+g.Shell())
	}
	return string(b), text, nil
}

// dormant reports rules for hosts of a profile without a network, which a grant of one would
// wake.
func dormant(facts *Facts, file string) error {
	list, err := profiles.Show(&profiles.Request{Profile: file}, &facts.Facts)
	closed := func(e profiles.Entry) bool { return e.Key == "network.mode" && e.Value == "none" }
	if err != nil || !slices.ContainsFunc(list, closed) {
		return err
	}
	i := slices.IndexFunc(list, func(e profiles.Entry) bool { return e.Key == "network.allow" })
	if i < 0 {
		return nil
	}
	return errors.New("its network.mode is none, and its network.allow " + list[i].Value + " would count, too")
}

// writes reports whether what a policy is for can write a path of the host's.
func writes(p *policy.Policy, path string) (can bool) {
	for _, f := range p.Files { // the nearest rule is the last
		if policy.Below(path, f.Path) {
			can = f.Access&policy.Write != 0
		}
	}
	for _, m := range p.OCI.Mounts { // at another place
		can = can || strings.HasPrefix(m.Source, "/") && policy.Below(path, m.Source)
	}
	return can
}

// Grant has yes allow something, and adds the grant of it to the profile. Nothing is allowed
// if the profile cannot have it.
func (f *ProfileFile) Grant(g driver.Grant, why string, p *policy.Policy, yes func() error) (granted bool, err error) {
	granting.Lock()
	defer granting.Unlock()
	old, text, err := f.with(g, why, p)
	if err != nil {
		return false, err
	}
	tmp, err := readable(f.facts, f.Path, text)
	if err != nil {
		return false, err
	}
	defer os.Remove(tmp)
	_, value := g.Parts()
	err = keeps(f.facts, f.Path, tmp, func(e profiles.Entry) bool {
		return e.Key == "network.mode" && e.Value == "none" || e.Key == "files.protect" && e.Value == value
	})
	if err == nil {
		err = dormant(f.facts, f.Path)
	}
	if err != nil {
		return false, Usage(f.Path+": nothing was added: "+err.Error(), "add it by hand: "+g.Shell())
	}
	if err := yes(); err != nil {
		return false, err
	}
	if err := replace(f.Path, tmp, []byte(old)); err != nil {
		return true, fmt.Errorf("it is granted as long as this sandbox is there, and %s was not written: %w", f.Path, err)
	}
	return true, nil
}
