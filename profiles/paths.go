package profiles

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// fsPath turns an absolute path into one of io/fs.
func fsPath(p string) string {
	if p == "/" {
		return "."
	}
	return strings.TrimPrefix(p, "/")
}

// home returns the caller's home directory, or "" if there is none that could
// be told from the rest of the system.
func (f *Facts) home() string {
	h := path.Clean(f.Home)
	if h == "/" || !path.IsAbs(h) {
		return ""
	}
	return h
}

// absolute makes a path that the caller wrote absolute.
func (f *Facts) absolute(p string) (string, error) { return f.expand(p, f.Cwd) }

// expand makes a path absolute and clean: ~ is the caller's home, a relative
// path starts at base. Variables are not expanded.
func (f *Facts) expand(p, base string) (string, error) {
	switch {
	case p == "":
		return "", &Error{What: "the path is empty"}
	case strings.ContainsAny(p, "\x00\n"):
		return "", &Error{What: "the path " + quote.Text(p) + " holds a NUL byte or a newline",
			Fix: "rename it: such a path cannot be told safely from two"}
	case !utf8.ValidString(p):
		return "", &Error{What: "the path " + quote.Text(p) + " is not UTF-8"}
	case p == "~" || strings.HasPrefix(p, "~/"):
		if f.home() == "" {
			return "", &Error{What: quote.Text(p) + ": there is no home directory", Fix: "set HOME, or write the path out"}
		}
		return path.Join(f.home(), p[1:]), nil
	case p[0] == '~':
		return "", &Error{What: quote.Text(p) + ": only the caller's own ~ is known",
			Fix: "write the path out, or ./" + p + " for a file of that name"}
	case !path.IsAbs(p):
		if base == "" {
			return "", &Error{What: quote.Text(p) + ": a relative path, and no directory to start at", Fix: "write the path out"}
		}
		return path.Join(base, p), nil
	}
	return path.Clean(p), nil
}

// A place is a path of the host, followed to its end.
type place struct {
	real  string   // without symbolic links
	links []string // symbolic links met on the way, each by its own real path
	mode  fs.FileMode

	// planted are those links that a command of an earlier run can have made,
	// and written is the path up to the first of them: what the caller typed,
	// with no more than the system's own links followed.
	planted []string
	written string

	missing bool   // real does not exist
	above   string // then the deepest directory of it that does
	lacks   string // and what is not in there
}

// notThere says that a path, by the name that the caller gave it, is missing.
func (pl *place) notThere(name string) *Error {
	e := &Error{What: name + " does not exist", Fix: "create it, or correct the path"}
	if pl.above != path.Dir(name) {
		e.What += " (" + pl.above + " does, without " + quote.Text(pl.lacks) + ")"
	}
	return e
}

// escape returns the first link that a command of an earlier run can have made
// and that leads out of the directory that holds it, or "".
func (pl *place) escape() string {
	for _, l := range pl.planted {
		if !policy.Below(pl.real, path.Dir(l)) {
			return l
		}
	}
	return ""
}

// misleads refuses a path, by the name that the caller gave it, because of a
// link on its way.
func (pl *place) misleads(name, link, why string) *Error {
	how := name + " goes through the symbolic link " + link
	if name == link {
		how = name + " is a symbolic link"
	}
	return &Error{
		What: how + " to " + pl.real + ": " + why,
		Fix:  "type the real path if that is meant: " + pl.real,
	}
}

// escapes refuses what is to be written if a link chooses where that is.
func (pl *place) escapes(name string) error {
	if l := pl.escape(); l != "" {
		return pl.misleads(name, l, "an earlier command can have made that link")
	}
	return nil
}

// canPlant reports whether a command of an earlier run can have made a symbolic
// link. Those of the system belong to root and lie outside the places that
// people work in. To root every link belongs, and so only the directories of
// the system count as such.
func (f *Facts) canPlant(link string, info fs.FileInfo) bool {
	if slices.Contains(f.homeLinks, link) {
		return false
	}
	if h := f.home(); h != "" && policy.Below(link, h) {
		return true
	}
	for _, d := range [...]string{f.Cwd, f.workspace} {
		if path.IsAbs(d) && d != "/" && policy.Below(link, d) && !systemDirectory(d) {
			return true
		}
	}
	uid, known := ownerOf(info)
	if !known || uid == 0 && f.UID != 0 {
		return false
	}
	dir := path.Dir(link)
	return uid != 0 || dir != "/" && (!systemDirectory(dir) || slices.Contains([]string{"/tmp", "/var/tmp"}, dir))
}

// maxLinks is the kernel's own bound; see path_resolution(7).
const maxLinks = 40

// follow resolves every symbolic link in an absolute path. The error names the
// deepest directory that exists.
func (f *Facts) follow(p string) (place, error) {
	pl, err := f.find(p)
	if err == nil && pl.missing {
		err = pl.notThere(p)
	}
	return pl, err
}

// find is follow for what may be missing, which is no error.
func (f *Facts) find(p string) (place, error) {
	pl, err := f.walk(p)
	if len(pl.planted) == 0 {
		pl.written = pl.real
	}
	return pl, err
}

