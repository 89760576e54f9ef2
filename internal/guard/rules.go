package guard

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/policy"
)

// Rules are patterns, ready to be matched. The zero value protects nothing.
//
// A pattern is a name or several with slashes between them, which match
// consecutive parts of a path at any depth; * in a name matches any characters.
// What matches is protected with all below it. A pattern that ends in a slash
// protects the entry itself and not what is in it. Letter case does not count, nor
// do dots and spaces at the end of a name, for there are file systems to which they
// do not; nor does it help to write a name as vfat has it in 8.3 characters, GIT~1.
//
// A directory that Git would take for a repository counts as ".git" in front of
// other names, whatever it is called: .git/config also protects the config of a
// bare repository, of a submodule and of a linked worktree. With the pattern
// ".git/" no directory can become a repository. The pattern ".git/index" also names
// what an index can be split into; it can be removed, and exchanged for a good one.
type Rules struct {
	texts []string // valid

	lifted atomic.Pointer[Rules] // what holds since a pattern does not; nil for all
	lifts  sync.Mutex

	// What follows is made when the first path is matched: most commands that a
	// run is for are over before any is.
	read     sync.Once
	patterns []pattern
	last     index // names that end a pattern
	leads    index // names with which a pattern goes on
	repos    bool  // ".git/" is one of the patterns
	commands bool  // and so is all that Git takes commands from in one
}

// pattern is one pattern: its text as written, and its names folded.
type pattern struct {
	text  string
	names []string
	self  bool // the entry itself only
}

// ending says that names[:n] of a pattern end in a certain name.
type ending struct {
	p, n  int
	other int // the next one with this name, as in index.first
}

// An index finds endings by their names.
type index struct {
	all   []ending       // for names in 8.3 characters
	globs []ending       // whose names have *
	first map[string]int // of literal names: where the first one is in all, plus one
}

func (x *index) add(name string, e ending) {
	if strings.IndexByte(name, '*') >= 0 {
		x.globs = append(x.globs, e)
	} else {
		e.other, x.first[name] = x.first[name], len(x.all)+1
	}
	x.all = append(x.all, e)
}

// checksConfig reports whether new repositories may be made: whatever Git takes commands
// from in one is protected.
func (r *Rules) checksConfig() bool {
	r.ready()
	return r.commands
}

// Verdict is how a path relates to the patterns.
type Verdict uint8

// Verdicts. The zero Verdict is a path of no interest.
const (
	Free      Verdict = iota
	Leads             // a directory of this name could hold what is protected
	Protected         // the path itself is protected, or it is below what is
)

// Missing are the system calls that do not exist for a command with protected paths.
var Missing = []string{"openat2", "clone3", "setxattrat", "removexattrat", "io_uring_setup", "file_setattr",
	"landlock_create_ruleset", "landlock_restrict_self"}

// NewRules reads patterns. They must not be changed afterwards.
func NewRules(patterns []string) (*Rules, error) {
	for _, text := range patterns {
		if err := policy.CheckProtect(text); err != nil {
			return nil, err
		}
	}
	return &Rules{texts: patterns}, nil
}

// Without are the rules without a pattern.
func (r *Rules) Without(pattern string) *Rules {
	return &Rules{texts: slices.DeleteFunc(slices.Clone(r.texts), func(s string) bool { return s == pattern })}
}

// Lift has a pattern hold no more, for whoever has these rules.
func (r *Rules) Lift(pattern string) {
	r.lifts.Lock()
	defer r.lifts.Unlock()
	r.lifted.Store(r.Current().Without(pattern))
}

// Current are the rules that hold now.
func (r *Rules) Current() *Rules {
	if now := r.lifted.Load(); now != nil {
		return now
	}
	return r
}

