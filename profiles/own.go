package profiles

import (
	"errors"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// An Own is a place that sbxrun reads, executes or trusts in later runs. No grant
// makes it writable, whether it exists or not.
type Own struct {
	What string // for messages: "the configuration"
	Path string // absolute

	// File is for a file, which cannot be made beforehand. Anything else is a
	// directory, and is made where a grant would let the command make it.
	File bool

	// Shown is for a place that a command may read where a rule shows it. Others
	// are hidden.
	Shown bool

	// Programs are names of files in the directory that are executed. Where one is a
	// symbolic link, the file that it leads to counts as well.
	Programs []string `json:",omitempty"`

	linked bool // it is such a link
}

// ownOrigin is the origin of rules about such places.
const ownOrigin = "sbxrun's own"

// hideOwn adds the statements that hide what is not to be read.
func (r *resolver) hideOwn(st []statement) ([]statement, error) {
	for _, o := range r.facts.Own {
		if o.Shown {
			continue
		}
		var err error
		if st, err = appendStatements(st, statement{hide: true, optional: true, origin: ownOrigin}, o.Path, "/",
			r.facts); err != nil {
			var e *Error
			if errors.As(err, &e) {
				e.What = "sbxrun's own directory " + e.What
				e.Fix = "correct the variable that leads there: XDG_RUNTIME_DIR, XDG_STATE_HOME, HOME or SBXRUN_SERVER"
			}
			return nil, err
		}
	}
	return st, nil
}

// grants are what a policy makes writable of the host.
type grants struct {
	*resolver
	p       *policy.Policy
	all     []string
	files   []string          // those of all that are no binds
	binds   bool              // there are binds
	origin  map[string]string // of all
	missing []string          // directories that have to be made before
}

// keepOwn makes nothing writable of what later runs obey. Such a place is read-only
// or hidden, and each directory between it and the grant is a mount of its own: the
// kernel renames no mount point, so none of them can be exchanged. It returns the
// directories that are not there and have to be made before.
func (r *resolver) keepOwn(p *policy.Policy) (missing []string, err error) {
	if !writesHost(p) {
		return nil, nil
	}
	g := &grants{resolver: r, p: p, origin: map[string]string{}}
	for _, f := range p.Files {
		if f.Access&policy.Write != 0 {
			g.all, g.origin[f.Path] = append(g.all, f.Path), f.Origin
		}
	}
	g.files = g.all
	for _, m := range p.OCI.Mounts {
		if writableBind(m) {
			g.all, g.origin[m.Source], g.binds = append(g.all, m.Source), "flag --bind", true
		}
	}
	for _, o := range slices.Concat(r.facts.Own, r.linked(g.all), r.obeyed()) {
		if g.apart(&o) {
			continue // what is root's needs no look-up
		}
		pl, err := r.facts.find(o.Path)
		if err != nil {
			continue // it leads nowhere, or where the caller cannot go
		}
		if err := g.granted(&o, pl); err != nil {
			return nil, err
		}
		if err := g.enclose(&o, pl); err != nil {
			return nil, err
		}
	}
	return g.missing, nil
}

// apart reports whether a place is the system's, and no grant is near it.
func (g *grants) apart(o *Own) bool {
	near := func(f string) bool { return policy.Below(f, o.Path) || policy.Below(o.Path, f) }
	below := func(d string) bool { return policy.Below(o.Path, d) }
	return !o.linked && !g.binds && !slices.ContainsFunc(g.files, near) &&
		(systemDirectory(o.Path) || slices.ContainsFunc([]string{"/nix", "/snap", "/run/current-system"}, below))
}

// granted refuses a place that a grant itself shows, by whatever name.
func (g *grants) granted(o *Own, pl place) error {
	refuse := func(where, fix string) error {
		return &Error{Where: where,
			What: o.What + " is in " + pl.real + ", which later runs obey and the command could write", Fix: fix}
	}
	if g.binds && slices.ContainsFunc(g.p.OCI.Mounts, func(m specs.Mount) bool { return g.bound(o, pl, m) }) {
		return refuse("flag --bind", "bind the parts that are needed, or add :ro")
	}
	for _, f := range g.p.Files {
		if f.Access&policy.Write != 0 && policy.Below(f.Path, pl.real) {
			return refuse(f.Origin, "show it read-only, or work in another directory")
		}
	}
	for _, at := range g.all {
		if !pl.missing && g.facts.alias(at, pl.real) || g.facts.alias(pl.real, at) {
			return refuse(g.origin[at], at+" is another name of what holds it, or of a part; name it as it is there")
		}
	}
	return nil
}

// bound reports whether a mount makes a place writable, or a link to it.
func (g *grants) bound(o *Own, pl place, m specs.Mount) bool {
	meant := !o.File && !o.Shown && slices.Contains(g.kept, m.Source)
	return writableBind(m) && slices.ContainsFunc(append(pl.links, pl.real), func(l string) bool {
		return policy.Below(l, m.Source) || policy.Below(m.Source, pl.real) && !meant
	})
}

// enclose makes mounts of a place and of what leads to it, where that can be written.
func (g *grants) enclose(o *Own, pl place) error {
	needed := false
	for _, end := range append(pl.links, pl.real) {
		if !slices.ContainsFunc(g.files, func(f string) bool { return policy.Below(end, f) }) {
			continue // nothing on the way to it can be written
		}
		for at := range ancestors(end) {
			f := writableAt(g.p, path.Dir(at))
			if f == nil {
				continue
			}
			mount, err := g.exchangeable(o, pl, end, at, f)
			if err != nil {
				return err
			}
			if mount {
				needed = true
				g.mount(o, pl, at, f.Access)
			}
		}
	}
	if needed && pl.missing && !o.File {
		g.missing = append(g.missing, pl.real)
	}
	return nil
}

// exchangeable reports whether what is at a path, in a directory that the rule f makes
// writable, has to be a mount so that it stays. It refuses what cannot be one.
func (g *grants) exchangeable(o *Own, pl place, end, at string, f *policy.FileRule) (bool, error) {
	refuse := func(fix string) error {
		return &Error{Where: f.Origin,
			What: o.What + " is in " + pl.real + ", which later runs obey and the command could write", Fix: fix}
	}
	switch {
	case end != pl.real && at == end:
		return false,
			refuse("grant less: the symbolic link " + end + " leads there, and the command could make it lead elsewhere")
	case f.Overlay && o.File:
		return false, nil // what is changed of it is seen before it is applied
	case f.Overlay:
		return false, refuse("work in another directory")
	case at == pl.real && pl.missing && o.File:
		if !readOnlyDir(g.p, path.Dir(at), f.Access&policy.ReadExec) {
			return false, &Error{Where: f.Origin, What: "the command could make " + at + ", which later runs obey",
				Fix: "make it first, grant less, or work in another directory"}
		}
		return false, nil
	}
	return true, nil
}

// mount adds a rule for a path, if it is no mount already.
func (g *grants) mount(o *Own, pl place, at string, access policy.Access) {
	if slices.ContainsFunc(g.p.Files, func(f policy.FileRule) bool { return f.Path == at }) ||
		slices.ContainsFunc(g.p.OCI.Mounts, func(m specs.Mount) bool { return m.Destination == at }) {
		return
	}
	switch {
	case at != pl.real:
	case o.Shown:
		access &= policy.ReadExec
	default:
		access = policy.Hide
	}
	g.p.Files = append(g.p.Files, policy.FileRule{Path: at, Access: access, Optional: true, Origin: ownOrigin})
}

// readOnlyDir makes a directory read-only, for a file that a command could make in it,
// unless a rule that is not ours names it.
func readOnlyDir(p *policy.Policy, dir string, access policy.Access) bool {
	for i := range p.Files {
		if f := &p.Files[i]; f.Path == dir {
			if f.Origin == ownOrigin {
				f.Access &= access
			}
			return f.Access&policy.Write == 0
		}
	}
	p.Files = append(p.Files, policy.FileRule{Path: dir, Access: access, Optional: true, Origin: ownOrigin})
	return true
}

// alias reports whether a directory, or one above it, is what the other path names
// under another name: by a bind mount, or in another letter case. Neither has links.
func (f *Facts) alias(dir, other string) bool {
	o, err := fs.Lstat(f.FS, fsPath(other))
	if err != nil {
		return false
	}
	for at := range ancestors(dir) {
		if policy.Below(at, other) {
			break
		}
		fi, err := fs.Lstat(f.FS, fsPath(at))
		if err != nil {
			break // nor is anything below
		}
		if os.SameFile(fi, o) {
			return true
		}
	}
	return false
}

// obeyed are the files that the policy is made of, but for those in the directories
// for configuration.
func (r *resolver) obeyed() []Own {
	var out []Own
	for _, name := range slices.Sorted(maps.Keys(r.read)) {
		if r.read[name] != "" && !slices.ContainsFunc(r.facts.ConfigDirs,
			func(d string) bool { return policy.Below(name, d) }) {
			out = append(out, Own{What: "a file that this policy is made of", Path: name, File: true, Shown: true})
		}
	}
	return out
}

// linked are the programs that symbolic links in the directories for programs lead to.
// Such a link is not followed to the home and to directories for temporary files, so
// that most runs, which grant nothing else, look for none.
func (r *resolver) linked(granted []string) []Own {
	if !slices.ContainsFunc(granted, func(g string) bool {
		return !slices.ContainsFunc([]string{r.facts.home(), "/tmp", "/var/tmp"},
			func(d string) bool { return d != "" && policy.Below(g, d) })
	}) {
		return nil
	}
	var out []Own
	looked := map[string]bool{}
	for _, o := range r.facts.Own {
		if len(o.Programs) == 0 {
			continue
		}
		dir := o.Path
		info, err := fs.Lstat(r.facts.FS, fsPath(dir))
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			var pl place
			pl, err = r.facts.find(dir)
			dir = pl.real
		}
		if err != nil || looked[dir] { // nothing is there, or it is /bin, which is /usr/bin
			continue
		}
		looked[dir] = true
		for _, name := range o.Programs {
			link := path.Join(o.Path, name)
			if r.facts.isLink(link) {
				out = append(out, Own{What: o.What, Path: link, File: true, Shown: true, linked: true})
			}
		}
	}
	return out
}

