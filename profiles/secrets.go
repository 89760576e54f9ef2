package profiles

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// Bounds of the search for secrets below what a run shows. A bigger tree is
// shown, and a note says how far the search came.
const (
	maxSearched   = 30000 // directories
	maxSecretText = 64 << 10
	searchDepth   = 64
	builtinDepth  = 2 // below what a preset shows of the home: tool chains are large, and not where people keep secrets
)

// passedOver are directories that hold what others published, or what Git stores
// compressed.
var passedOver = []string{".git", "node_modules", "site-packages", ".venv", "venv", "__pycache__", ".tox"}

// sampleNames end names of files that are made to be read by everyone.
var sampleNames = []string{".example", ".sample", ".template", ".tmpl", ".dist", ".defaults", ".schema", ".test",
	".pub"}

// secretFinder looks for the files that files.secret_names and files.secret_text
// name; nil if those are empty.
func (r *resolver) secretFinder() *secretWalk {
	fold := func(k key) []string {
		var out []string
		for _, s := range r.items(k) {
			out = append(out, strings.ToLower(s))
		}
		return out
	}
	names, text := fold(keySecretNames), fold(keySecretText)
	if len(names)+len(text) == 0 {
		return nil
	}
	name, content := newNames(names), newNames(text)
	return &secretWalk{fsys: r.facts.FS, at: max(1, min(r.facts.CPUs, maxAtOnce)), seen: map[string]bool{},
		match: func(root, dir, file string) bool {
			lower := strings.ToLower(file)
			named, inside := name.has(lower), content.has(lower)
			if !named && !inside ||
				slices.ContainsFunc(sampleNames, func(s string) bool { return strings.HasSuffix(lower, s) }) {
				return false
			}
			full := path.Join(dir, file)
			return named || !fixture(full[len(root):]) && looksCredential(r.facts.FS, full)
		}}
}

// A names tells whether a name matches one of some patterns. A tree has many more
// files than patterns that could match one: which those are, the first and the last
// byte of a name tell.
type names struct {
	literal map[string]bool
	first   [256][]stars // by what they begin with
	last    [256][]stars // those that begin with *, by what they end with
	others  []stars
	rest    []string // with other signs than *
}

// stars is a pattern with *: what is between those.
type stars []string