func (f *Facts) walk(p string) (place, error) {
	fsys := f.FS
	pl := place{real: "/", mode: fs.ModeDir}
	rest := strings.TrimPrefix(p, "/")
	if f.homeReal && policy.Below(p, f.Home) {
		// Most of what is looked up lies there: it was followed once.
		pl.real, rest = f.Home, p[len(f.Home):]
	}
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			pl.real = path.Dir(pl.real)
			continue
		}
		next := strings.TrimSuffix(pl.real, "/") + "/" + name
		info, err := fs.Lstat(fsys, fsPath(next))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			pl.missing, pl.above, pl.lacks, pl.real = true, pl.real, name, path.Join(next, rest)
			return pl, nil
		case err != nil:
			return pl, &Error{What: p + " cannot be looked up at " + next, Err: pathCause(err)}
		}
		pl.mode = info.Mode()
		if info.Mode()&fs.ModeSymlink == 0 {
			pl.real = next
			continue
		}
		pl.links = append(pl.links, next)
		if f.canPlant(next, info) {
			if len(pl.planted) == 0 {
				pl.written = path.Join(next, rest)
			}
			pl.planted = append(pl.planted, next)
		}
		if len(pl.links) > maxLinks {
			return pl, &Error{What: p + " goes through too many symbolic links"}
		}
		target, err := fs.ReadLink(fsys, fsPath(next))
		if err != nil {
			return pl, &Error{What: p + " cannot be looked up at " + next, Err: pathCause(err)}
		}
		if path.IsAbs(target) {
			pl.real = "/"
		}
		rest = strings.TrimPrefix(target, "/") + "/" + rest
	}
	return pl, nil
}

// Bounds of what one pattern may cost.
const (
	maxMatches = 2048
	maxGlobDir = 20000
)

var errTooMany = errors.New("too many")

func isGlob(p string) bool { return strings.ContainsAny(p, "*?[{\\") }

// glob lists what an absolute pattern matches now, links not followed.
func glob(fsys fs.FS, pattern string) ([]string, error) {
	rel := fsPath(pattern)
	if !doublestar.ValidatePattern(rel) {
		return nil, &Error{What: quote.Text(pattern) + " is not a valid pattern",
			Fix: `want *, **, ?, [a-z], {a,b}; a \ takes the next character as it is`}
	}
	var out []string
	bounded := &boundedFS{FS: fsys}
	err := doublestar.GlobWalk(bounded, rel, func(p string, _ fs.DirEntry) error {
		if len(out) == maxMatches {
			return errTooMany
		}
		out = append(out, path.Join("/", p))
		return nil
	}, doublestar.WithNoFollow())
	if errors.Is(err, errTooMany) || bounded.dirs > maxGlobDir {
		return nil, &Error{What: quote.Text(pattern) + " matches too much", Fix: "name a directory nearer to what is meant"}
	}
	if err != nil {
		return nil, &Error{What: quote.Text(pattern) + " cannot be looked up", Err: pathCause(err)}
	}
	return out, nil
}

// boundedFS fails once too many directories have been listed.
type boundedFS struct {
	fs.FS
	dirs int
}

func (b *boundedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	b.dirs++
	if b.dirs > maxGlobDir {
		return nil, errTooMany
	}
	return fs.ReadDir(b.FS, name)
}

func (b *boundedFS) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(b.FS, name) }
func (b *boundedFS) ReadLink(name string) (string, error)   { return fs.ReadLink(b.FS, name) }
func (b *boundedFS) Stat(name string) (fs.FileInfo, error)  { return fs.Stat(b.FS, name) }

// rememberingFS looks each path up once: most of what a policy is about lies in the
// same few directories.
type rememberingFS struct {
	fs.FS
	seen map[string]looked
}

type looked struct {
	info fs.FileInfo
	err  error
}

func (r *rememberingFS) Lstat(name string) (fs.FileInfo, error) {
	l, ok := r.seen[name]
	if !ok {
		l.info, l.err = fs.Lstat(r.FS, name)
		r.seen[name] = l
	}
	return l.info, l.err
}

func (r *rememberingFS) ReadLink(name string) (string, error)       { return fs.ReadLink(r.FS, name) }
func (r *rememberingFS) Stat(name string) (fs.FileInfo, error)      { return fs.Stat(r.FS, name) }
func (r *rememberingFS) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(r.FS, name) }

// Named follows a path that the caller named, for a file that sbxrun itself is to
// read or write, and returns it without symbolic links. A link that a command of an
// earlier run can have made, and that leads out of its directory, is refused. With
// entry, only the directory is followed: the last name need not exist, and is not
// followed if it is a link.
func (f *Facts) Named(name string, entry bool) (string, error) {
	known := f.known()
	p, err := known.absolute(name)
	if err != nil {
		return "", err
	}
	end := ""
	if entry {
		p, end = path.Dir(p), path.Base(p)
	}
	pl, err := known.follow(p)
	if err != nil {
		return "", err
	}
	if err := pl.escapes(p); err != nil {
		return "", err
	}
	return path.Join(pl.real, end), nil
}

// Into is Named for a directory that is to be filled, and need not exist. What is below
// chosen in its path, an earlier command can have chosen by a link.
func (f *Facts) Into(name string) (dir, chosen string, err error) {
	known := f.known()
	p, err := known.absolute(name)
	if err != nil {
		return "", "", err
	}
	pl, err := known.find(p)
	if err == nil {
		err = pl.escapes(p)
	}
	if err != nil {
		return "", "", err
	}
	chosen = pl.real
	for _, l := range pl.planted {
		if d := path.Dir(l); policy.Below(chosen, d) {
			chosen = d
		}
	}
	return pl.real, chosen, nil
}
