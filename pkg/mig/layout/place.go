package layout

import (
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
)

// maxTries bounds the search: known boards need some hundreds.
const maxTries = 1 << 14

// search looks for the best way to place profiles beside what is there.
type search struct {
	geometry mig.Geometry
	// candidates are the partitions of each profile, from the end of the GPU on: the front is
	// left to the largest profiles.
	candidates map[int][]mig.Partition
	// all are all partitions, large ones first.
	all   []mig.Partition
	tries int

	best  []mig.Partition
	found bool
	// room is what the best leaves: the place in all of the largest partition that still fits.
	room int
}

// place finds places for the profiles, large ones first, beside the fixed partitions. Of all ways
// it takes one that leaves room for the largest profile, and of those always the same.
func place(geometry mig.Geometry, profiles []inventory.MIGProfile, fixed []mig.Partition) ([]mig.Partition, bool) {
	s := search{geometry: geometry, candidates: map[int][]mig.Partition{}}
	s.all = slices.Clone(geometry.Partitions(nil))
	for _, part := range s.all {
		s.candidates[part.Profile.ID] = append(s.candidates[part.Profile.ID], part)
	}
	slices.Reverse(s.all)
	slices.SortStableFunc(s.all, func(a, b mig.Partition) int { return b.Profile.Slices - a.Profile.Slices })
	s.next(profiles, slices.Clone(fixed), len(fixed), 0)
	return s.best, s.found
}

// next places the first of the profiles and then the others. Equal profiles are placed in the
// order of their candidates, so that no arrangement is tried twice.
func (s *search) next(profiles []inventory.MIGProfile, placed []mig.Partition, fixed, from int) {
	if len(profiles) == 0 {
		if room := s.left(placed); !s.found || room < s.room {
			s.best, s.found, s.room = slices.Clone(placed[fixed:]), true, room
		}
		return
	}
	candidates := s.candidates[profiles[0].ID]
	for i := from; i < len(candidates); i++ {
		if s.tries++; s.tries > maxTries || s.found && s.room == 0 {
			return
		}
		part := candidates[i]
		if !s.fits(part, placed) {
			continue
		}
		start := 0
		if len(profiles) > 1 && profiles[1].ID == profiles[0].ID {
			start = i + 1
		}
		s.next(profiles[1:], append(slices.Clip(placed), part), fixed, start)
	}
}

func (s *search) fits(part mig.Partition, beside []mig.Partition) bool {
	overlaps := slices.ContainsFunc(beside, func(p mig.Partition) bool { return p.Placement.Overlaps(part.Placement) })
	return !overlaps && s.geometry.Fits(part, beside)
}

// left is the place of the largest partition that still fits; small is good.
func (s *search) left(placed []mig.Partition) int {
	i := slices.IndexFunc(s.all, func(part mig.Partition) bool { return s.fits(part, placed) })
	if i < 0 {
		return len(s.all)
	}
	return i
}
