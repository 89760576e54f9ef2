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
		if st, err = appendStatements(st, statement{hide: true, optional: true, origin: ownOrigin}, o.Path, "/", r.facts); err != nil {
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

// keepOwn makes nothing writable of what later runs obey. Such a place is read-only
// or hidden, and each directory between it and the grant is a mount of its own: the
// kernel renames no mount point, so none of them can be exchanged. It returns the
// directories that are not there and have to be made before.
func (r *resolver) keepOwn(p *policy.Policy) (missing []string, err error) {
	if !writesHost(p) {
		return nil, nil
	}
	var granted []string // what is writable, by what showed it
	origin := map[string]string{}
	for _, f := range p.Files {
		if f.Access&policy.Write != 0 {
			granted, origin[f.Path] = append(granted, f.Path), f.Origin
		}
	}
	files, binds := granted, false
	for _, m := range p.OCI.Mounts {
		if writableBind(m) {
			granted, origin[m.Source], binds = append(granted, m.Source), "flag --bind", true
		}
	}
	for _, o := range slices.Concat(r.facts.Own, r.linked(granted), r.obeyed()) {
		if !o.linked && !binds && !slices.ContainsFunc(files, func(f string) bool { return policy.Below(f, o.Path) || policy.Below(o.Path, f) }) &&
			(systemDirectory(o.Path) || policy.Below(o.Path, "/nix") || policy.Below(o.Path, "/snap") || policy.Below(o.Path, "/run/current-system")) {
			continue // what is root's needs no look-up
		}
		pl, err := r.facts.find(o.Path)
		if err != nil {
			continue // it leads nowhere, or where the caller cannot go
		}
		refuse := func(where, fix string) error {
			return &Error{Where: where, What: o.What + " is in " + pl.real + ", which later runs obey and the command could write", Fix: fix}
		}
		for _, m := range p.OCI.Mounts {
			meant := !o.File && !o.Shown && slices.Contains(r.kept, m.Source)
			if binds && writableBind(m) && slices.ContainsFunc(append(pl.links, pl.real), func(l string) bool {
				return policy.Below(l, m.Source) || policy.Below(m.Source, pl.real) && !meant
			}) {
				return nil, refuse("flag --bind", "bind the parts that are needed, or add :ro")
			}
		}
		for _, f := range p.Files {
			if f.Access&policy.Write != 0 && policy.Below(f.Path, pl.real) {
				return nil, refuse(f.Origin, "show it read-only, or work in another directory")
			}
		}
		for _, g := range granted {
			if !pl.missing && r.facts.alias(g, pl.real) || r.facts.alias(pl.real, g) {
				return nil, refuse(origin[g], g+" is another name of what holds it, or of a part; name it as it is there")
			}
		}
		needed := false
		for _, end := range append(pl.links, pl.real) {
			if !slices.ContainsFunc(files, func(f string) bool { return policy.Below(end, f) }) {
				continue // nothing on the way to it can be written
			}
			for at := range ancestors(end) {
				f := writableAt(p, path.Dir(at))
				switch {
				case f == nil:
					continue
				case end != pl.real && at == end:
					return nil, refuse(f.Origin, "grant less: the symbolic link "+end+" leads there, and the command could make it lead elsewhere")
				case f.Overlay && o.File:
					continue // what is changed of it is seen before it is applied
				case f.Overlay:
					return nil, refuse(f.Origin, "work in another directory")
				case at == pl.real && pl.missing && o.File:
					if !readOnlyDir(p, path.Dir(at), f.Access&policy.ReadExec) {
						return nil, &Error{Where: f.Origin, What: "the command could make " + at + ", which later runs obey",
							Fix: "make it first, grant less, or work in another directory"}
					}
					continue
				}
				needed = true
				if slices.ContainsFunc(p.Files, func(f policy.FileRule) bool { return f.Path == at }) ||
					slices.ContainsFunc(p.OCI.Mounts, func(m specs.Mount) bool { return m.Destination == at }) {
					continue // it is a mount already
				}
				rule := policy.FileRule{Path: at, Access: f.Access, Optional: true, Origin: ownOrigin}
				switch {
				case at != pl.real:
				case o.Shown:
					rule.Access = f.Access & policy.ReadExec
				default:
					rule.Access = policy.Hide
				}
				p.Files = append(p.Files, rule)
			}
		}
		if needed && pl.missing && !o.File {
			missing = append(missing, pl.real)
		}
	}
	return missing, nil
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
		if r.read[name] != "" && !slices.ContainsFunc(r.facts.ConfigDirs, func(d string) bool { return policy.Below(name, d) }) {
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
		return !slices.ContainsFunc([]string{r.facts.home(), "/tmp", "/var/tmp"}, func(d string) bool { return d != "" && policy.Below(g, d) })
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
