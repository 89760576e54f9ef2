package seatbelt

import (
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sbxrun/sbxrun/policy"
)

// Protected paths are denied by regular expressions over the path that the kernel
// knows: below each writable path of the host, at any depth, whatever the letter
// case. The path itself stays a parameter (regex-quote takes its value), so that
// only the patterns are in the profile's text.
//
// A path of a directory is what is looked at, not what it holds. So a directory by
// whose name protected paths would come about cannot be made either, and not be
// renamed away: ".config", for the pattern ".config/git". What is beyond a profile
// is to see that a directory is a repository under another name, and that one
// which is renamed holds what is protected: it can be moved to private storage,
// changed there, and moved back; the short names of FAT (GIT~1); and what an index of
// Git's holds.

// perRegex bounds how many patterns one expression holds.
const perRegex = 16

// protect denies what the policy protects, and adds to hold the directories that
// must keep their place for it.
func (w *writer) protect(p *policy.Policy, hold map[string]bool) {
	if len(p.Protect) == 0 {
		return
	}
	var whole, entry, leads [][]string // names
	for _, pattern := range p.Protect {
		if pattern == ".git/index" {
			continue // what an index holds is beyond a profile, and Git works by it
		}
		s, self := strings.CutSuffix(pattern, "/")
		names := strings.Split(s, "/")
		if self {
			entry = append(entry, names)
		} else {
			whole = append(whole, names)
		}
		for n := 1; n < len(names); n++ {
			if lead := names[:n]; !has(leads, lead) {
				leads = append(leads, lead)
			}
		}
	}
	// What is denied with all below it, or as an entry, needs no rule as a lead.
	leads = slices.DeleteFunc(leads, func(l []string) bool { return has(whole, l) || has(entry, l) })

	var roots []string
	for _, r := range p.Files {
		if r.Access&policy.Write != 0 && !slices.Contains(roots, real(r.Path)) {
			roots = append(roots, real(r.Path))
		}
	}
	slices.Sort(roots)
	all := func(operations string, patterns [][]string, end string) {
		var filters []string
		for _, root := range roots {
			for part := range slices.Chunk(patterns, perRegex) {
				var deep, direct []string
				for _, names := range part {
					deep = append(deep, namesRegex(names))
					direct = append(direct, continued(root, names)...)
				}
				filters = append(filters, w.below(root, roots, "/(.*/)?("+strings.Join(deep, "|")+")"+end))
				if len(direct) != 0 {
					filters = append(filters, w.below(root, roots, "/("+strings.Join(direct, "|")+")"+end))
				}
			}
		}
		w.rule("deny", operations, filters...)
	}
	all("file-write*", whole, "(/.*)?$")
	all("file-write*", entry, "$")
	all("file-write-create file-write-unlink", leads, "$")
	var filters []string
	for _, root := range roots {
		filters = append(filters, w.below(root, roots, "/.*([.0-9A-Za-z_-]("+invisible+")|("+invisible+")[.0-9A-Za-z_-])"))
	}
	w.rule("deny", "file-write-create", filters...)
	for _, root := range roots {
		hold[root] = true
	}
}

func has(list [][]string, names []string) bool {
	return slices.ContainsFunc(list, func(l []string) bool { return slices.Equal(l, names) })
}

// continued are expressions for how a pattern goes on below a root, where the root
// is its beginning: with /src/.git writable, /src/.git/hooks is .git/hooks.
func continued(root string, names []string) []string {
	var out []string
	above := strings.Split(strings.Trim(root, "/"), "/")
	for n := 1; n < len(names) && n <= len(above); n++ {
		tail := above[len(above)-n:]
		same := true
		for i := range n {
			// A pattern has none of the special characters that this knows but *.
			ok, err := path.Match(fold(names[i]), fold(tail[i]))
			same = same && (ok && err == nil || n == 1 && names[0] == ".git" && policy.RepositoryName(root))
		}
		if same {
			rest := namesRegex(names[n:])
			if n == 1 && names[0] == ".git" {
				rest = "(modules/.+/|worktrees/[^/]+/)?" + rest
			}
			out = append(out, rest)
		}
	}
	return out
}

// fold makes names equal that file systems which pass over letter case take for
// one: also where a letter's capital is that of another.
func fold(s string) string { return strings.ToLower(strings.ToUpper(s)) }

// maxLiteral bounds a string of the profile, bytes: the reader of TinyScheme, which
// is SBPL's, has a buffer of a fixed size for it.
const maxLiteral = 200

// literals are string literals that together are a text.
func literals(s string) string {
	var b strings.Builder
	text := ""
	for _, c := range s {
		if len(text)+utf8.RuneLen(c) > maxLiteral {
			b.WriteString(" " + quote(text))
			text = ""
		}
		text += string(c)
	}
	b.WriteString(" " + quote(text))
	return b.String()
}

// below is a filter for paths below a root, by an expression for what comes after
// it. Where a root lies in another, paths are the inner one's alone: its own name,
// and what leads to it, does not count.
func (w *writer) below(root string, roots []string, expr string) string {
	f := `(regex (string-append "^" (regex-quote ` + w.path(root) + `)` + literals(expr) + `))`
	if root == "/" {
		f = `(regex (string-append "^"` + literals(expr) + `))`
	}
	var not []string
	for _, inner := range roots {
		if inner != root && policy.Below(inner, root) && !slices.ContainsFunc(roots, func(r string) bool {
			return r != root && r != inner && policy.Below(r, root) && policy.Below(inner, r)
		}) {
			not = append(not, w.subpath(inner))
		}
	}
	if len(not) != 0 {
		f = "(require-all " + f + " (require-not (require-any " + strings.Join(not, " ") + ")))"
	}
	return f
}

// namesRegex is a regular expression for consecutive names of a path. What Git has
// below .git for a submodule or a worktree counts as .git.
func namesRegex(names []string) string {
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteByte('/')
		}
		nameRegex(&b, name)
		b.WriteString("[. ]*") // which FAT and shares of Windows pass over at the end
		if i == 0 && name == ".git" && len(names) > 1 {
			b.WriteString("(/modules/.+|/worktrees/[^/]+)?")
		}
	}
	return b.String()
}

// nameRegex writes an expression for one name of a pattern, in either letter case:
// APFS and HFS+ pass over case unless they were made not to. To them the sign for
// kelvin is a k, and a long s an s.
func nameRegex(b *strings.Builder, name string) {
	for _, c := range name {
		switch {
		case c == '*':
			b.WriteString("[^/]*")
		case c == 'k' || c == 'K':
			b.WriteString("(k|K|\u212a)")
		case c == 's' || c == 'S':
			b.WriteString("(s|S|\u017f)")
		case c < utf8.RuneSelf && unicode.IsLetter(c):
			b.WriteString("[" + string(unicode.ToLower(c)) + string(unicode.ToUpper(c)) + "]")
		case strings.ContainsRune(".^$()+|", c):
			b.WriteString(`\` + string(c))
		default:
			if l, u := unicode.ToLower(c), unicode.ToUpper(c); l != u {
				b.WriteString("(" + string(l) + "|" + string(u) + ")")
			} else {
				b.WriteRune(c)
			}
		}
	}
}

// invisible are the characters that HFS+ passes over where it compares names, as
// alternatives: joiners and marks of direction. Beside other characters than those
// of patterns they are part of a name like any.
const invisible = "\u200c|\u200d|\u200e|\u200f|\u202a|\u202b|\u202c|\u202d|\u202e|\u206a|\u206b|\u206c|\u206d|\u206e|\u206f|\ufeff"
