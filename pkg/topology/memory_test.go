package topology_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/topology"
)

// change is one thing that happens to a machine.
type change func(inventory.Snapshot) inventory.Snapshot

func lose(i int) change {
	return func(s inventory.Snapshot) inventory.Snapshot { return inventorytest.Lose(s, s.GPUs[i].PCI) }
}

func remove(i int) change {
	return func(s inventory.Snapshot) inventory.Snapshot { return inventorytest.Remove(s, s.GPUs[i].PCI) }
}

func mig(i int) change {
	return func(s inventory.Snapshot) inventory.Snapshot { return inventorytest.MIG(s, s.GPUs[i].PCI) }
}

func unlink(i, j int) change {
	return func(s inventory.Snapshot) inventory.Snapshot {
		return inventorytest.Unlink(s, s.GPUs[i].PCI, s.GPUs[j].PCI)
	}
}

func swap(i int) change {
	return func(s inventory.Snapshot) inventory.Snapshot {
		s = inventorytest.Clone(s)
		s.GPUs[i].UUID += "-swapped"
		return s
	}
}

func reverse(s inventory.Snapshot) inventory.Snapshot {
	s = inventorytest.Clone(s)
	slices.Reverse(s.GPUs)
	for i := range s.GPUs {
		s.GPUs[i].Index, s.GPUs[i].Minor = i, i
	}
	return s
}

// down takes links of a GPU down without changing whom NVML calls its peers.
func down(i, links int) change {
	return func(s inventory.Snapshot) inventory.Snapshot {
		s = inventorytest.Clone(s)
		for j := range links {
			s.GPUs[i].NVLink.Links[j].Active = false
		}
		return s
	}
}

func unreadable(i int) change {
	return func(s inventory.Snapshot) inventory.Snapshot {
		s.Problems = append(s.Problems, inventory.Problem{PCI: s.GPUs[i].PCI, Fact: "nvlink peers", Err: fmt.Errorf("timeout")})
		return s
	}
}

func apply(s inventory.Snapshot, changes ...change) inventory.Snapshot {
	for _, c := range changes {
		s = c(s)
	}
	return s
}

// What happens to a healthy machine, and which GPUs keep a domain, with which value.
func TestChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		machine inventory.Snapshot
		changes []change
		// kept are the GPUs that keep the value they had; renamed those that get another one.
		kept, renamed []int
	}{
		"restart":                      {inventorytest.TwoIslands(), nil, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil},
		"reversed enumeration":         {inventorytest.TwoIslands(), []change{reverse}, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil},
		"lost":                         {inventorytest.TwoIslands(), []change{lose(1)}, []int{0, 2, 3, 4, 5, 6, 7}, nil},
		"two lost":                     {inventorytest.TwoIslands(), []change{lose(0), lose(0)}, []int{2, 3, 4, 5, 6, 7}, nil},
		"off the bus":                  {inventorytest.TwoIslands(), []change{remove(1)}, []int{0, 2, 3, 4, 5, 6, 7}, nil},
		"MIG mode":                     {inventorytest.HGXH100(), []change{mig(7)}, []int{0, 1, 2, 3, 4, 5, 6}, nil},
		"all but one on a switch":      {inventorytest.HGXH100(), []change{mig(7), mig(6), mig(5), mig(4), lose(3), lose(2), lose(1)}, []int{0}, nil},
		"a bridge is down":             {inventorytest.BridgePairs(), []change{unlink(2, 3)}, []int{0, 1, 4, 5, 6, 7}, nil},
		"one link of a bridge":         {inventorytest.BridgePairs(), []change{down(2, 1)}, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil},
		"the other one of a bridge":    {inventorytest.BridgePairs(), []change{lose(2)}, []int{0, 1, 4, 5, 6, 7}, nil},
		"one of four links down":       {inventorytest.TwoIslands(), []change{unlink(0, 1)}, []int{0, 2, 3, 4, 5, 6, 7}, nil},
		"cube mesh, lost":              {inventorytest.CubeMesh(), []change{lose(0)}, []int{1, 2, 3, 4, 5, 6, 7}, nil},
		"swapped":                      {inventorytest.TwoIslands(), []change{swap(1)}, []int{4, 5, 6, 7}, []int{0, 1, 2, 3}},
		"swapped in the cube mesh":     {inventorytest.CubeMesh(), []change{swap(4)}, []int{0, 1, 2, 3}, []int{4, 5, 6, 7}},
		"swapped while a peer is lost": {inventorytest.TwoIslands(), []change{swap(1), lose(0)}, []int{4, 5, 6, 7}, []int{1, 2, 3}},
		"unreadable peers":             {inventorytest.DGXA100(), []change{unlink(0, 1), unreadable(0)}, []int{0, 2, 3, 4, 5, 6, 7}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before, memory := resolve(t, tc.machine, topology.Memory{})
			after, next := resolve(t, apply(tc.machine, tc.changes...), memory)
			for i, g := range tc.machine.GPUs {
				was, is := before.GPUs[g.PCI].Domain, after.GPUs[g.PCI].Domain
				keeps, renamed := slices.Contains(tc.kept, i), slices.Contains(tc.renamed, i)
				switch {
				case keeps && is != was, renamed && (is == was || is == ""), !keeps && !renamed && is != "":
					t.Errorf("GPU %d (kept %t, renamed %t): was %q, is %q", i, keeps, renamed, was, is)
				case is != "" && after.GPUs[g.PCI].Size != before.GPUs[g.PCI].Size:
					t.Errorf("GPU %d: size was %d, is %d", i, before.GPUs[g.PCI].Size, after.GPUs[g.PCI].Size)
				}
			}
			// Whatever happened, the healthy machine has its values back when it is healed.
			healed, _ := resolve(t, tc.machine, next)
			for at, p := range before.GPUs {
				if healed.GPUs[at].Domain != p.Domain {
					t.Errorf("%s: healed to %q, was %q", at, healed.GPUs[at].Domain, p.Domain)
				}
			}
		})
	}
}