func newNames(patterns []string) *names {
	n := &names{literal: map[string]bool{}}
	for _, p := range patterns {
		switch parts := stars(strings.Split(p, "*")); {
		case strings.ContainsAny(p, `?[\`):
			n.rest = append(n.rest, p)
		case len(parts) == 1:
			n.literal[p] = true
		case p[0] != '*':
			n.first[p[0]] = append(n.first[p[0]], parts)
		case p[len(p)-1] != '*':
			n.last[p[len(p)-1]] = append(n.last[p[len(p)-1]], parts)
		default:
			n.others = append(n.others, parts)
		}
	}
	return n
}

func (n *names) has(name string) bool {
	if name == "" {
		return false
	}
	is := func(s stars) bool { return s.match(name) }
	return n.literal[name] || slices.ContainsFunc(n.first[name[0]], is) ||
		slices.ContainsFunc(n.last[name[len(name)-1]], is) || slices.ContainsFunc(n.others, is) ||
		slices.ContainsFunc(n.rest, func(p string) bool { ok, err := path.Match(p, name); return ok && err == nil })
}

func (s stars) match(name string) bool {
	end := len(s) - 1
	name, ok := strings.CutPrefix(name, s[0])
	if !ok {
		return false
	}
	if name, ok = strings.CutSuffix(name, s[end]); !ok {
		return false
	}
	for _, part := range s[1:end] {
		if _, name, ok = strings.Cut(name, part); !ok {
			return false
		}
	}
	return true
}

// searched reports whether files of secret names are looked for in what a statement shows.
func (s *statement) searched() bool {
	return s.access != 0 && !s.link && s.path != "/" && !(s.origin == gitOrigin && policy.RepositoryName(s.path))
}

// namedSecrets hides files by their names, wherever the workspace and what else
// is shown of the home or by the caller holds them.
func (r *resolver) namedSecrets(st []statement) ([]statement, error) {
	w := r.secretFinder()
	if w == nil {
		return st, nil
	}
	for _, s := range st {
		if s.hide {
			w.seen[s.path] = true // it is not shown, whatever grants say
		}
	}
	// What is searched to the end comes first: each directory is looked at once.
	for _, depth := range [...]int{searchDepth, builtinDepth} {
		for _, g := range st {
			builtin := strings.HasPrefix(g.origin, "preset ")
			if builtin == (depth == builtinDepth) && g.searched() && (!builtin || policy.Below(g.path, r.facts.Home)) {
				w.walk(g.path, g.path, depth)
			}
		}
	}
	slices.Sort(w.found)
	if len(w.found) > maxMatches {
		// A command could make so many that the next run shows what it hid.
		return nil, &Error{Where: "files.secret_names", What: "more than " + strconv.Itoa(maxMatches) +
			" files of secret names are in what is shown, " + quote.Text(w.found[maxMatches]) + " among them",
			Fix: "remove them, or hide a directory that holds many: --hide DIR"}
	}
	for _, f := range w.found {
		if strings.Contains(f, "\n") { // no policy holds such a path
			name := f
			for strings.Contains(f, "\n") {
				f = path.Dir(f)
			}
			if slices.ContainsFunc(st, func(s statement) bool { return s.searched() && policy.Below(s.path, f) }) {
				return nil, &Error{Where: "files.secret_names", What: quote.Text(name) + " has a secret name with a newline in it",
					Fix: "rename it: such a path cannot be hidden"}
			}
			r.notes = append(r.notes, quote.Text(f)+" is hidden: in it is "+quote.Text(name)+", which cannot be hidden alone")
		}
		if pl, err := r.facts.follow(f); err == nil {
			st = append(st, statement{path: pl.real, secret: true, optional: true, origin: "files.secret_names"})
		}
	}
	if w.dirs > maxSearched {
		r.notes = append(r.notes, "files with secret names are hidden in the first "+strconv.Itoa(maxSearched)+
			" directories of what is shown: hide what lies beyond with --hide")
	}
	return st, nil
}

// Bounds of how many goroutines search, and of the directories that one searches
// before others help: to start them takes as long as to list a few.
const (
	maxAtOnce = 4
	fewDirs   = 24
)

// secretWalk looks for files in trees, each directory once.
type secretWalk struct {
	fsys  fs.FS
	at    int                               // how many directories are listed at once
	match func(root, dir, file string) bool // called at once, too

	mu    sync.Mutex
	seen  map[string]bool
	dirs  int
	found []string // in no order
}

// A treeDir is a directory that is to be listed.
type treeDir struct {
	path  string
	depth int // of those below that are listed
}

// walk looks at a directory before it looks at what is in its directories: a deep tree
// that a command made keeps it from nothing that lies above.
func (w *secretWalk) walk(root, dir string, depth int) {
	var (
		next    = []treeDir{{dir, depth}}
		busy    int // goroutines that list a directory
		idle    int // and that wait for others to
		changed = sync.NewCond(&w.mu)
		helpers sync.WaitGroup
		search  func(alone bool)
	)
	search = func(alone bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for listed := 0; ; {
			for len(next) == 0 && busy > 0 {
				idle++
				changed.Wait()
				idle--
			}
			if len(next) == 0 {
				return
			}
			d := next[0]
			next = next[1:]
			if w.seen[d.path] || d.depth < 0 || w.dirs > maxSearched || len(w.found) > maxMatches {
				continue
			}
			w.seen[d.path] = true
			if w.dirs++; w.dirs > maxSearched {
				continue
			}
			if listed++; alone && listed == fewDirs {
				for range w.at - 1 {
					helpers.Go(func() { search(false) })
				}
			}
			busy++
			w.mu.Unlock()
			below, found := w.list(root, d)
			w.mu.Lock()
			busy--
			next = append(next, below...)
			w.found = append(w.found, found[:min(len(found), maxMatches+1-len(w.found))]...)
			if idle > 0 && (len(next) > 1 || busy == 0) {
				changed.Broadcast()
			}
		}
	}
	search(true)
	helpers.Wait()
}

// list returns the directories in one, and the files that match.
func (w *secretWalk) list(root string, d treeDir) (below []treeDir, found []string) {
	// What cannot be listed cannot be read by this user, either.
	entries, _ := fs.ReadDir(w.fsys, fsPath(d.path))
	for _, e := range entries {
		switch name := e.Name(); {
		case e.IsDir():
			if !slices.Contains(passedOver, name) {
				below = append(below, treeDir{path.Join(d.path, name), d.depth - 1})
			}
		case w.match(root, d.path, name):
			found = append(found, path.Join(d.path, name))
		}
	}
	return below, found
}

// fixture reports whether a file, by its path in a tree, lies where a project keeps what its tests and
// examples need: keys that are made for that are part of it.
func fixture(p string) bool {
	for name := range strings.SplitSeq(strings.ToLower(path.Dir(p)), "/") {
		for _, part := range [...]string{"test", "spec", "fixture", "example", "sample", "mock"} {
			if strings.Contains(name, part) {
				return true
			}
		}
	}
	return false
}

// looksCredential reports whether a file holds a line that looks like one.
func looksCredential(fsys fs.FS, name string) bool {
	info, err := fs.Stat(fsys, fsPath(name))
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := fsys.Open(fsPath(name))
	if err != nil {
		return false
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxSecretText))
	return credentialIn(string(b)) != ""
}

// A credentialKind is what lines with credentials look like.
type credentialKind struct {
	what  string
	re    *regexp.Regexp
	words []string // one of which, in small letters, each match has: to look for those first is faster
}

// credentials are the kinds, by a word for each.
var credentials = sync.OnceValue(func() (out []credentialKind) {
	for _, k := range [...]struct{ what, re, words string }{
		{"private key", `-----BEGIN [A-Z ]*PRIVATE KEY|PuTTY-User-Key-File|AGE-SECRET-KEY-1`, "key-|private key"},
		{"token",
			`\b(?:(?:gh[pousr]_|npm_|hf_|dop_v1_|shpat_|[sr]k_live_|lin_api_)[A-Za-z0-9]{20,}|(?:github_pat_|glpat-|xox[abeoprs]-|pypi-)[A-Za-z0-9_-]{20,})|\bsk-[A-Za-z0-9_-]{16,}|\bAIza[0-9A-Za-z_-]{30,}|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.`,
			"gh|npm_|hf_|dop_v1_|shpat_|k_live_|lin_api_|glpat-|xox|pypi-|sk-|aiza|eyj"},
		{"access key", `\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`, "akia|asia"},
		// The user git alone is none.
		{"URL with credentials", `[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/@"'$<>{}]{4,}|[^\s/@"'$<>{}:]*:[^\s/@"'$<>{}]+)@`, "://"},
		{"authorization", `(?i)authorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)\s+[A-Za-z0-9._~+/=-]{6,}`,
			"authorization"},
		// A value that is a variable's, or a type's name in a program, is none.
		// Nor is an author.
		{"password",
			`(?i)(?:(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[A-Za-z0-9_.-]*|auth(?:[_.-][A-Za-z0-9_.-]*|n|z|entication)?)["']?\s*[:=]>?\s*["']?[^\s"'$<>{}()\[\],;]{6,}`,
			"passw|passphrase|secret|token|key|credential|auth"},
	} {
		out = append(out, credentialKind{k.what, regexp.MustCompile(k.re), strings.Split(k.words, "|")})
	}
	return out
})

// credentialIn says what of a text looks like a credential, "" if nothing does. Some kinds
// can be passed over.
func credentialIn(text string, not ...string) string {
	lower := strings.ToLower(text)
	for _, c := range credentials() {
		if !slices.Contains(not, c.what) &&
			slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(lower, w) }) && c.re.MatchString(text) {
			return c.what
		}
	}
	return ""
}

// readClean reads a file, and gives its text without the lines that look like credentials.
func (r *resolver) readClean(file string) (text, clean string, ok bool, err error) {
	text, ok, err = source{facts: r.facts}.readFile(file, true, maxToolFile)
	if r.read.note(file, text, ok); !ok || err != nil || len(text) > maxToolFile {
		if _, known := errors.AsType[*Error](err); known {
			err = nil
		}
		return "", "", false, err
	}
	clean = cleanText(text)
	if path.Base(file) == ".npmrc" {
		clean = cleanNpmrc(clean)
	}
	return text, clean, true, nil
}

// cleanStatements shows files that may hold credentials: as they are if none of
// their lines looks like one, else a copy of the others.
func (r *resolver) cleanStatements(p *policy.Policy, st []statement) ([]statement, error) {
	for origin, item := range r.values[keyReadClean].each() {
		if item[0] == '~' && r.facts.home() == "" {
			continue
		}
		full, err := r.facts.expand(item, r.workspace)
		if err != nil {
			return nil, at(origin, err)
		}
		if slices.ContainsFunc(st,
			func(s statement) bool { return s.access != 0 && s.path == full || s.hide && policy.Below(full, s.path) }) {
			continue // the caller says what is shown there
		}
		text, clean, ok, err := r.readClean(full)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if clean == text {
			if st, err = appendStatements(st, statement{access: policy.Read, optional: true, origin: origin}, item, r.workspace,
				r.facts); err != nil {
				return nil, at(origin, err)
			}
			continue
		}
		p.Synthetic = append(p.Synthetic, policy.SyntheticFile{Path: full, Content: clean})
	}
	return st, nil
}

// cleanText leaves out lines that look like credentials, with those that continue
// them, and whole sections whose heads do or that say who is asked for them.
func cleanText(text string) string {
	var b strings.Builder
	section, continues := false, false // that is left out, and a line of it goes on
	for line := range strings.Lines(text) {
		lower := strings.ToLower(strings.TrimSpace(line))
		secret := credentialIn(line) != "" || strings.Contains(lower, "extraheader")
		if !continues && strings.HasPrefix(lower, "[") {
			section = secret || strings.HasPrefix(lower, "[credential")
		}
		drop := continues || section || secret
		if continues = drop && strings.HasSuffix(lower, `\`); !drop {
			b.WriteString(line)
		}
	}
	return b.String()
}

// cleanNpmrc leaves out of an npmrc(5) what it says of who asks a registry, however
// short, and proxies, which are the host's.
func cleanNpmrc(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		key, _, _ := strings.Cut(line, "=")
		key = strings.Trim(key, " \t\r\n\"'[]")
		switch {
		case strings.HasPrefix(key, "//"), strings.HasPrefix(key, "_"):
		case slices.Contains([]string{"username", "email", "key", "cert", "otp", "proxy", "https-proxy", "http-proxy",
			"noproxy"}, strings.ToLower(key)):
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}

// A Credential is a file that a command can read and that looks like one, and by
// what: its name, or a kind of text.
type Credential struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// maxExamined bounds the files of which Credentials reads the text.
const maxExamined = 200_000

// comments are the lines of settings that are switched off, and explained.
var comments = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^[ \t]*[#;].*$`) })