// ready makes what paths are matched with.
func (r *Rules) ready() {
	r.read.Do(func() {
		count := 0
		for _, text := range r.texts {
			count += 1 + strings.Count(text, "/")
		}
		names := make([]string, 0, count)
		r.patterns = make([]pattern, 0, len(r.texts)+1)
		r.last = index{all: make([]ending, 0, len(r.texts)), first: make(map[string]int, len(r.texts))}
		r.leads = index{all: make([]ending, 0, count-len(r.texts)), first: make(map[string]int, count-len(r.texts))}
		add := func(i int, s string, self bool) {
			begin := len(names)
			for name := range strings.SplitSeq(s, "/") {
				if !folded(name) {
					name = string(fold(nil, []byte(name)))
				}
				names = append(names, name)
			}
			p := pattern{r.texts[i], names[begin:len(names):len(names)], self}
			r.patterns = append(r.patterns, p)
			r.repos = r.repos || self && len(p.names) == 1 && p.names[0] == ".git"
			for n, name := range p.names {
				to := &r.leads
				if n+1 == len(p.names) {
					to = &r.last
				}
				to.add(name, ending{p: len(r.patterns) - 1, n: n + 1})
			}
		}
		for i, text := range slices.Backward(r.texts) { // so that the first of a name is found first
			s, self := strings.CutSuffix(text, "/")
			add(i, s, self)
			switch text {
			case IndexPattern:
				add(i, ".git/sharedindex.*", false)
			case ConfigPattern:
				add(i, copyPattern, false)
			case commonPattern:
				add(i, ".git/worktrees/*/commondir", false) // so that none of these directories is moved; see linked
				add(i, ".git/"+anyHash, false)
			}
		}
		slices.Reverse(r.last.globs)
		slices.Reverse(r.leads.globs)
		r.commands = r.repos
		for _, text := range [...]string{ConfigPattern, ".git/config.worktree", ".git/commondir", ".git/hooks",
			IndexPattern} {
			r.commands = r.commands && slices.Contains(r.texts, text)
		}
	})
}

// Dirs answers what only a look at the file system tells. Paths are absolute, in
// the sandbox.
type Dirs interface {
	// Repository reports whether Git would take a directory for a repository, or
	// would if it had all that could be sockets; see Completes.
	Repository(dir []byte) bool

	// Completes reports whether a directory that is none would become a
	// repository by one more entry, or all that matters of one: HEAD beside
	// something that names commands. The rest could be sockets, which nobody
	// is kept from making.
	Completes(dir []byte, name string) bool
}

// Match relates a path to the patterns. Only names below root count as the end
// of a match: what leads to a directory that the caller made writable is no
// reason to protect all of it, and neither is its own name.
//
// Preconditions: path is absolute, clean, and at or below root.
func (r *Rules) Match(path []byte, root int, dirs Dirs) (Verdict, string) {
	return r.match(path, root, dirs, "")
}

// match is Match without one of the patterns.
func (r *Rules) match(path []byte, root int, dirs Dirs, without string) (Verdict, string) {
	if root == 1 {
		root = 0 // "/"
	}
	if len(path) <= root {
		return Free, ""
	}
	r.ready()
	var buf [256]byte
	end := root
	for end < len(path) {
		start := end + 1
		end = start
		for end < len(path) && path[end] != '/' {
			end++
		}
		name := fold(buf[:0], path[start:end])
		at := path[:end]
		final := end == len(path)
		for next := r.last.first[string(name)]; next > 0; {
			e := &r.last.all[next-1]
			if p := &r.patterns[e.p]; (final || !p.self) && p.text != without && r.before(at, p, e.n, dirs) {
				return Protected, p.text
			}
			next = e.other
		}
		globs, leads := r.last.globs, r.leads.globs
		if tilde(name) > 0 {
			globs, leads = r.last.all, r.leads.all
		}
		for _, e := range globs {
			if p := &r.patterns[e.p]; (final || !p.self) && p.text != without && same(p.names[e.n-1], name) &&
				r.before(at, p, e.n, dirs) {
				return Protected, p.text
			}
		}
		if !final {
			continue
		}
		for next := r.leads.first[string(name)]; next > 0; {
			e := &r.leads.all[next-1]
			if p := &r.patterns[e.p]; r.before(at, p, e.n, dirs) {
				return Leads, p.text
			}
			next = e.other
		}
		for _, e := range leads {
			if p := &r.patterns[e.p]; same(p.names[e.n-1], name) && r.before(at, p, e.n, dirs) {
				return Leads, p.text
			}
		}
	}
	return Free, ""
}

// before reports whether the names before the n-th of a pattern match the path's
// names before its last.
func (r *Rules) before(path []byte, p *pattern, n int, dirs Dirs) bool {
	var buf [256]byte
	for n--; n > 0; n-- {
		path = path[:lastSlash(path)]
		if len(path) == 0 {
			return false
		}
		name := path[lastSlash(path)+1:]
		if same(p.names[n-1], fold(buf[:0], name)) {
			continue
		}
		if n != 1 || p.names[0] != ".git" || !linked(path) && (dirs == nil || !dirs.Repository(path)) {
			return false
		}
	}
	return true
}

// Completes returns the pattern that keeps a new entry from making a repository
// of its directory, "" if none does.
func (r *Rules) Completes(dir, name []byte, dirs Dirs) string {
	if r.ready(); !r.repos || dirs == nil {
		return ""
	}
	if r.commands && (string(dir[lastSlash(dir)+1:]) == ".git" || isTree(dir)) {
		return "" // what Git takes commands from is protected there by its name
	}
	var buf [256]byte
	switch s := string(fold(buf[:0], name)); s {
	case "head", "objects", "refs", "commondir", "config", "config.worktree", "hooks":
		if dirs.Completes(dir, s) {
			return ".git/"
		}
	}
	return ""
}

