package placement

// Chooser picks a device of a kind; false where none fits.
type Chooser interface {
	Choose(s *State, kind string) (device int, ok bool)
}

// FirstFit takes the first device that fits, as the scheduler does.
type FirstFit struct{}

// Choose picks by order.
func (FirstFit) Choose(s *State, kind string) (int, bool) {
	for _, i := range s.pool.kinds[kind] {
		if s.Fits(i) {
			return i, true
		}
	}
	return 0, false
}

// BestFit looks at every device that fits and takes the one that leaves most room for what may
// come: the fewest compute slices, weighted by demand, are lost to later requests. Of equal ones
// it takes the one on the fullest GPU. It is not bound to any order; no driver can do that.
type BestFit struct {
	// Fullest looks at the GPU first and at the loss only within it.
	Fullest bool
	weights map[string]float64
	memo    map[uint64]float64
}

// NewBestFit makes a chooser for a demand.
func NewBestFit(demand Demand, fullest bool) *BestFit {
	b := &BestFit{Fullest: fullest, weights: map[string]float64{}, memo: map[uint64]float64{}}
	for _, k := range demand {
		b.weights[k.Kind] = k.Share * float64(k.Units)
	}
	return b
}

// Choose picks by loss.
func (b *BestFit) Choose(s *State, kind string) (int, bool) {
	best, found := 0, false
	var bestLoss, bestAfter float64
	for _, i := range s.pool.kinds[kind] {
		if !s.Fits(i) {
			continue
		}
		set := s.pool.Devices[i].Set
		before := b.room(s, set)
		s.Take(i)
		after := b.room(s, set)
		s.Return(i)
		loss := before - after
		if b.Fullest {
			loss, after = before, loss
		}
		if !found || loss < bestLoss-epsilon || loss < bestLoss+epsilon && after < bestAfter-epsilon {
			best, found, bestLoss, bestAfter = i, true, loss, after
		}
	}
	return best, found
}

// epsilon is below any difference that is not one of rounding.
const epsilon = 1e-9

// room values what a GPU can still take: each device that fits counts by its weight. All GPUs of
// a pool are of one board and have their devices in the same order.
func (b *BestFit) room(s *State, set int) float64 {
	if v, ok := b.memo[s.taken[set]]; ok {
		return v
	}
	v := 0.0
	for _, i := range s.pool.bySet[set] {
		if s.Fits(i) {
			v += b.weights[s.pool.Devices[i].Kind]
		}
	}
	b.memo[s.taken[set]] = v
	return v
}
