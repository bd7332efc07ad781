package inventorytest_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/pci"
)

func find(s inventory.Snapshot, at pci.Address) *inventory.GPU {
	for i := range s.GPUs {
		if s.GPUs[i].PCI == at {
			return &s.GPUs[i]
		}
	}
	return nil
}

func activeTo(g inventory.GPU, peer pci.Address) int {
	n := 0
	for _, l := range g.NVLink.Links {
		if l.Active && l.Remote == inventory.RemoteGPU && l.Peer == peer {
			n++
		}
	}
	return n
}

// sound tells what no machine can be: addresses or UUIDs twice, links that only one end has.
func sound(t *testing.T, s inventory.Snapshot) {
	t.Helper()
	seen := map[string]bool{}
	for _, g := range s.GPUs {
		if seen[g.PCI.String()] || seen[g.UUID] || g.UUID == "" {
			t.Errorf("%s %s: address or UUID twice or empty", g.PCI, g.UUID)
		}
		seen[g.PCI.String()], seen[g.UUID] = true, true
		for _, peer := range g.NVLink.Peers {
			if other := find(s, peer); other == nil || !slices.Contains(other.NVLink.Peers, g.PCI) {
				t.Errorf("%s has peer %s, but not the other way round", g.PCI, peer)
			}
		}
		for _, other := range s.GPUs {
			if activeTo(g, other.PCI) != activeTo(other, g.PCI) {
				t.Errorf("%s and %s do not agree on their links", g.PCI, other.PCI)
			}
		}
	}
}

func TestMachinesAreSound(t *testing.T) {
	for name, s := range inventorytest.All() {
		t.Run(name, func(t *testing.T) {
			sound(t, s)
			if !s.Driver.Present || s.GPUs[0].MemoryBytes == 0 || s.GPUs[0].ProductName == "" {
				t.Errorf("incomplete: %+v", s.GPUs[0])
			}
			if !slices.IsSortedFunc(s.GPUs, func(a, b inventory.GPU) int { return a.PCI.Compare(b.PCI) }) {
				t.Error("GPUs are not in bus order")
			}
		})
	}
}

func TestSixtyFourBoardsFit(t *testing.T) {
	sound(t, inventorytest.New().Add(inventorytest.Board{}, 64).Switch(0, 64, 18).Snapshot)
}

func TestFaults(t *testing.T) {
	machine := inventorytest.TwoIslands()
	want := inventorytest.Clone(machine)
	a, b := machine.GPUs[0].PCI, machine.GPUs[1].PCI
	for name, tc := range map[string]struct {
		now            inventory.Snapshot
		gpus, unusable int
		peers, active  int
		partnerInMIG   bool
	}{
		"lost":     {inventorytest.Lose(machine, b), 7, 1, 2, 8, false},
		"removed":  {inventorytest.Remove(machine, b), 7, 0, 2, 8, false},
		"MIG mode": {inventorytest.MIG(machine, b), 8, 0, 2, 8, true},
		"unlinked": {inventorytest.Unlink(machine, a, b), 8, 0, 2, 8, false},
		"cloned":   {inventorytest.Clone(machine), 8, 0, 3, 12, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := find(tc.now, a)
			active := 0
			for _, l := range g.NVLink.Links {
				if l.Active {
					active++
				}
			}
			if len(tc.now.GPUs) != tc.gpus || len(tc.now.Unusable) != tc.unusable || len(g.NVLink.Peers) != tc.peers || active != tc.active {
				t.Errorf("%d GPUs, %d unusable, %d peers, %d active links", len(tc.now.GPUs), len(tc.now.Unusable), len(g.NVLink.Peers), active)
			}
			if partner := find(tc.now, b); partner != nil && partner.MIG.Enabled != tc.partnerInMIG {
				t.Errorf("MIG mode of the other GPU is %t", partner.MIG.Enabled)
			}
			if diff := cmp.Diff(want, machine); diff != "" {
				t.Errorf("the fault changed the machine itself:\n%s", diff)
			}
		})
	}
}