// sourceNames end names of programs, in which a password is mostly a variable.
var sourceNames = []string{".go", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".py", ".pyi", ".js", ".mjs", ".cjs",
	".jsx", ".ts", ".tsx", ".java", ".kt", ".scala", ".rb", ".php", ".pl", ".cs", ".swift", ".lua", ".mts", ".cts", ".md",
	".rst", ".html", ".css", ".map", ".svg"}

// manifestNames end names of lists of packages, some of which are called tokens and secrets.
var manifestNames = []string{"package.json", "package-lock.json", "yarn.lock", "pnpm-lock.yaml", "Cargo.toml",
	"Cargo.lock", "poetry.lock", "uv.lock", "go.sum"}

// Credentials lists what looks like a credential and can be read under a policy:
// in the workspace, the home, and all else that is shown but what strict shows of
// every system. It is complete if all of that was looked at.
func Credentials(p *policy.Policy, facts *Facts) (found []Credential, complete bool) {
	s := &credentialSearch{facts: facts, apart: map[string]bool{}}
	for _, f := range p.Files {
		s.apart[f.Path] = true
	}
	for _, m := range p.OCI.Mounts {
		s.apart[m.Destination] = true
	}
	for _, f := range p.Synthetic {
		s.apart[f.Path] = true
	}
	for _, f := range p.Files {
		if f.Access&policy.Read == 0 || systemPrograms(f.Path) || f.Origin == "preset strict" {
			continue // of the home it shows nothing, and of /etc what everyone reads
		}
		info, err := fs.Lstat(facts.FS, fsPath(f.Path))
		switch {
		case err != nil:
		case info.IsDir():
			s.walk(f.Path, f.Path)
		case info.Mode().IsRegular():
			s.file(path.Dir(f.Path), f.Path)
		}
	}
	slices.SortFunc(s.found, func(a, b Credential) int { return strings.Compare(a.Path, b.Path) })
	return s.found, s.dirs <= 2*maxSearched && s.examined <= maxExamined
}

