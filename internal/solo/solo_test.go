package solo

import (
	"runtime"
	"testing"
)

// TestEnd: the program begins with one processor, and has them all afterwards.
func TestEnd(t *testing.T) {
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("it began with %d processors", n)
	}
	End()
	if n := runtime.GOMAXPROCS(0); n != Processors || Processors < 1 {
		t.Errorf("%d processors, want %d", n, Processors)
	}
}
