package main

import (
	"math"
	"testing"
)

func TestQuantile(t *testing.T) {
	v := []float64{1, 2, 3, 4, 5}
	for q, want := range map[float64]float64{0: 1, 0.1: 1.4, 0.5: 3, 0.9: 4.6, 1: 5} {
		if got := quantile(v, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile(%v) = %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing = %v, want 0", got)
	}
}

// What disturbs a round disturbs both contenders of it: the ratio must not
// show it, however large it is.
func TestRatioIsPaired(t *testing.T) {
	a, b := samples{}, samples{}
	for i := range 100 {
		noise := 1 + float64(i%17)
		a[i], b[i] = 2*noise, noise
	}
	b[100] = 1e9 // a round that a sat out does not count
	r := ratioOf(a, b)
	if r == nil || r.Value != 2 || r.Low != 2 || r.High != 2 {
		t.Errorf("ratioOf = %+v, want 2 throughout", r)
	}
	if ratioOf(samples{1: 1}, samples{2: 1}) != nil {
		t.Error("a ratio without a common round")
	}
}
