package main

import (
	"math/rand/v2"
	"slices"
)

// A sample is what one round measured; the index is the round, so that samples
// of two contenders with the same index were taken next to each other. NaN is
// not used: a contender that sat a round out has no entry in its map.
type samples map[int]float64

func (s samples) values() []float64 {
	v := make([]float64, 0, len(s))
	for _, x := range s {
		v = append(v, x)
	}
	slices.Sort(v)
	return v
}

// quantile returns the q-quantile of sorted values, interpolated; 0 of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// bootstraps is the number of resamples behind an interval; 400 put its ends
// within a percent of where ten thousand would.
const bootstraps = 400

// A ratio is a ratio of medians with its 95 % bootstrap interval.
type ratio struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// ratioOf compares a with b. Rounds are resampled, not values: what disturbs
// the machine disturbs both contenders of a round, and resampling them
// together keeps that out of the interval.
func ratioOf(a, b samples) *ratio {
	var rounds []int
	for r := range a {
		if _, ok := b[r]; ok {
			rounds = append(rounds, r)
		}
	}
	if len(rounds) == 0 {
		return nil
	}
	slices.Sort(rounds)
	median := func(pick []int, s samples, buf []float64) float64 {
		for i, r := range pick {
			buf[i] = s[r]
		}
		slices.Sort(buf)
		return quantile(buf, 0.5)
	}
	buf := make([]float64, len(rounds))
	out := &ratio{Value: median(rounds, a, buf) / median(rounds, b, buf)}

	// A fixed seed: the same samples give the same interval.
	rng := rand.New(rand.NewPCG(1, 2))
	pick := make([]int, len(rounds))
	ratios := make([]float64, bootstraps)
	for i := range ratios {
		for j := range pick {
			pick[j] = rounds[rng.IntN(len(rounds))]
		}
		ratios[i] = median(pick, a, buf) / median(pick, b, buf)
	}
	slices.Sort(ratios)
	out.Low, out.High = quantile(ratios, 0.025), quantile(ratios, 0.975)
	return out
}
