package slices

import (
	"cmp"
	"slices"

	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

// priority is a GPU's place in the order; smaller is offered first.
type priority struct {
	// working is the number of working members of the GPU's domain at full health, 0 without.
	working int
	// first is the address of the first member of that domain, lost ones included, so that
	// groups of one size keep their order whatever happens to them.
	first pci.Address
	// joined is false for a member that has no domain now.
	joined bool
	at     pci.Address
}

type order map[pci.Address]priority

// priorities reads the order out of an assignment, as the package comment says.
func priorities(a topology.Assignment) order {
	out := order{}
	for _, d := range a.Domains {
		for _, at := range d.Members {
			out[at] = priority{working: len(d.Live), first: d.Members[0], joined: slices.Contains(d.Live, at), at: at}
		}
	}
	return out
}

func (o order) of(at pci.Address) priority {
	if p, ok := o[at]; ok {
		return p
	}
	return priority{first: at, at: at}
}

func (o order) compare(a, b pci.Address) int {
	p, q := o.of(a), o.of(b)
	return cmp.Or(cmp.Compare(p.working, q.working), p.first.Compare(q.first), compareBool(p.joined, q.joined), p.at.Compare(q.at))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Order sorts addresses of GPUs by allocation priority.
func Order(gpus []pci.Address, a topology.Assignment) []pci.Address {
	p := priorities(a)
	return slices.SortedFunc(slices.Values(gpus), p.compare)
}
