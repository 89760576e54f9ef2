// Package learn makes a profile of what a command was seen to use: the smallest that
// gives what the base of the profile does not give.
//
// It decides nothing for the sandbox. What a command uses it chooses itself, so a
// learned profile is a proposal: it never has a secret, a home, a socket or a place from
// which other programs take what they execute, and it says what it left out.
package learn

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// Bounds of what is remembered, bytes: of paths that the base does not give, and of those
// that need not be looked up again.
const (
	maxUses  = 64 << 20
	maxKnown = 32 << 20
)

// A Collector takes in what a command uses.
type Collector struct {
	open, base *policy.Policy // under which it runs, and which it is compared with

	mu    sync.Mutex
	uses  map[key]*use
	whole map[string]bool // paths of which the command has replaced all that was there
	known map[key]bool    // what the base gives, as far as there is room to remember it
	lost  uint64

	room, knownRoom int // bytes
}

type key struct {
	op          driver.Operation
	path, leads string
}

// size is about what it takes to remember one.
func (k key) size() int { return 500 + len(k.path) + len(k.leads) }

// A use is a path that the base does not give, or that was changed.
type use struct {
	driver.Use
	count    uint64
	programs []string
	target   bool // the base does not give the target
	leads    bool // nor where it leads
}

// maxPrograms is how many programs are named beside a path.
const maxPrograms = 3

// NewCollector is for a run under one policy whose profile is to extend another's.
func NewCollector(open, base *policy.Policy) *Collector {
	return &Collector{open: open, base: base, uses: map[key]*use{}, whole: map[string]bool{}, known: map[key]bool{},
		room: maxUses, knownRoom: maxKnown}
}

// Add is [driver.Stdio]'s Seen.
func (c *Collector) Add(u driver.Use, who func() *driver.Asker) {
	if Looks(u.Call) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key{u.Operation, u.Target, u.Leads}
	if c.known[k] {
		return
	}
	e := c.uses[k]
	if e == nil {
		e = &use{Use: u, target: !c.gives(u.Target), leads: u.Leads != u.Target && !c.gives(u.Leads)}
		if driver.RuleFor(c.open, u.Leads).Access&policy.Read == 0 || // it is the sandbox's own
			u.Operation != driver.OpWrite && (!e.target && !e.leads || c.whole[u.Leads]) {
			if c.knownRoom -= k.size(); c.knownRoom >= 0 {
				c.known[k] = true
			}
			return
		}
		if c.room < k.size() {
			c.lost++
			return
		}
		c.room -= k.size()
		c.uses[k] = e
		if u.Whole {
			c.whole[u.Leads] = true
		}
	}
	if e.count++; e.count <= maxPrograms || len(e.programs) == 0 {
		if name := program(who()); name != "" && !slices.Contains(e.programs, name) {
			e.programs = append(e.programs, name)
		}
	}
}

// Looks reports whether a call only asks whether something is there. Programs do that of
// much that they do without; what they then use is seen by another call.
func Looks(call string) bool {
	return slices.Contains([]string{"stat", "lstat", "access", "readlink", "chdir", "statfs", "listxattr"}, call)
}

// gives reports whether a path can be read under the base.
func (c *Collector) gives(path string) bool {
	r := driver.RuleFor(c.base, path)
	return r.Access&policy.Read != 0 || r.Own() && !policy.Below(path, "/dev")
}

// program is the name of a process's program, as it may stand in a comment.
func program(a *driver.Asker) string {
	if a == nil {
		return ""
	}
	f := strings.Fields(a.Command)
	if len(f) == 0 {
		return ""
	}
	name := []rune(quote.Line(path.Base(f[0])))
	return string(name[:min(len(name), 24)])
}

// A Host answers for the host's files.
type Host interface {
	// Withheld says why no grant of a path is proposed, "" if one may be.
	Withheld(path string, write bool) string
	// Real is where a path leads past symbolic links, "" if nowhere.
	Real(path string) string
	// Secrets are what is not to be shown at or below a real path, and why: what looks like
	// a credential, and what was hidden from the run. All reports whether everything there
	// was looked at.
	Secrets(path string) (found []Line, all bool)
	// Kind says what is at a path, past symbolic links.
	Kind(path string) Kind
	// Socket is a socket at or below a path, "" for none.
	Socket(path string) string
	// Protected is the pattern that protects a path of the workspace, "" for none.
	Protected(path string) string
}

// Kind is what is at a path.
type Kind int