// isLink reports whether a path is a symbolic link. Nearly all of those that linked asks
// about are not, and most are not there: a file system that can tell by less than a look
// at the file has a method for it.
func (f *Facts) isLink(p string) bool {
	fsys := f.FS
	if r, ok := fsys.(*rememberingFS); ok {
		fsys = r.FS // nobody asks again
	}
	if l, ok := fsys.(interface{ IsLink(name string) bool }); ok {
		return l.IsLink(fsPath(p))
	}
	info, err := fs.Lstat(fsys, fsPath(p))
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// ancestors are the directories that lead to a path, from the one in / down, and it.
func ancestors(p string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := 1; i <= len(p); i++ {
			if (i == len(p) || p[i] == '/') && !yield(p[:i]) {
				return
			}
		}
	}
}

// writableAt is the rule by which a directory of the host can be written in, nil if
// there is none.
func writableAt(p *policy.Policy, dir string) *policy.FileRule {
	var best *policy.FileRule
	for i := range p.Files {
		if f := &p.Files[i]; policy.Below(dir, f.Path) && (best == nil || len(f.Path) > len(best.Path)) {
			best = f
		}
	}
	if best == nil || best.Access&policy.Write == 0 || slices.ContainsFunc(p.OCI.Mounts, func(m specs.Mount) bool {
		return policy.Below(dir, m.Destination) && policy.Below(m.Destination, best.Path)
	}) {
		return nil
	}
	return best
}

func writableBind(m specs.Mount) bool { return m.Type == "bind" && !slices.Contains(m.Options, "ro") }
