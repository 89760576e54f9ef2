package profiles

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// A statement is what one source says of one path and all below it. The zero
// statement says nothing.
type statement struct {
	path   string
	origin string

	access   policy.Access // granted; 0 grants nothing
	optional bool          // the path may be missing
	named    bool          // the grant names this path itself, not a pattern
	link     bool          // the path is a symbolic link, granted so that it can be followed
	way      *place        // how the path was found, if by a link that an earlier command can have made
	overlay  bool          // the path is copy-on-write
	discard  bool          // what is changed below is the sandbox's own
	unix     bool          // the sockets at the path and below may be connected to
	flag     bool          // a flag grants it: what weaker sources grant for this very path does not count

	hide   bool          // hidden, whatever else is said
	secret bool          // hidden, unless a grant names the path or one below it
	deny   policy.Access // taken away, whatever grants say
}

// shown is what a path shows, below what shows it.
type shown struct {
	path    string
	visible bool // something of the host is shown here
	access  policy.Access
	overlay bool // copy-on-write
	discard bool
	deny    policy.Access
	hidden  bool
	secret  bool
}

// takes reports whether a grant counts below this.
func (above *shown) takes(n *statement) bool {
	return n.access != 0 && (!above.secret || n.named) && !(n.link && above.visible)
}

// grant shows a path, and reports whether that differs from what shows it already.
func (at *shown) grant(n *statement, above *shown) (differs bool) {
	at.secret = false
	at.access = n.access &^ at.deny
	at.visible = true
	at.overlay = n.overlay && at.access&policy.Write != 0 || above.overlay && above.access == at.access
	at.discard = n.discard && at.access&policy.Read != 0 && (at.access|at.deny)&policy.Write == 0
	return !above.visible || above.access != at.access || above.discard != at.discard || n.overlay
}

func (at *shown) nothing() { at.visible, at.access, at.overlay, at.discard = false, 0, false, false }

// combine makes the rules of a policy from statements. The statements are a
// set: their order does not matter.
//
//   - Grants for one path add up, but flags replace what the profile grants for
//     the same path; the deepest grant for a path decides.
//   - A hidden path is hidden with all below it: no grant shows any of it.
//   - A secret path is hidden too, but a grant that names it lifts that, and one
//     that names a path below it shows that path alone. A grant of a directory
//     above does not, and neither does a pattern that happens to match.
//   - A denied access is taken from every grant at the path and below.
//
// Rules that change nothing are left out, for each costs a mount: a hidden path
// that nothing shows, and a grant of what the directory above grants already.
// Private mounts (destinations in mounts) cover what grants above them show.
func combine(statements []statement, mounts []string) []policy.FileRule {
	nodes := mergeStatements(statements)
	rules := make([]policy.FileRule, 0, len(nodes))
	stack := []shown{{path: "/"}}
	for i := range nodes {
		n := &nodes[i]
		for !policy.Below(n.path, stack[len(stack)-1].path) {
			stack = stack[:len(stack)-1]
		}
		above := stack[len(stack)-1]
		// Of the whole host, the kernel's files are left out.
		if above.visible && (covered(above.path, n.path, mounts) || above.path == "/" && policy.Below(n.path, "/sys")) {
			above.nothing()
		}
		at := above
		at.path = n.path
		at.deny |= n.deny
		emit := func(a policy.Access, optional bool) {
			rules = append(rules, policy.FileRule{Path: n.path, Access: a, Overlay: at.overlay && n.overlay,
				Discard: at.discard && a != policy.Hide, Optional: optional, Origin: n.origin})
		}
		switch {
		case above.hidden:
		case n.hide, n.secret && !n.named:
			at.hidden, at.secret = n.hide, true
			if at.visible {
				emit(policy.Hide, true)
			}
			at.nothing()
		case above.takes(n):
			if at.grant(n, &above) {
				emit(at.access, n.optional)
			}
		case at.visible && at.access&at.deny != 0:
			at.access &^= at.deny
			at.overlay, at.discard = false, false
			emit(at.access, true)
		}
		stack = append(stack, at)
	}
	return rules
}

