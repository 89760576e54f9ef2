package policy

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// MaxProtect bounds the list of protected paths, and MaxProtectPattern the
// length of one pattern, bytes.
const (
	MaxProtect        = 1024
	MaxProtectPattern = 256
)

// RepositoryName reports whether a directory is called as repositories of Git's are:
// .git, NAME.git, .bare, or what lies below .git for a submodule.
func RepositoryName(dir string) bool {
	base := path.Base(dir)
	return strings.HasSuffix(base, ".git") || base == ".bare" || strings.Contains(dir, "/.git/modules/")
}

// CheckProtect reports what is wrong with a pattern of [Policy.Protect].
func CheckProtect(pattern string) error {
	if plain(pattern) {
		return nil // as are nearly all, and every run has some 170
	}
	return examine(pattern)
}

func examine(pattern string) error {
	s := strings.TrimSuffix(pattern, "/")
	want := ""
	switch {
	case s == "":
		want = "a name"
	case len(pattern) > MaxProtectPattern:
		want = fmt.Sprintf("no more than %d bytes", MaxProtectPattern)
	case s[0] == '/', s[0] == '~':
		want = "names below the workspace, which match at any depth, and no / or ~ in front"
	case !utf8.ValidString(s), strings.ContainsAny(s, "\x00\n?[]{}\\"):
		want = "names with / between them, and no special character but *"
	}
	for name := range strings.SplitSeq(s, "/") {
		switch {
		case want != "":
		case name == "", name == ".", name == "..":
			want = "names with one / between them, without . and .."
		case strings.Trim(name, "*") == "":
			want = "another character beside each *, which matches within a name"
		}
	}
	if want == "" {
		return nil
	}
	return &InvalidError{Field: "protect", Value: pattern, Want: want}
}

// plain reports whether a pattern is a usual one: names of letters, digits and a few
// signs that mean nothing, with * beside them. It decides what is valid by one look at
// each byte; what it does not take may be valid all the same.
func plain(pattern string) bool {
	if pattern == "" || len(pattern) > MaxProtectPattern {
		return false
	}
	named := false // the name has a character beside * and .
	for i := 0; i < len(pattern); i++ {
		switch signs[pattern[i]] {
		case 'x':
			named = true
		case '.':
		case '/':
			if !named {
				return false
			}
			named = false
		default:
			return false
		}
	}
	return named || pattern[len(pattern)-1] == '/'
}

// signs are what bytes of a pattern are to plain: x is a character of a name, . and *
// make none, and 0 is for examine.
var signs = [256]byte{
	'.': '.', '*': '.', '/': '/', '-': 'x', '_': 'x',
	'0': 'x', '1': 'x', '2': 'x', '3': 'x', '4': 'x', '5': 'x', '6': 'x', '7': 'x', '8': 'x', '9': 'x',
	'A': 'x', 'B': 'x', 'C': 'x', 'D': 'x', 'E': 'x', 'F': 'x', 'G': 'x', 'H': 'x', 'I': 'x', 'J': 'x', 'K': 'x',
	'L': 'x', 'M': 'x',
	'N': 'x', 'O': 'x', 'P': 'x', 'Q': 'x', 'R': 'x', 'S': 'x', 'T': 'x', 'U': 'x', 'V': 'x', 'W': 'x', 'X': 'x',
	'Y': 'x', 'Z': 'x',
	'a': 'x', 'b': 'x', 'c': 'x', 'd': 'x', 'e': 'x', 'f': 'x', 'g': 'x', 'h': 'x', 'i': 'x', 'j': 'x', 'k': 'x',
	'l': 'x', 'm': 'x',
	'n': 'x', 'o': 'x', 'p': 'x', 'q': 'x', 'r': 'x', 's': 'x', 't': 'x', 'u': 'x', 'v': 'x', 'w': 'x', 'x': 'x',
	'y': 'x', 'z': 'x',
}