// A board that is left to others is no member any more, and is one again when it is not.
func TestExcludedBoards(t *testing.T) {
	machine := inventorytest.HGXH100()
	before, memory := resolve(t, machine, topology.Memory{})
	excluded := inventorytest.Exclude(machine, machine.GPUs[2].PCI)
	fresh, _ := resolve(t, excluded, topology.Memory{})
	after, next := resolve(t, excluded, memory)
	for _, g := range excluded.GPUs {
		if is, was := after.GPUs[g.PCI], before.GPUs[g.PCI]; is.Size != 7 || is.Domain == "" || is.Domain == was.Domain || is.Domain != fresh.GPUs[g.PCI].Domain {
			t.Errorf("%s is in %+v, was in %+v", g.PCI, is, was)
		}
	}
	again, _ := resolve(t, machine, next)
	for at, p := range before.GPUs {
		if again.GPUs[at].Domain != p.Domain || again.GPUs[at].Size != 8 {
			t.Errorf("%s: %+v, was %+v", at, again.GPUs[at], p)
		}
	}
}

// Members that all work but of which none reaches another have no domain, not one each.
func TestDomainThatFellApart(t *testing.T) {
	machine := inventorytest.DGXA100()
	_, memory := resolve(t, machine, topology.Memory{})
	broken := machine
	for i := range machine.GPUs {
		broken = unreadable(i)(broken)
		for j := range i {
			broken = unlink(i, j)(broken)
		}
	}
	a, _ := resolve(t, broken, memory)
	for at, p := range a.GPUs {
		if p.Domain != "" || p.State != topology.PeersDown || len(p.Cliques) > 0 {
			t.Errorf("%s: %+v", at, p)
		}
	}
	if len(a.Domains) != 1 || a.Domains[0].Value != "" || len(a.Domains[0].Live) != 0 || len(a.Domains[0].Members) != 8 {
		t.Errorf("domains %+v", a.Domains)
	}
}

func TestDegradedStartGrowsToTheSameValue(t *testing.T) {
	machine := inventorytest.CubeMesh()
	want, _ := resolve(t, machine, topology.Memory{})
	first := apply(machine, lose(7), lose(6), lose(5), lose(3), lose(2), lose(1))
	a, memory := resolve(t, first, topology.Memory{})
	if got := groups(a, machine); !cmp.Equal(got, [][]int{{0, 4}}) {
		t.Fatalf("the two linked GPUs left form %v", got)
	}
	a, _ = resolve(t, machine, memory)
	if diff := cmp.Diff(want, a); diff != "" {
		t.Errorf("a bad start is not outgrown:\n%s", diff)
	}
}

