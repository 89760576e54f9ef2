package policy

import "testing"

func TestBelow(t *testing.T) {
	for _, tt := range []struct {
		p, dir string
		want   bool
	}{
		{"/a", "/a", true}, {"/a/b", "/a", true}, {"/a", "/", true}, {"/", "/", true},
		{"/ab", "/a", false}, {"/a", "/a/b", false}, {"/", "/a", false}, {"/b/a", "/a", false},
	} {
		if got := Below(tt.p, tt.dir); got != tt.want {
			t.Errorf("Below(%q, %q) = %v", tt.p, tt.dir, got)
		}
	}
}
