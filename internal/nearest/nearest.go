// Package nearest finds the name that was meant where a name was misspelt. It
// counts edits, so it knows nothing of meanings.
package nearest

import "strings"

// Name returns the candidate with the smallest edit distance to s, or "" if
// all are more than two edits away. Letter case does not count.
func Name(s string, candidates []string) string {
	best, bestDistance := "", 3
	switch {
	case len(s) < 3:
		bestDistance = 1 // one edit makes anything of two letters
	case len(s) < 5:
		bestDistance = 2 // two make anything of three
	}
	s = strings.ToLower(s)
	for _, c := range candidates {
		if d := distance(s, strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that make b of a (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 { // no name is that long
		return 64
	}
	var before, prev, cur [65]int
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev = prev, cur
	}
	return prev[len(b)]
}