// covered reports whether a private mount lies between a directory and a path
// below it.
func covered(dir, p string, mounts []string) bool {
	return slices.ContainsFunc(mounts, func(m string) bool {
		return m != p && m != dir && policy.Below(p, m) && policy.Below(m, dir)
	})
}

// mergeStatements sorts statements so that a directory comes before what it
// holds, one for each path.
func mergeStatements(statements []statement) []statement {
	out := slices.Clone(statements)
	for i := range out {
		// Only a grant can name a secret and so lift it.
		out[i].named = out[i].named && out[i].access != 0
	}
	slices.SortFunc(out, func(a, b statement) int {
		return cmp.Or(policy.ComparePaths(a.path, b.path),
			// Equal paths in a fixed order, for the origin.
			cmp.Compare(a.access, b.access), strings.Compare(a.origin, b.origin))
	})
	merged := out[:0]
	for _, s := range out {
		if len(merged) == 0 || merged[len(merged)-1].path != s.path {
			merged = append(merged, s)
			continue
		}
		merged[len(merged)-1].add(&s)
	}
	return merged
}

// add is what two statements say of one path.
func (m *statement) add(s *statement) {
	hides := m.hide
	m.hide = m.hide || s.hide
	m.secret = m.secret || s.secret
	m.named = m.named || s.named
	m.deny |= s.deny
	switch {
	case s.hide && !hides:
		m.origin = s.origin
	case s.access == 0 || m.hide:
	case m.access == 0 || s.flag && !m.flag:
		m.access, m.optional, m.link, m.overlay, m.discard, m.flag, m.origin = s.access, s.optional, s.link, s.overlay,
			s.discard, s.flag, s.origin
	case s.flag == m.flag:
		m.access |= s.access
		m.optional = m.optional && s.optional
		m.link = m.link && s.link
		m.overlay = m.overlay || s.overlay
		m.discard = m.discard || s.discard
		m.origin = s.origin
	}
}

// socketsAt is what --allow-unix says of a path: like a link, it is shown where nothing
// else shows it.
var socketsAt = statement{access: policy.ReadExec, link: true, unix: true}

// connectable are the paths whose sockets may be connected to: those that say so, and
// sockets that a grant names.
func connectable(statements []statement) (paths []string) {
	for i := range statements {
		if s := &statements[i]; s.unix && !slices.Contains(paths, s.path) && !hidden(statements, s) {
			paths = append(paths, s.path)
		}
	}
	slices.SortFunc(paths, policy.ComparePaths)
	return paths
}

// hidden reports whether what a statement grants is hidden: by whoever says so, or as a secret
// that no grant names.
func hidden(statements []statement, of *statement) bool {
	return slices.ContainsFunc(statements, func(h statement) bool {
		names := func(g statement) bool {
			return g.access != 0 && g.named && policy.Below(of.path, g.path) && policy.Below(g.path, h.path)
		}
		return policy.Below(of.path, h.path) && (h.hide || h.secret && !slices.ContainsFunc(statements, names))
	})
}

// listedStatements reads the lists of the profile. Presets are written for
// every host: what they name and the host lacks is left to the driver, and only
// what can be a link of the caller's making is looked up.
func (c *collected) listedStatements(facts *Facts, workspace string) ([]statement, error) {
	out := make([]statement, 0, 64)
	for _, l := range [...]struct {
		key key
		statement
	}{
		{keyRead, statement{access: policy.ReadExec}},
		{keyReadTry, statement{access: policy.ReadExec, optional: true}},
		{keyCopyTry, statement{access: policy.ReadExec, optional: true, discard: true}},
		{keyWrite, statement{access: policy.All}},
		{keyWriteTry, statement{access: policy.All, optional: true}},
		{keyUnix, socketsAt},
		{keyHide, statement{hide: true, optional: true}},
		{keyDenyWrite, statement{deny: policy.Write, optional: true}},
		{keyDenyExec, statement{deny: policy.Execute, optional: true}},
	} {
		for _, p := range c.values[l.key].parts {
			builtin := strings.HasPrefix(p.origin, "preset ")
			for _, item := range p.items {
				s := l.statement
				s.origin = p.origin
				if builtin && item[0] == '/' {
					s.path, s.named = item, true
					out = append(out, s)
					continue
				}
				if item[0] == '~' && facts.home() == "" && (builtin || s.optional) {
					continue
				}
				var err error
				if out, err = appendStatements(out, s, item, workspace, facts); err != nil {
					return nil, at(p.origin, err)
				}
			}
		}
	}
	return out, nil
}

