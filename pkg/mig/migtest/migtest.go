// Package migtest makes snapshots of GPUs that can be partitioned, from the boards that the
// simulated node knows, whose profiles have sources. It must not be imported by the product.
package migtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Presets are the simulated nodes whose GPUs, or some of them, can be partitioned.
func Presets() []string {
	return []string{"a100-pcie-8", "a30-4", "dgx-a100-40", "dgx-a100-80", "gb200-nvl72", "hgx-b200-8", "hgx-h100-16", "hgx-h100-8", "hgx-h200-8", "mixed", "rtx-pro-6000-8"}
}

// Snapshot is what a scan of a preset finds, without NVLink: GPUs that can be partitioned have
// profiles and their mode is off.
func Snapshot(t testing.TB, preset string) inventory.Snapshot {
	t.Helper()
	s, err := Load(preset)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Load is Snapshot outside of tests.
func Load(preset string) (inventory.Snapshot, error) {
	file, err := nodefile.Preset(preset)
	if err != nil {
		return inventory.Snapshot{}, err
	}
	node, err := nodefile.Resolve(file)
	if err != nil {
		return inventory.Snapshot{}, err
	}
	s := inventory.Snapshot{Driver: inventory.Driver{Present: true, Version: node.Driver.Version, CUDAMajor: 13}}
	for i, in := range node.GPUs {
		at, err := pci.Parse(in.PCI.String())
		if err != nil {
			return inventory.Snapshot{}, err
		}
		g := inventory.GPU{
			PCI: at, UUID: in.UUID, Minor: int(in.Minor), Index: i, ProductName: in.Board.Product,
			Brand: "Nvidia", Architecture: in.Board.Architecture, AddressingMode: "HMM",
			MemoryBytes: in.Board.MemoryMiB << 20, PCIeRoot: in.Root, NUMANode: &in.NUMA,
			MIG: MIG(in.Board.MIG),
		}
		if _, err := fmt.Sscanf(in.Board.PCIDevice[:6], "0x%x", &g.PCIDevice); err != nil {
			return inventory.Snapshot{}, fmt.Errorf("PCI device %q: %w", in.Board.PCIDevice, err)
		}
		if _, err := fmt.Sscanf(in.Board.ComputeCapability, "%d.%d", &g.ComputeMajor, &g.ComputeMinor); err != nil {
			return inventory.Snapshot{}, fmt.Errorf("compute capability %q: %w", in.Board.ComputeCapability, err)
		}
		s.GPUs = append(s.GPUs, g)
	}
	return s, nil
}

// MIG gives the facts of a board whose mode is off.
func MIG(board *nodefile.BoardMIG) inventory.MIG {
	if board == nil {
		return inventory.MIG{}
	}
	m := inventory.MIG{Capable: true}
	for _, p := range board.Profiles {
		out := inventory.MIGProfile{
			ID: int(p.ID), Name: p.Name, Slices: int(p.Slices), MaxInstances: int(p.Max), MemoryBytes: p.MemoryMiB << 20,
			Multiprocessors: int(p.SM), CopyEngines: int(p.CE), Decoders: int(p.DEC), Encoders: int(p.ENC),
			JPEGEngines: int(p.JPG), OFAEngines: int(p.OFA),
		}
		for _, start := range p.Starts {
			out.Placements = append(out.Placements, inventory.MIGPlacement{Start: int(start), Size: int(p.Size)})
		}
		m.Profiles = append(m.Profiles, out)
	}
	slices.SortFunc(m.Profiles, func(a, b inventory.MIGProfile) int { return a.ID - b.ID })
	return m
}

// Profile finds a profile of a GPU by name.
func Profile(t testing.TB, g inventory.GPU, name string) inventory.MIGProfile {
	t.Helper()
	for _, p := range g.MIG.Profiles {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("GPU %s has no profile %s", g.PCI, name)
	return inventory.MIGProfile{}
}

// With gives the GPU with its mode on and one more instance, whose only compute instance has
// all of it. The name is a profile's, with its start: "1g.10gb:3".
func With(t testing.TB, g inventory.GPU, ours bool, name string) inventory.GPU {
	t.Helper()
	name, text, _ := strings.Cut(name, ":")
	p := Profile(t, g, name)
	i := slices.IndexFunc(p.Placements, func(at inventory.MIGPlacement) bool { return fmt.Sprint(at.Start) == text })
	if i < 0 {
		t.Fatalf("profile %s has no placement at %s", name, text)
	}
	g.MIG.Enabled, g.MIG.PendingEnabled = true, true
	g.MIG.Instances = append(slices.Clone(g.MIG.Instances), inventory.MIGInstance{
		ID: 7 + p.Placements[i].Start, ProfileID: p.ID, Placement: p.Placements[i], Ours: ours,
		Compute: []inventory.MIGCompute{{ID: 0, Slices: p.Slices, UUID: fmt.Sprintf("MIG-%s-%s", name, text)}},
	})
	slices.SortFunc(g.MIG.Instances, func(a, b inventory.MIGInstance) int { return a.Placement.Compare(b.Placement) })
	return g
}
