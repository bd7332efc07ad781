package placement

import (
	"cmp"
	"maps"
	"slices"
)

// Starts gives, for each kind, the order in which its places on a GPU are tried.
type Starts map[string][]int

// PublishedStarts are those of a pool that has one GPU after the other.
func PublishedStarts(p *Pool) Starts {
	out := Starts{}
	for _, i := range p.bySet[0] {
		if d := p.Devices[i]; d.Kind != Whole {
			out[d.Kind] = append(out[d.Kind], d.Start)
		}
	}
	return out
}

// Ascending has each kind's places from the first memory slice on.
func (s Starts) Ascending() Starts {
	out := Starts{}
	for kind, starts := range s {
		out[kind] = slices.Sorted(slices.Values(starts))
	}
	return out
}

// swapped has two places of a kind in each other's stead.
func (s Starts) swapped(kind string, i, j int) Starts {
	out := Starts{}
	for k, starts := range s {
		out[k] = slices.Clone(starts)
	}
	out[kind][i], out[kind][j] = out[kind][j], out[kind][i]
	return out
}

// Pool is a pool with one GPU after the other and each kind's places in this order.
func (s Starts) Pool(p *Pool) *Pool {
	return p.Sorted(func(a, b Device) int {
		if c := cmp.Compare(a.Set, b.Set); c != 0 || a.Kind != b.Kind {
			return c
		}
		starts := s[a.Kind]
		return cmp.Compare(slices.Index(starts, a.Start), slices.Index(starts, b.Start))
	})
}

// Climb looks for a better order: as long as swapping two places of a kind raises the score, it
// swaps those that raise it most. It returns the best order found and how many were tried.
func Climb(from Starts, score func(Starts) (float64, error)) (best Starts, tried int, err error) {
	best = from
	at, err := score(best)
	if err != nil {
		return nil, 0, err
	}
	for {
		next, reached := best, at
		for _, kind := range slices.Sorted(maps.Keys(best)) {
			starts := best[kind]
			for i := range starts {
				for j := range i {
					candidate := best.swapped(kind, i, j)
					value, err := score(candidate)
					if err != nil {
						return nil, tried, err
					}
					if tried++; value > reached+epsilon {
						next, reached = candidate, value
					}
				}
			}
		}
		if reached == at {
			return best, tried, nil
		}
		best, at = next, reached
	}
}