// Undoes returns the pattern that keeps HEAD in a repository, "" if none does: without
// it the directory is none, and its config nobody's. What is called .git is protected by
// its name.
func (r *Rules) Undoes(dir, name []byte, dirs Dirs) string {
	if r.ready(); !r.repos || dirs == nil || r.commands && isTree(dir) {
		return ""
	}
	var buf [256]byte
	if string(fold(buf[:0], name)) != "head" || string(fold(buf[:0], dir[lastSlash(dir)+1:])) == ".git" ||
		!dirs.Repository(dir) {
		return ""
	}
	return ".git/"
}

// Within returns the repository that the entries of a directory are part of, the nearest
// of several; nil for none, or if ".git/" is no pattern. Git writes through a symbolic link
// that it finds in one: COMMIT_EDITMSG -> config.
//
// Preconditions: as for Match.
func (r *Rules) Within(dir []byte, root int, dirs Dirs) []byte {
	if r.ready(); !r.repos || dirs == nil {
		return nil
	}
	var buf [256]byte
	for at := dir; len(at) > 0; at = at[:lastSlash(at)] {
		if string(fold(buf[:0], at[lastSlash(at)+1:])) == ".git" || len(at) >= root && dirs.Repository(at) {
			return at
		}
	}
	return nil
}

// Copied returns the pattern that protects a path which somebody is about to make, of
// a name that a command chose, in a directory of the host; "" if none does. What
// leads to the directory is the host's. Parent is the open directory that the path is in.
//
// Preconditions: dir is absolute, and holds no symbolic link. What leads to the path
// from there was asked about.
func (r *Rules) Copied(dir, name string, link bool, parent int) string {
	root := dir
	if root == "/" {
		root = ""
	}
	path := []byte(root + "/" + name)
	at := lastSlash(path)
	dirs := Opened{FD: parent, Name: path[:at]}
	verdict, pattern := r.Match(path, len(root), dirs)
	if verdict == Protected || verdict == Leads && link {
		return pattern // where a link leads could be what is protected by its name
	}
	if link && r.Within(path[:at], len(root), dirs) != nil {
		return ".git/"
	}
	return r.Completes(path[:at], path[at+1:], dirs)
}

// Allowed reports whether a list of patterns, paths and "all" lets a path be changed that
// a pattern protects. The first part of a pattern stands for all that begin with it.
func Allowed(allow []string, pattern, path string) bool {
	pattern = strings.TrimSuffix(pattern, "/")
	return slices.ContainsFunc(allow, func(a string) bool {
		a = strings.TrimSuffix(a, "/")
		return a == "all" || a == pattern || strings.HasPrefix(pattern, a+"/") || a == path
	})
}

// An Opened is the [Dirs] of an open directory and those above it. It asks them, and not
// what their names lead to: a command may exchange directories meanwhile. What is below a
// repository's protected names stays there.
type Opened struct {
	FD   int
	Name []byte // what the directory was opened by
}

func (o Opened) lstat(dir []byte, name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(o.FD, strings.Repeat("../", bytes.Count(o.Name[len(dir):], []byte("/")))+name, &st,
		unix.AT_SYMLINK_NOFOLLOW)
	return &st, err
}

// Has reports whether there can be an entry of a name in one of the directories.
func (o Opened) Has(dir []byte, name string) bool {
	_, err := o.lstat(dir, name)
	return err != unix.ENOENT && err != unix.ENOTDIR
}

func (o Opened) has(dir []byte, more string) func(string) bool {
	return func(name string) bool { return string(fold(nil, []byte(name))) == more || o.Has(dir, name) }
}

// Repository implements [Dirs].
func (o Opened) Repository(dir []byte) bool {
	has := o.has(dir, "")
	return repository(has) || commands(has)
}

// Completes implements [Dirs].
func (o Opened) Completes(dir []byte, name string) bool {
	has := o.has(dir, name)
	return (repository(has) || commands(has)) && !repository(func(name string) bool {
		st, err := o.lstat(dir, name)
		return err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK // which could be replaced
	})
}

// commands reports whether a directory holds HEAD and something beside it that Git
// takes commands from.
func commands(has func(string) bool) bool {
	return has("HEAD") && (has("config") || has("config.worktree") || has("hooks") || has("commondir"))
}

// repository reports whether a directory is one of Git's; see is_git_directory in
// Git's setup.c.
func repository(has func(string) bool) bool {
	return has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

func lastSlash(p []byte) int {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] == '/' {
			return i
		}
	}
	return 0
}

