package device

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

// undisturbed is an assignment as it would be without the MIG modes that this driver switched
// on: those end with the claims that need them. While they are on, the whole GPU is nobody's, so
// its NVLink domain promises nothing; and if it left and came back with every such claim, slices
// would be written and reordered each time, and a claim for whole GPUs would for a moment not
// see one that has just become free.
func undisturbed(s inventory.Snapshot, a topology.Assignment) topology.Assignment {
	out := topology.Assignment{GPUs: maps.Clone(a.GPUs)}
	ours := map[pci.Address]bool{}
	for _, g := range s.GPUs {
		ours[g.PCI] = g.MIG.Ours && g.MIG.Enabled
	}
	for _, d := range a.Domains {
		d.Live = slices.Clone(d.Live)
		for _, at := range d.Members {
			if !ours[at] || slices.Contains(d.Live, at) {
				continue
			}
			p := out.GPUs[at]
			p.Domain, p.Size, p.State, p.Why = valueFor(d, p), len(d.Members), topology.Joined, ""
			out.GPUs[at] = p
			d.Live = append(d.Live, at)
		}
		slices.SortFunc(d.Live, pci.Address.Compare)
		out.Domains = append(out.Domains, d)
	}
	return out
}

// valueFor is what members of a domain carry, also when none is left to carry it.
func valueFor(d topology.Domain, p topology.Placement) string {
	switch {
	case d.Value != "":
		return d.Value
	case p.ClusterUUID != "":
		return fmt.Sprintf("%s.%d", p.ClusterUUID, p.CliqueID)
	}
	return d.Home
}