func TestSwapIntoAnotherSlot(t *testing.T) {
	machine := inventorytest.BridgePairs()
	_, memory := resolve(t, machine, topology.Memory{})
	// The board at 2 is pulled; a new one is bridged to 3 from a slot that was empty.
	moved := inventorytest.Clone(machine)
	old := moved.GPUs[2].PCI
	moved.GPUs[2].UUID, moved.GPUs[2].PCI.Bus = "GPU-new", 0xf0
	for i := range moved.GPUs[3].NVLink.Links {
		moved.GPUs[3].NVLink.Links[i].Peer = moved.GPUs[2].PCI
	}
	moved.GPUs[3].NVLink.Peers[0] = moved.GPUs[2].PCI
	a, next := resolve(t, moved, memory)
	if p := a.GPUs[moved.GPUs[3].PCI]; p.Size != 2 || p.Domain == "" {
		t.Errorf("GPU 3: %+v", p)
	}
	for _, b := range next.Boards {
		if b.PCI == old {
			t.Errorf("the pulled board is still remembered: %+v", b)
		}
	}
}

func TestMovedBridge(t *testing.T) {
	machine := inventorytest.BridgePairs()
	_, memory := resolve(t, machine, topology.Memory{})
	rewired := inventorytest.Clone(machine)
	for i := range rewired.GPUs {
		// 0-1 2-3 becomes 0-2 1-3.
		partner := map[int]int{0: 2, 2: 0, 1: 3, 3: 1}
		if p, ok := partner[i]; ok {
			for j := range rewired.GPUs[i].NVLink.Links {
				rewired.GPUs[i].NVLink.Links[j].Peer = machine.GPUs[p].PCI
			}
			rewired.GPUs[i].NVLink.Peers[0] = machine.GPUs[p].PCI
		}
	}
	a, _ := resolve(t, rewired, memory)
	if diff := cmp.Diff([][]int{{0, 2}, {1, 3}, {4, 5}, {6, 7}}, groups(a, machine)); diff != "" {
		t.Error(diff)
	}
}

func TestNewPCIAddressesKeepTheValue(t *testing.T) {
	machine := inventorytest.DGXA100()
	before, memory := resolve(t, machine, topology.Memory{})
	moved := inventorytest.Clone(machine)
	for i := range moved.GPUs {
		moved.GPUs[i].PCI.Domain = 3
		for j := range moved.GPUs[i].NVLink.Peers {
			moved.GPUs[i].NVLink.Peers[j].Domain = 3
		}
	}
	after, next := resolve(t, moved, memory)
	if before.GPUs[machine.GPUs[0].PCI].Domain != after.GPUs[moved.GPUs[0].PCI].Domain {
		t.Error("the value follows the PCI address")
	}
	if next.Boards[0].PCI.Domain != 3 {
		t.Errorf("the memory has the old address: %+v", next.Boards[0])
	}
}

// drawMachine draws a machine of direct links, with UUIDs in no order.
func drawMachine(t *rapid.T) inventory.Snapshot {
	n := rapid.IntRange(1, 10).Draw(t, "gpus")
	density := rapid.IntRange(1, 10).Draw(t, "density")
	wires := make([][]int, n)
	for i := range wires {
		wires[i] = make([]int, n)
	}
	for i := range wires {
		for j := range i {
			if rapid.IntRange(0, 9).Draw(t, "wire") < density {
				count := rapid.IntRange(1, 3).Draw(t, "links")
				wires[i][j], wires[j][i] = count, count
			}
		}
	}
	s := inventorytest.New().Add(inventorytest.Board{LinkVersion: 3, LinkMBps: 25000}, n).Wire(0, wires).Snapshot
	names := rapid.Permutation(uuids(n)).Draw(t, "uuids")
	for i := range s.GPUs {
		s.GPUs[i].UUID = names[i]
	}
	if rapid.Bool().Draw(t, "peers not answered") {
		for i := range s.GPUs {
			s.GPUs[i].NVLink.Peers, s.GPUs[i].NVLink.PeersKnown = nil, false
		}
	}
	return s
}

func uuids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("GPU-%02d", i)
	}
	return out
}

func linkedPairs(s inventory.Snapshot, a topology.Assignment, share func(p, q topology.Placement) bool) (out [][2]int) {
	for i, g := range s.GPUs {
		for j, h := range s.GPUs[:i] {
			if share(a.GPUs[g.PCI], a.GPUs[h.PCI]) {
				out = append(out, [2]int{j, i})
			}
		}
	}
	return out
}

func byUUID(s inventory.Snapshot, a topology.Assignment) map[string]string {
	out := map[string]string{}
	for _, g := range s.GPUs {
		out[g.UUID] = a.GPUs[g.PCI].Domain
	}
	return out
}