// same reports whether a folded name is a name of a pattern, or what vfat could
// call that in 8.3 characters.
func same(pattern string, name []byte) bool {
	if pattern == anyHash {
		return hash(name)
	}
	if matchName(pattern, name) {
		return true
	}
	t := tilde(name)
	if t == 0 {
		return false
	}
	stem, ext := string(name[:t]), name[t+1:]
	for len(ext) > 0 && ext[0] != '.' {
		ext = ext[1:]
	}
	base, want := strings.TrimLeft(pattern, ". "), ""
	if i := strings.LastIndexByte(base, '.'); i > 0 {
		base, want = base[:i], base[i:min(len(base), i+4)]
	}
	// What is no character of theirs is left out or an underscore.
	base = strings.NewReplacer(".", "", " ", "", "+", "_", ",", "_", ";", "_", "=", "_", "[", "_", "]", "_").Replace(base)
	base, _, any := strings.Cut(base, "*")
	if !matchName(want, ext) {
		return false
	}
	is := func(stem string, n int) bool {
		return stem == base[:min(len(base), n)] || any && len(base) < n && strings.HasPrefix(stem, base)
	}
	// After nine of a kind, there are two characters and a hash of four.
	return is(stem, 6) || t >= 4 && is(stem[:t-4], 2)
}

// tilde returns where the ~ of a name in 8.3 characters is, 0 in other names.
func tilde(name []byte) int {
	t := bytes.IndexByte(name, '~')
	if t < 1 || t > 6 {
		return 0
	}
	end := t + 1
	for end < len(name) && name[end] >= '0' && name[end] <= '9' {
		end++
	}
	if ext := name[end:]; end == t+1 || len(ext) > 4 || len(ext) > 0 && ext[0] != '.' {
		return 0
	}
	return t
}

// matchName matches a folded name against a name of a pattern; * is any number
// of characters.
func matchName(pattern string, name []byte) bool {
	star, mark := -1, 0
	i, j := 0, 0
	for j < len(name) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, mark = i, j
			i++
		case i < len(pattern) && pattern[i] == name[j]:
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(pattern) && pattern[i] == '*' {
		i++
	}
	return i == len(pattern)
}

// fold appends a name as file systems that ignore letter case compare it: the
// two characters beside A to Z whose lower case is in ASCII are their letters,
// ligatures and sharp s are what they are folded to in full (ext4 does), and
// characters that show nothing are left out (ext4 and HFS+ pass over them), as are
// dots and spaces at the end (vfat, exfat, NTFS and shares of Windows) and what names the
// stream of NTFS that is the file itself. What it makes equal too much is protected too much.
func fold(dst, name []byte) []byte {
	if i := bytes.IndexByte(name, ':'); i > 0 && bytes.Contains(name[i:], []byte(":$")) {
		name = name[:i]
	}
	name = bytes.TrimRight(name, ". ")
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c >= utf8.RuneSelf:
			return foldRunes(dst, name[i:])
		}
		dst = append(dst, c)
	}
	return dst
}

// folded reports whether fold would leave a name as it is.
func folded(name string) bool {
	for i := 0; i < len(name); i++ {
		if c := name[i]; c >= utf8.RuneSelf || c >= 'A' && c <= 'Z' || c == ':' {
			return false
		}
	}
	return name == "" || name[len(name)-1] != '.' && name[len(name)-1] != ' '
}

// ligatures are the letters of U+FB00 and what follows; see CaseFolding.txt.
var ligatures = [...]string{"ff", "fi", "fl", "ffi", "ffl", "st", "st"}

// turkish are the letters beside I and i that are one of them as FAT compares, in ISO 8859-9
// and 8859-3 and in code page 857; see charset2lower and charset2upper in fs/nls.
const turkish = "\xdd\xfd\xa9\xb9\x98\x8d"

func foldRunes(dst, name []byte) []byte {
	for len(name) > 0 {
		c, n := utf8.DecodeRune(name)
		switch {
		case c == utf8.RuneError && n == 1:
			b := name[0]
			if strings.IndexByte(turkish, b) >= 0 {
				b = 'i'
			}
			dst = append(dst, b)
		case c == '\u0131': // dotless i, whose capital is I (ZFS, Samba)
			dst = append(dst, 'i')
		case c == '\u212a': // the sign for kelvin
			dst = append(dst, 'k')
		case c == '\u017f': // long s
			dst = append(dst, 's')
		case c == '\u00df', c == '\u1e9e':
			dst = append(dst, "ss"...)
		case c >= '\ufb00' && c <= '\ufb06':
			dst = append(dst, ligatures[c-'\ufb00']...)
		case unicode.In(c, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		default:
			dst = utf8.AppendRune(dst, unicode.ToLower(c))
		}
		name = name[n:]
	}
	return dst
}
