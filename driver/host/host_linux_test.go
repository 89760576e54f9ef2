package host

import (
	"slices"
	"testing"
)

func TestParentOf(t *testing.T) {
	for _, tt := range []struct {
		stat string
		want int
		ok   bool
	}{
		{"12 (sh) S 11 12 12 0", 11, true},
		{"12 (a) S 99 (x) R 11 12 12 0", 11, true}, // a name made to mislead
		{"12 (sh)", 0, false},
		{"", 0, false},
	} {
		if got, ok := parentOf([]byte(tt.stat)); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %d, %v", tt.stat, got, ok)
		}
	}
}

func TestDescendants(t *testing.T) {
	got := descendants(1, map[int]int{1: 0, 2: 1, 3: 2, 4: 1, 5: 9, 9: 0})
	slices.Sort(got)
	if !slices.Equal(got, []int{2, 3, 4}) {
		t.Errorf("got %v", got)
	}
}