func TestRandomMachines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawMachine(t)
		a, memory := topology.Resolve(s, topology.Memory{})
		if err := topology.CheckAssignment(s, a, memory); err != nil {
			t.Fatal(err)
		}
		// Relabelled: the same boards in other slots and another order.
		other := relabel(t, s)
		b, _ := topology.Resolve(other, topology.Memory{})
		if diff := cmp.Diff(byUUID(s, a), byUUID(other, b)); diff != "" {
			t.Fatalf("another enumeration gives other domains:\n%s", diff)
		}
		// Cliques are exact: two GPUs are linked if and only if they share one.
		whole := true
		for _, p := range a.GPUs {
			whole = whole && p.CliquesOmitted == 0
		}
		shared := linkedPairs(s, a, func(p, q topology.Placement) bool {
			return slices.ContainsFunc(p.Cliques, func(c string) bool { return slices.Contains(q.Cliques, c) })
		})
		var wired [][2]int
		for i, g := range s.GPUs {
			for j, h := range s.GPUs[:i] {
				if slices.ContainsFunc(g.NVLink.Links, func(l inventory.Link) bool { return l.Peer == h.PCI }) {
					wired = append(wired, [2]int{j, i})
				}
			}
		}
		if diff := cmp.Diff(wired, shared); whole && diff != "" {
			t.Fatalf("linked pairs (-wired +sharing a clique):\n%s", diff)
		}
	})
}

// relabel moves every board to another slot.
func relabel(t *rapid.T, s inventory.Snapshot) inventory.Snapshot {
	order := make([]int, len(s.GPUs))
	for i := range order {
		order[i] = i
	}
	order = rapid.Permutation(order).Draw(t, "slots")
	out := inventorytest.Clone(s)
	for i := range out.GPUs {
		g := s.GPUs[order[i]]
		g = inventorytest.Clone(inventory.Snapshot{GPUs: []inventory.GPU{g}}).GPUs[0]
		g.PCI, g.Index, g.Minor = s.GPUs[i].PCI, i, i
		slot := func(was int) int { return slices.Index(order, was) }
		index := func(k int) int {
			return slices.IndexFunc(s.GPUs, func(h inventory.GPU) bool { return h.PCI.Bus == uint8(k) })
		}
		for j := range g.NVLink.Links {
			l := &g.NVLink.Links[j]
			l.Peer = s.GPUs[slot(index(int(l.Peer.Bus)))].PCI
		}
		for j := range g.NVLink.Peers {
			g.NVLink.Peers[j] = s.GPUs[slot(index(int(g.NVLink.Peers[j].Bus)))].PCI
		}
		out.GPUs[i] = g
	}
	return out
}

// Random faults never rename a domain and never join what is not linked; swaps rename.
func TestRandomFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		machine := drawMachine(t)
		before, memory := topology.Resolve(machine, topology.Memory{})
		s := machine
		for range rapid.IntRange(1, 4).Draw(t, "faults") {
			if len(s.GPUs) == 0 {
				break
			}
			i := rapid.IntRange(0, len(s.GPUs)-1).Draw(t, "gpu")
			fault := rapid.SampledFrom([]change{lose(i), remove(i), mig(i), reverse, unlink(i, rapid.IntRange(0, len(s.GPUs)-1).Draw(t, "other"))}).Draw(t, "fault")
			s = fault(s)
			a, next := topology.Resolve(s, memory)
			if err := topology.CheckAssignment(s, a, next); err != nil {
				t.Fatal(err)
			}
			for _, g := range s.GPUs {
				if now, was := a.GPUs[g.PCI].Domain, before.GPUs[g.PCI].Domain; now != "" && now != was {
					t.Fatalf("%s: domain was %q, is %q", g.PCI, was, now)
				}
			}
			again, same := topology.Resolve(s, next)
			if diff := cmp.Diff(a, again) + cmp.Diff(next, same); diff != "" {
				t.Fatalf("resolving twice differs:\n%s", diff)
			}
			memory = next
		}
		healed, _ := topology.Resolve(machine, memory)
		if diff := cmp.Diff(byUUID(machine, before), byUUID(machine, healed)); diff != "" {
			t.Fatalf("healed machine has other domains:\n%s", diff)
		}
		i := rapid.IntRange(0, len(machine.GPUs)-1).Draw(t, "swapped")
		swapped, _ := topology.Resolve(swap(i)(machine), memory)
		for _, d := range before.Domains {
			for _, at := range d.Members {
				involved := slices.Contains(d.Members, machine.GPUs[i].PCI)
				if involved && swapped.GPUs[at].Domain == d.Value {
					t.Fatalf("%s: value %q outlives the swap of %s", at, d.Value, machine.GPUs[i].PCI)
				}
			}
		}
	})
}
