package landlock

import "testing"

// TestHandled pins the table of ABIs to linux/landlock.h.
func TestHandled(t *testing.T) {
	for _, tt := range []struct {
		abi    int
		access Access
		scope  Scope
	}{
		{-1, 0, 0}, {0, 0, 0},
		{1, 0x1fff, 0}, {2, 0x3fff, 0}, {3, 0x7fff, 0}, {4, 0x7fff, 0},
		{5, 0xffff, 0}, {6, 0xffff, 3}, {7, 0xffff, 3}, {8, 0xffff, 3}, {9, 0x1ffff, 3},
		// What a later kernel adds is not handled before it is known here.
		{99, 0x1ffff, 3},
	} {
		a, s := Handled(tt.abi)
		if a != tt.access || s != tt.scope {
			t.Errorf("ABI %d: %#x, %#x; want %#x, %#x", tt.abi, a, s, tt.access, tt.scope)
		}
	}
	if Write&(MakeChar|MakeBlock|IoctlDev|Execute) != 0 {
		t.Error("Write grants device nodes, device ioctls or execution")
	}
}