// What is at a path.
const (
	Nothing Kind = iota
	Dir
	File
	Other // a socket, a device, a pipe
)

// A Line is an item of a list, and what there is to say of it.
type Line struct {
	Item, Comment string
}

// Found is what a run showed that its base does not give.
type Found struct {
	Read, Copy, Hide, Hosts []Line
	Changed                 bool   // the command changed the workspace
	Memory                  uint64 // bytes; 0 where the base's limit is enough
	Pids                    int64
	Minutes                 int64
	Peaks                   string // what it used, in words
	First, Left             []Line // what it used and nothing proposes, and why; secrets and sockets first
	Notes                   []string
	Lost                    uint64 // uses that there was no room to remember
}

// Propose returns what a profile needs to say.
func (c *Collector) Propose(host Host, home, workspace string) *Found {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &Found{Lost: c.lost}
	b := builder{host: host, home: home, root: &node{}, links: &node{}, found: f, written: map[string]bool{},
		open: c.open, base: c.base, granted: map[string]bool{}, shown: map[string]bool{}}
	var read []*use
	for _, u := range c.uses {
		switch {
		case u.Operation == driver.OpWrite && workspace != "" && policy.Below(u.Leads, workspace):
			f.Changed = true
			if p := host.Protected(u.Leads); p != "" {
				b.left(u.Leads, "changed, and protected by "+p, u)
			}
		case u.Operation == driver.OpWrite:
			b.written[u.Leads] = true
			b.write(u)
		case u.Operation == driver.OpUnix:
			f.First = append(f.First, Line{u.Leads, "a socket, connected to" + by(u.programs)})
		default:
			read = append(read, u)
		}
	}
	// In one order, whatever the map's is: programs of a directory are those met first.
	slices.SortFunc(read, func(a, b *use) int { return strings.Compare(a.Target, b.Target) })
	for _, u := range read {
		if u.target {
			b.add(u, u.Target)
		}
		if u.leads {
			b.add(u, u.Leads)
		}
	}
	b.walk(b.root, "/")
	b.links.each(b.link)
	b.missing()
	for _, l := range [...]*[]Line{&f.Read, &f.Copy, &f.Hide, &f.First, &f.Left} {
		slices.SortFunc(*l, func(a, b Line) int {
			return cmp.Or(policy.ComparePaths(a.Item, b.Item), strings.Compare(a.Comment, b.Comment))
		})
		*l = slices.Compact(*l)
	}
	return f
}

// builder makes lines of paths.
type builder struct {
	host    Host
	home    string
	root    *node // of real paths
	links   *node // of paths through symbolic links
	found   *Found
	open    *policy.Policy
	base    *policy.Policy
	written map[string]bool
	absent  []*use          // what was changed and has to be there for that
	granted map[string]bool // real paths that have lines; true for copies
	shown   map[string]bool // symbolic links that the path of a line goes through
}

// A node is a path, with those below it.
type node struct {
	kids  map[string]*node
	at    string
	use   *use // of the path itself
	files int  // used paths here and below
}

func (b *builder) add(u *use, at string) {
	kind, real := b.host.Kind(at), b.host.Real(at)
	dir := kind == Dir
	r := driver.RuleFor(b.open, at)
	switch {
	case r.Access&policy.Write != 0 && !r.Copy:
		// --rw gave it. A line would show what a later run makes of it, as a link to elsewhere.
		return
	case kind == Nothing, dir != u.Dir:
		return // the command made it, in the sandbox alone
	case real != u.Leads:
		// A line would show what the command did not see, and nobody has judged.
		b.left(at, "not "+quote.Line(u.Leads)+" on the host, as it was in the run", u)
		return
	case kind == Other:
		b.first(at, "no regular file", u)
		return
	}
	if why := b.host.Withheld(at, false); why != "" && !dir {
		b.first(at, why, u)
		return
	}
	n := b.root
	if real != at {
		n = b.links
	}
	n.files++
	for _, name := range strings.Split(at[1:], "/") {
		if n.kids == nil {
			n.kids = map[string]*node{}
		}
		next := n.kids[name]
		if next == nil {
			next = &node{}
			n.kids[name] = next
		}
		n = next
		n.files++
	}
	if n.use != nil {
		n.files--
	}
	n.use, n.at = u, at
}