func appendMatches(out []statement, s statement, item, pattern string, facts *Facts) ([]statement, error) {
	matches, err := glob(facts.FS, pattern)
	if err != nil {
		return nil, err
	}
	if len(matches) == 0 && !s.optional {
		return nil, &Error{What: quote.Text(item) + " matches nothing",
			Fix: "patterns are expanded when the run starts; correct it, or leave it out"}
	}
	for _, m := range matches {
		pl, err := facts.follow(m)
		if pl.missing {
			continue // a dangling link, or gone since
		}
		if err != nil {
			return nil, err
		}
		if out, err = appendPlace(out, s, m, pl); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// appendStatements looks up what the caller wrote as a path and adds s for it,
// or for all that it matches.
func appendStatements(out []statement, s statement, item, base string, facts *Facts) ([]statement, error) {
	p, err := facts.expand(item, base)
	if err != nil {
		return nil, err
	}
	pl, err := facts.find(p)
	if pl.missing && isGlob(p) {
		return appendMatches(out, s, item, p, facts)
	}
	if pl.missing && s.optional {
		if s.access == 0 {
			// It cannot be shown, but it could come to be.
			s.path = pl.real
			out = append(out, s)
		}
		return out, nil
	}
	if s.optional && errors.Is(err, fs.ErrPermission) {
		return out, nil // what the caller cannot reach, the command cannot
	}
	if err == nil && pl.missing {
		err = pl.notThere(p)
	}
	if err != nil {
		return nil, err
	}
	s.named = true
	return appendPlace(out, s, p, pl)
}

func appendPlace(out []statement, s statement, name string, pl place) ([]statement, error) {
	if s.access != 0 || s.hide {
		if d := ownDirectory(pl.real); d != "" {
			return nil, &Error{What: pl.real + ": " + d + " is the sandbox's own", Fix: "a device is given with --device"}
		}
	}
	if s.access&policy.Write != 0 && pl.real == "/" {
		return nil, &Error{What: "the whole file system is never writable", Fix: "name the directories to write"}
	}
	s.path = pl.real
	socket := pl.mode&fs.ModeSocket != 0
	if s.unix && !socket {
		if !pl.mode.IsDir() {
			return nil, &Error{What: name + " is neither a Unix socket nor a directory", Fix: "files are shown with --ro and --rw"}
		}
		s.named = false // a secret is shown by its own name
	} else if socket && s.named && s.access != 0 {
		s.unix = true
	}
	if len(pl.planted) > 0 && s.access != 0 {
		s.way = &pl
		if s.access&policy.Write != 0 || s.unix {
			err := pl.escapes(name)
			switch {
			case err != nil && s.optional && s.access&policy.Write == 0:
				return out, nil
			case err != nil:
				return nil, err
			}
		}
	}
	out = append(out, s)
	if s.access != 0 {
		for _, l := range pl.links {
			out = append(out, statement{path: l, origin: s.origin, access: policy.ReadExec, optional: true, named: true,
				link: true})
		}
	}
	return out, nil
}

// ownDirectory returns the directory that every sandbox has of its own and that
// holds p, or "".
func ownDirectory(p string) string {
	for _, d := range [...]string{"/proc", "/dev"} {
		if policy.Below(p, d) && !strings.HasPrefix(p, "/dev/shm/") {
			return d
		}
	}
	return ""
}

// secretStatements adds the secrets that some grant would show; the others need
// no look-up.
func (c *collected) secretStatements(out []statement, facts *Facts, workspace string) ([]statement, error) {
	grants := out
	home := facts.home()
	for i := range grants {
		if g := &grants[i]; g.way != nil && g.named {
			if err := c.reaches(g.way.written, g.way, facts, workspace); err != nil {
				return nil, at(g.origin, err)
			}
		}
	}
	// Most runs show nothing of the home, or one directory in it: that is told
	// from the item as written, without making sixty paths of it.
	homeShown := false
	var inHome []string // what grants show in the home, from there: "/src/project"
	for i := range grants {
		if g := &grants[i]; g.access != 0 && home != "" {
			homeShown = homeShown || policy.Below(home, g.path)
			if policy.Below(g.path, home) {
				inHome = append(inHome, g.path[len(home):])
			}
		}
	}
	for origin, item := range c.values[keySecrets].each() {
		full := item
		switch {
		case item[0] == '~' && home == "":
			continue
		case strings.HasPrefix(item, "~/") && !homeShown && !isGlob(item) &&
			!slices.ContainsFunc(inHome, func(g string) bool { return policy.Below(item[1:], g) }):
			continue
		case item[0] != '/' || !strings.HasPrefix(origin, "preset "):
			var err error
			if full, err = facts.expand(item, workspace); err != nil {
				return nil, at(origin, err)
			}
		}
		if home != "" && policy.Below(home, full) {
			continue // /root, where that is the caller's own home
		}
		if !shows(grants, full) {
			continue
		}
		var err error
		s := statement{origin: origin, secret: true, optional: true}
		if out, err = appendStatements(out, s, item, workspace, facts); err != nil {
			return nil, at(origin, err)
		}
	}
	return out, nil
}

// reaches refuses a place that is in a secret only because a link leads there:
// naming a secret shows it, and a link names nothing.
func (c *collected) reaches(name string, pl *place, facts *Facts, workspace string) error {
	if len(pl.planted) == 0 {
		return nil
	}
	return c.eachSecret(facts, workspace, func(item string, names []string) error {
		if covers(names, pl.real) && !covers(names, pl.written) {
			return pl.misleads(name, pl.planted[0], "that is secret ("+item+"), and a link does not name it")
		}
		return nil
	})
}

// eachSecret calls do with every secret as it was listed, and its paths or
// patterns: as written and as links lead.
func (c *collected) eachSecret(facts *Facts, workspace string, do func(item string, names []string) error) error {
	for origin, item := range c.values[keySecrets].each() {
		if item[0] == '~' && facts.home() == "" {
			continue
		}
		full, err := facts.expand(item, workspace)
		if err != nil {
			return at(origin, err)
		}
		if h := facts.home(); h != "" && policy.Below(h, full) {
			continue // /root, where that is the caller's own home
		}
		names := []string{full}
		if pl, err := facts.follow(full); err == nil && pl.real != full {
			names = append(names, pl.real, pl.written)
		}
		if err := do(item, names); err != nil {
			return err
		}
	}
	return nil
}

// covers reports whether p is one of the paths, matches one of the patterns, or
// is below what does.
func covers(names []string, p string) bool {
	for _, n := range names {
		if policy.Below(p, n) {
			return true
		}
		if !isGlob(n) {
			continue
		}
		for d := p; d != "/"; d = path.Dir(d) {
			if ok, err := doublestar.Match(n, d); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// shows reports whether a grant covers a path, or part of what a pattern
// matches.
func shows(grants []statement, p string) bool {
	fixed, pattern := p, false
	if i := strings.IndexAny(p, `*?[{\`); i >= 0 {
		fixed, pattern = cmp.Or(p[:strings.LastIndexByte(p[:i], '/')], "/"), true
	}
	for i := range grants {
		g := &grants[i]
		if g.access == 0 {
			continue
		}
		if policy.Below(fixed, g.path) || !g.named && policy.Below(g.path, fixed) || pattern && policy.Below(g.path, fixed) &&
			leadsTo(g.path, p) {
			return true
		}
	}
	return false
}

// leadsTo reports whether what a pattern matches can be in dir.
func leadsTo(dir, pattern string) bool {
	for {
		d, drest, _ := strings.Cut(dir, "/")
		e, erest, more := strings.Cut(pattern, "/")
		if strings.ContainsAny(e, `[{\`) || strings.Contains(e, "**") {
			return true // too clever to tell
		}
		if e != d && e != "*" {
			return strings.ContainsAny(e, "*?")
		}
		if drest == "" {
			return true
		}
		if !more {
			return false
		}
		dir, pattern = drest, erest
	}
}
