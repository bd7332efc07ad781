// Package sample turns raw measurements into the figures of a report: percentiles, medians over
// rounds and ratios. It is for the benchmarks of this repository and knows nothing of what was
// measured.
package sample

import (
	"math"
	"slices"
	"time"
)

// Series are durations measured one after the other under the same conditions.
type Series []time.Duration

// Percentile gives the smallest value that p percent of the series do not exceed (nearest rank);
// 0 for an empty series. p is from 0 to 100.
func (s Series) Percentile(p float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median is the 50th percentile.
func (s Series) Median() time.Duration { return s.Percentile(50) }

// Rounds are series that were measured under the same conditions at different times. What was
// busy on the machine during one of them must not decide the result, so figures are made for
// each round and their median is given.
type Rounds []Series

// Median is the median of the rounds' medians.
func (r Rounds) Median() time.Duration { return r.medians().Median() }

// Spread is the smallest and the largest of the rounds' medians.
func (r Rounds) Spread() (least, most time.Duration) {
	m := r.medians()
	return m.Percentile(0), m.Percentile(100)
}

func (r Rounds) medians() Series {
	var m Series
	for _, s := range r {
		m = append(m, s.Median())
	}
	return m
}

// All is every measurement of every round, for tail percentiles that one round has too few
// values for.
func (r Rounds) All() Series { return slices.Concat(r...) }

// Ratio is the median over the rounds of the median of r divided by that of base in the same
// round; 0 where there is nothing to compare.
func (r Rounds) Ratio(base Rounds) float64 {
	var all []float64
	for i := range min(len(r), len(base)) {
		if b := base[i].Median(); b > 0 {
			all = append(all, float64(r[i].Median())/float64(b))
		}
	}
	return Median(all)
}

// Growth is the median over the rounds of how much more r takes than base for each of n things;
// negative where it takes less.
func (r Rounds) Growth(base Rounds, n int) time.Duration {
	var all []float64
	for i := range min(len(r), len(base)) {
		all = append(all, float64(r[i].Median()-base[i].Median())/float64(n))
	}
	return time.Duration(Median(all))
}

// Median is the middle of the values, the mean of the two middle ones where their number is
// even; 0 without values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