// link makes a line of a path through symbolic links if another line, or the base, shows
// what is there: that was judged by its real path. A line shows the links on its way, so one
// path through a link is enough, and no link stands for a whole directory.
func (b *builder) link(n *node) {
	real, last := b.host.Real(n.at), n.at
	for last != "/" && b.host.Real(last) == path.Join(b.host.Real(path.Dir(last)), path.Base(last)) {
		last = path.Dir(last)
	}
	covered, copied := driver.RuleFor(b.base, real).Access&policy.Read != 0, false
	for up := real; !covered && up != "/"; up = path.Dir(up) {
		copied, covered = b.granted[up]
	}
	l := Line{n.at, "a symbolic link" + by(n.use.programs)}
	switch {
	case !Plain(n.at): // it would be a pattern once it is no link any more
		b.left(n.at, "a profile cannot name it", n.use)
		return
	case !covered || b.host.Withheld(real, false) != "":
		b.left(n.at, "leads to "+quote.Line(real)+", which is not granted", n.use)
	case b.shown[last]:
	case copied:
		b.found.Copy = append(b.found.Copy, l)
	default:
		b.found.Read = append(b.found.Read, l)
	}
	b.shown[last] = b.shown[last] || covered
}

// first is left for what nobody is to miss.
func (b *builder) first(at, why string, u *use) {
	b.found.First = append(b.found.First, Line{at, why + by(u.programs)})
}

func (b *builder) left(at, why string, u *use) {
	b.found.Left = append(b.found.Left, Line{at, why + by(u.programs)})
}

// write is about what was changed outside of the workspace.
func (b *builder) write(u *use) {
	at := u.Leads
	r := driver.RuleFor(b.base, at)
	private := r.Access == 0 && r.At != "" && !r.Own() && !r.Hidden()
	switch {
	case r.Access&policy.Write != 0, r.Lost:
		return // it can be
	case b.home == "" || !policy.Below(at, b.home):
		if !private { // of which what is written is the run's own
			b.left(at, "changed, and what is changed there would stay on the host", u)
		}
	case r.Access&policy.Read == 0:
		// What is only written needs nothing of the host's, unless it has to be there.
		if needs(u.Call) && b.host.Kind(at) != Nothing && b.host.Withheld(at, false) == "" &&
			driver.RuleFor(b.open, at).Access&policy.Write == 0 {
			b.absent = append(b.absent, u)
		}
	case policy.Below(r.At, b.home) && r.At != b.home && b.host.Kind(r.At) == Dir && b.host.Real(r.At) == r.At &&
		b.host.Withheld(r.At, false) == "":
		b.found.Copy = append(b.found.Copy, Line{r.At, "changed, in a copy that ends with the run" + by(u.programs)})
	default:
		b.left(at, "changed, and shown read-only", u)
	}
}

// needs reports whether a call changes what is there already. Of one that makes a file and
// one like that, the first was remembered.
func needs(call string) bool {
	return slices.Contains([]string{"rename", "link", "unlink", "unlinkat", "rmdir", "truncate", "chmod", "chown",
		"lchown", "xattr", "lxattr"}, call)
}

// missing names where files were changed by their paths alone, if no line shows them.
func (b *builder) missing() {
	for _, u := range b.absent {
		given := false
		for up := u.Leads; !given && up != "/"; up = path.Dir(up) {
			_, given = b.granted[up]
		}
		if !given {
			b.left(path.Dir(u.Leads), "what was renamed, removed or changed by its path in it is not shown", u)
		}
	}
}

// few is how many files of a directory are granted one by one.
const few = 2

// walk makes lines of a path and what is below it: of the deepest directory that holds
// all, if that may be granted.
func (b *builder) walk(n *node, at string) {
	switch {
	case n.use != nil && b.host.Kind(at) != Dir:
		if found, _ := b.host.Secrets(at); len(found) > 0 {
			b.first(at, found[0].Comment, n.use)
			return
		}
		b.grant(n, at)
		return
	case len(n.kids) == 1 && n.use == nil, !b.grantable(at), n.use == nil && n.files <= few:
	case b.clean(at):
		b.grant(n, at)
		return
	}
	if n.use != nil && n.use.Target == at && !b.leadsHome(at) {
		b.left(at, "listed, and too much to grant as a whole", n.use)
	}
	for _, name := range slices.Sorted(maps.Keys(n.kids)) {
		b.walk(n.kids[name], path.Join(at, name))
	}
}

// leadsHome reports whether a path is the home or above it, which programs list all the time.
func (b *builder) leadsHome(at string) bool { return b.home != "" && policy.Below(b.home, at) }