type credentialSearch struct {
	facts          *Facts
	apart          map[string]bool // has a rule of its own, or is not the host's
	examined, dirs int
	found          []Credential
}

func (s *credentialSearch) walk(root, dir string) {
	if s.dirs++; s.dirs > 2*maxSearched {
		return
	}
	entries, _ := fs.ReadDir(s.facts.FS, fsPath(dir))
	for _, e := range entries {
		full := path.Join(dir, e.Name())
		switch {
		case s.apart[full] || systemPrograms(full):
		case e.IsDir():
			s.walk(root, full)
		case e.Type().IsRegular():
			s.file(root, full)
		}
	}
}

func (s *credentialSearch) file(root, full string) {
	why := credentialName(full)
	f, err := s.facts.FS.Open(fsPath(full))
	if err != nil {
		return // nor can the command, as the same user
	}
	defer f.Close()
	if s.examined++; why == "" && s.examined <= maxExamined && !fixture(full[len(root):]) {
		b, _ := io.ReadAll(io.LimitReader(f, maxSecretText))
		if bytes.IndexByte(b, 0) >= 0 && !textName(full) {
			return // no text
		}
		text := string(b)
		named := func(s string) bool { return strings.HasSuffix(full, s) }
		var not []string
		switch {
		case slices.ContainsFunc(sourceNames, named):
			not = []string{"password", "URL with credentials"}
		case slices.ContainsFunc(manifestNames, named):
			not = []string{"password"}
		}
		if why = credentialIn(text, not...); why != "" {
			why = credentialIn(comments().ReplaceAllString(text, ""), not...)
		}
	}
	if why != "" {
		s.found = append(s.found, Credential{full, why})
	}
}

// credentialName says by which name a file is a credential, "" if by none.
func credentialName(full string) string {
	name := strings.ToLower(path.Base(full))
	is := func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }
	switch {
	case slices.ContainsFunc(sampleNames, func(s string) bool { return strings.HasSuffix(name, s) }), textName(full):
		return ""
	case slices.ContainsFunc(listAicodeSecretNames, is):
		return "its name"
	}
	for _, s := range listStrictSecrets {
		if rel, ok := strings.CutPrefix(s, "~"); ok && strings.Contains(full+"/", rel+"/") {
			return "as " + s
		}
	}
	return ""
}

// textName reports whether a file has a name of files.secret_text, which hides it for what is in it,
// text or not.
func textName(full string) bool {
	name := strings.ToLower(path.Base(full))
	return slices.ContainsFunc(listAicodeSecretText,
		func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok })
}

// systemPrograms reports what holds the system's programs and the kernel's files.
func systemPrograms(p string) bool {
	return slices.ContainsFunc([]string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc",
		"/sys", "/dev", "/nix/store", "/snap"}, func(d string) bool { return policy.Below(p, d) })
}
