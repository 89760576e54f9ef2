package driver

import "testing"

// TestHeldBack: that a limit of processors held a command back is said of runs that it
// bound, and of no others.
func TestHeldBack(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		ms, user, sys, throttled float64
		cpus                     float64
		want                     bool
	}{
		{"two loops on one", 60000, 58000, 1000, 60000, 1, true},
		{"sixteen on two", 60000, 100000, 15000, 700000, 2, true},
		{"one loop on one", 60000, 59000, 900, 0, 1, false},
		{"bursts on many processors", 60000, 20000, 1000, 40000, 1, false},
		{"throttled a little", 60000, 55000, 1000, 5000, 1, false},
		{"over soon", 3000, 2900, 50, 3000, 1, false},
		{"no limit", 60000, 58000, 1000, 60000, 0, false},
	} {
		res := &Result{DurationMS: tt.ms, Usage: Usage{CPUUserMS: tt.user, CPUSystemMS: tt.sys, ThrottledMS: tt.throttled}}
		if got := res.HeldBack(tt.cpus); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