// wide are directories that hold what belongs to many programs, below the home and below
// the root.
var (
	wideHome = []string{".cache", ".config", ".local", ".local/bin", ".local/lib", ".local/share", ".local/state", ".var",
		".var/app", "Library"}
	wideRoot = []string{"/etc", "/home", "/mnt", "/media", "/opt", "/srv", "/tmp", "/usr", "/usr/local", "/var", "/var/cache",
		"/var/lib", "/var/tmp"}
)

// grantable reports whether a directory may be granted as a whole.
func (b *builder) grantable(at string) bool {
	if b.host.Withheld(at, false) != "" || slices.Contains(wideRoot, at) {
		return false
	}
	if b.home == "" || !policy.Below(at, b.home) {
		return true
	}
	rest := strings.TrimPrefix(at[len(b.home):], "/")
	// What is in the home without a dot is a person's: projects, documents.
	return !slices.Contains(wideHome, rest) && (strings.Contains(rest, "/") || rest[0] == '.' || rest == "go")
}

// maxHidden is how many secrets are hidden below a directory that is granted. With more it
// is a place for secrets, and not granted as a whole.
const maxHidden = 8

// clean reports whether a directory can be granted, and hides the secrets in it.
func (b *builder) clean(at string) bool {
	found, all := b.host.Secrets(at)
	socket := b.host.Socket(at)
	switch {
	case socket != "":
		b.found.Left = append(b.found.Left, Line{at, "as a whole: " + quote.Line(path.Base(socket)) + " in it is a socket"})
		return false
	case !all:
		b.found.Left = append(b.found.Left, Line{at, "as a whole: too large to look for secrets in it"})
		return false
	case len(found) > maxHidden:
		b.found.Left = append(b.found.Left,
			Line{at, "as a whole: " + number(uint64(len(found)), "file") + " in it look like credentials"})
		return false
	}
	for _, s := range found {
		if !Plain(s.Item) {
			b.found.Left = append(b.found.Left, Line{at, "as a whole: the name of a secret in it cannot be written here"})
			return false
		}
	}
	for _, s := range found {
		// What the base shows or hides it says itself.
		if r := driver.RuleFor(b.base, s.Item); r.Access&policy.Read == 0 && !r.Hidden() {
			b.found.Hide = append(b.found.Hide, s)
		}
	}
	return true
}

// Plain reports whether a path says in a profile what it is.
func Plain(path string) bool {
	return utf8.ValidString(path) && quote.Escape(path) == path && !strings.ContainsAny(path, "*?[{\\")
}

// grant makes a line of a path.
func (b *builder) grant(n *node, at string) {
	dir := b.host.Kind(at) == Dir
	changed := b.changes(at)
	// Of a file that is changed a copy is needed, and only directories have those.
	if up := path.Dir(at); changed > 0 && !dir && policy.Below(at, b.home) && b.grantable(up) && b.clean(up) {
		at, dir, changed = up, true, b.changes(up)
	}
	programs, count, executes := []string{}, uint64(0), false
	n.each(func(n *node) {
		u := n.use
		count += u.count
		executes = executes || u.Operation == driver.OpExec
		for _, p := range u.programs {
			if len(programs) < maxPrograms && !slices.Contains(programs, p) {
				programs = append(programs, p)
			}
		}
	})
	var text string
	switch {
	case dir:
		text = number(uint64(n.files), "path") + " used"
	case executes:
		text = "executed " + number(count, "time")
	default:
		text = "opened " + number(count, "time")
	}
	l := Line{at, text + by(programs)}
	b.granted[at] = dir && changed > 0 && policy.Below(at, b.home)
	switch {
	case changed == 0 || !policy.Below(at, b.home):
		b.found.Read = append(b.found.Read, l)
	case dir:
		l.Comment += "; " + number(uint64(changed), "path") + " changed, in a copy that ends with the run"
		b.found.Copy = append(b.found.Copy, l)
	default:
		b.found.Read = append(b.found.Read, l)
		b.found.Left = append(b.found.Left, Line{at, "changed, and shown read-only" + by(programs)})
	}
}

// changes is how many paths were changed at or below one.
func (b *builder) changes(at string) (n int) {
	for w := range b.written {
		if policy.Below(w, at) {
			n++
		}
	}
	return n
}

// each calls f with the nodes that were used.
func (n *node) each(f func(*node)) {
	if n.use != nil {
		f(n)
	}
	for _, name := range slices.Sorted(maps.Keys(n.kids)) {
		n.kids[name].each(f)
	}
}
