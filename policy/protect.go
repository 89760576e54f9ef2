package policy

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxProtect bounds the list of protected paths, and MaxProtectPattern the
// length of one pattern, bytes.
const (
	MaxProtect        = 1024
	MaxProtectPattern = 256
)

// CheckProtect reports what is wrong with a pattern of [Policy.Protect].
func CheckProtect(pattern string) error {
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
