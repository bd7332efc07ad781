package topology

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// CheckAssignment tells what is wrong with an answer: what must hold for every machine.
func CheckAssignment(s inventory.Snapshot, a Assignment, m Memory) error {
	errs := []error{m.check()}
	now := surveyOf(s)
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(a.GPUs) != len(s.GPUs) {
		bad("%d placements for %d GPUs", len(a.GPUs), len(s.GPUs))
	}
	for i, g := range s.GPUs {
		p, ok := a.GPUs[g.PCI]
		if !ok || (p.Domain == "") != (p.State != Joined) || (p.Why == "") != (p.State == Joined) || (p.Size == 0) != (p.Domain == "") {
			bad("placement of %s contradicts itself: %+v", g.PCI, p)
		}
		if p.Domain != "" && !now.stations[i].works() {
			bad("%s does not work but is in a domain", g.PCI)
		}
		for j, other := range s.GPUs[:i] {
			q := a.GPUs[other.PCI]
			if p.Domain != "" && p.Domain == q.Domain && !now.near[i][j] {
				bad("%s and %s share a domain but are not linked", g.PCI, other.PCI)
			}
			for _, c := range p.Cliques {
				if slices.Contains(q.Cliques, c) && !now.near[i][j] {
					bad("%s and %s share a clique but are not linked", g.PCI, other.PCI)
				}
			}
		}
		if len(p.Cliques) > MaxCliques || len(p.Domain) > 64 {
			bad("%s: %d cliques, domain %q", g.PCI, len(p.Cliques), p.Domain)
		}
	}
	return errors.Join(errs...)
}
