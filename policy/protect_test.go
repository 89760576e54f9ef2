package policy

import (
	"strings"
	"testing"
)

// What is told at one look is what the whole examination says, for every short
// pattern of the characters that matter.
func TestPlainPatterns(t *testing.T) {
	const alphabet = "a.*/~Z\\ "
	taken := 0
	var all func(prefix string, n int)
	all = func(prefix string, n int) {
		if plain(prefix) {
			taken++
			if err := examine(prefix); err != nil {
				t.Errorf("%q: %v", prefix, err)
			}
		}
		for i := range len(alphabet) * min(n, 1) {
			all(prefix+alphabet[i:i+1], n-1)
		}
	}
	all("", 6)
	for _, p := range []string{".git/hooks", ".vscode/", "*.code-workspace", strings.Repeat("x", MaxProtectPattern)} {
		if !plain(p) {
			t.Errorf("%q is told by the long way", p)
		}
	}
	if plain(strings.Repeat("x", MaxProtectPattern+1)) || taken < 1000 {
		t.Errorf("%d were taken", taken)
	}
}
