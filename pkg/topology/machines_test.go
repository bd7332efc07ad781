package topology_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

// groups renders an assignment as sets of GPU numbers (in bus order of the reference machine)
// that share a domain, sorted.
func groups(a topology.Assignment, machine inventory.Snapshot) [][]int {
	by := map[string][]int{}
	for i, g := range machine.GPUs {
		if d := a.GPUs[g.PCI].Domain; d != "" {
			by[d] = append(by[d], i)
		}
	}
	out := [][]int{}
	for _, members := range by {
		out = append(out, members)
	}
	slices.SortFunc(out, slices.Compare)
	return out
}

func resolve(t testing.TB, s inventory.Snapshot, m topology.Memory) (topology.Assignment, topology.Memory) {
	t.Helper()
	a, next := topology.Resolve(s, m)
	if err := topology.CheckAssignment(s, a, next); err != nil {
		t.Fatal(err)
	}
	again, same := topology.Resolve(s, next)
	if diff := cmp.Diff(a, again); diff != "" {
		t.Fatalf("the same snapshot resolves differently:\n%s", diff)
	}
	if diff := cmp.Diff(next, same); diff != "" {
		t.Fatalf("the same snapshot changes the memory:\n%s", diff)
	}
	return a, next
}

func TestMachines(t *testing.T) {
	all8 := [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}
	fours := [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
	for name, tc := range map[string]struct {
		want             [][]int
		links, bandwidth int
		cliques          []int
	}{
		"hgx-h100-8":   {all8, 18, 18 * 26562, []int{1, 1, 1, 1, 1, 1, 1, 1}},
		"dgx-a100-80":  {all8, 12, 300000, []int{1, 1, 1, 1, 1, 1, 1, 1}},
		"two-islands":  {fours, 12, 300000, []int{1, 1, 1, 1, 1, 1, 1, 1}},
		"sixteen":      {[][]int{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}, 12, 300000, slices.Repeat([]int{1}, 16)},
		"bridge-pairs": {[][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}}, 12, 300000, slices.Repeat([]int{1}, 8)},
		// Each GPU of the cube mesh is also linked to its opposite in the other half.
		"dgx1-v100":  {fours, 6, 6 * 25781, slices.Repeat([]int{2}, 8)},
		"l40s-8":     {[][]int{}, 0, 0, make([]int, 8)},
		"t4-4":       {[][]int{}, 0, 0, make([]int, 4)},
		"gb200-tray": {[][]int{{0, 1, 2, 3}}, 18, 18 * 53125, []int{1, 1, 1, 1}},
		"mixed":      {[][]int{{0, 1}}, 12, 300000, []int{1, 1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := inventorytest.All()[name]
			a, _ := resolve(t, s, topology.Memory{})
			if diff := cmp.Diff(tc.want, groups(a, s)); diff != "" {
				t.Errorf("domains (-want +got):\n%s", diff)
			}
			first := a.GPUs[s.GPUs[0].PCI]
			if first.Links != tc.links || first.BandwidthMBps != tc.bandwidth {
				t.Errorf("links %d at %d MB/s, want %d at %d", first.Links, first.BandwidthMBps, tc.links, tc.bandwidth)
			}
			for i, g := range s.GPUs {
				p := a.GPUs[g.PCI]
				if len(p.Cliques) != tc.cliques[i] {
					t.Errorf("GPU %d lists %d cliques, want %d", i, len(p.Cliques), tc.cliques[i])
				}
				if p.Domain != "" && !slices.Contains(p.Cliques, p.Domain) {
					t.Errorf("GPU %d: its domain is not among its cliques", i)
				}
			}
		})
	}
	if len(inventorytest.All()) != 10 {
		t.Error("a machine is not covered")
	}
}

func TestFabricValueIsTheSameOnEveryNode(t *testing.T) {
	s := inventorytest.GB200Tray()
	other := inventorytest.Clone(s)
	for i := range other.GPUs {
		other.GPUs[i].UUID += "-other"
	}
	a, _ := resolve(t, s, topology.Memory{})
	b, _ := resolve(t, other, topology.Memory{})
	want := inventorytest.ClusterUUID + ".7"
	for _, g := range s.GPUs {
		if got := a.GPUs[g.PCI]; got.Domain != want || got.Size != 4 {
			t.Errorf("%s: domain %q of %d, want %q of 4", g.PCI, got.Domain, got.Size, want)
		}
		if got := b.GPUs[g.PCI].Domain; got != want {
			t.Errorf("other node: domain %q, want %q", got, want)
		}
	}
}

func TestFabricWithoutPartnerOnThisNode(t *testing.T) {
	s := inventorytest.GB200Tray()
	s.GPUs = s.GPUs[:1]
	s.GPUs[0].NVLink.Peers = nil
	a, m := resolve(t, s, topology.Memory{})
	p := a.GPUs[s.GPUs[0].PCI]
	want := inventorytest.ClusterUUID + ".7"
	if p.Domain != want || p.Size != 1 || p.State != topology.Joined || !slices.Equal(p.Cliques, []string{want}) {
		t.Errorf("got %+v", p)
	}
	if len(m.Boards) != 0 {
		t.Errorf("remembers %v", m.Boards)
	}
}

func TestFabricCliquesDivideANode(t *testing.T) {
	s := inventorytest.GB200Tray()
	s.GPUs[2].Fabric.CliqueID, s.GPUs[3].Fabric.CliqueID = 8, 8
	a, _ := resolve(t, s, topology.Memory{})
	if diff := cmp.Diff([][]int{{0, 1}, {2, 3}}, groups(a, s)); diff != "" {
		t.Error(diff)
	}
}

func TestFabricsDivideANode(t *testing.T) {
	other := inventorytest.GB200Tray()
	other.GPUs[2].Fabric.ClusterUUID, other.GPUs[3].Fabric.ClusterUUID = "other", "other"
	// A board that is on no fabric reaches nobody on other nodes, whatever it reaches here.
	none := inventorytest.GB200Tray()
	none.GPUs[3].Fabric = inventory.Fabric{}
	for want, s := range map[string]inventory.Snapshot{"[[0 1] [2 3]]": other, "[[0 1 2]]": none} {
		a, _ := resolve(t, s, topology.Memory{})
		if got := fmt.Sprint(groups(a, s)); got != want {
			t.Errorf("domains %s, want %s", got, want)
		}
	}
}

// Bridged boards are judged by their links, whatever they say about a fabric.
func TestFabricDoesNotMatterToDirectLinks(t *testing.T) {
	s := inventorytest.BridgePairs()
	for i := range s.GPUs {
		s.GPUs[i].Fabric = inventory.Fabric{State: inventory.FabricNotStarted, ClusterUUID: inventorytest.ClusterUUID}
	}
	a, _ := resolve(t, s, topology.Memory{})
	plain, _ := resolve(t, inventorytest.BridgePairs(), topology.Memory{})
	if diff := cmp.Diff(plain, a); diff != "" {
		t.Error(diff)
	}
}

// One fabric clique whose GPUs do not reach each other here must not look like one set.
func TestFabricNameIsGivenOnce(t *testing.T) {
	s := inventorytest.GB200Tray()
	for _, i := range []int{0, 1} {
		for _, j := range []int{2, 3} {
			s = inventorytest.Unlink(s, s.GPUs[i].PCI, s.GPUs[j].PCI)
		}
	}
	a, _ := resolve(t, s, topology.Memory{})
	if diff := cmp.Diff([][]int{{0, 1}}, groups(a, s)); diff != "" {
		t.Error(diff)
	}
	if p := a.GPUs[s.GPUs[3].PCI]; p.State != topology.PeersDown || p.Why == "" {
		t.Errorf("GPU 3: %+v", p)
	}
}

func TestZeroClusterUUIDIsNoCluster(t *testing.T) {
	s := inventorytest.HGXH100()
	for i := range s.GPUs {
		s.GPUs[i].Fabric.ClusterUUID = "00000000-0000-0000-0000-000000000000"
	}
	a, _ := resolve(t, s, topology.Memory{})
	plain, _ := resolve(t, inventorytest.HGXH100(), topology.Memory{})
	if diff := cmp.Diff(plain, a); diff != "" {
		t.Error(diff)
	}
}

func TestStates(t *testing.T) {
	pair := func(change func(*inventory.GPU)) inventory.Snapshot {
		s := inventorytest.HGXH100()
		change(&s.GPUs[0])
		return s
	}
	for name, tc := range map[string]struct {
		snapshot inventory.Snapshot
		want     topology.State
	}{
		"healthy":         {inventorytest.HGXH100(), topology.Joined},
		"no NVLink":       {inventorytest.T4(), topology.NoLinks},
		"no UUID":         {pair(func(g *inventory.GPU) { g.UUID = "" }), topology.NoIdentity},
		"MIG mode":        {pair(func(g *inventory.GPU) { g.MIG.Enabled = true }), topology.MIGMode},
		"MIG mode wanted": {pair(func(g *inventory.GPU) { g.MIG.PendingEnabled = true }), topology.Joined},
		"no active link": {pair(func(g *inventory.GPU) {
			for i := range g.NVLink.Links {
				g.NVLink.Links[i].Active = false
			}
		}), topology.LinksDown},
		"one active link": {pair(func(g *inventory.GPU) {
			for i := range g.NVLink.Links[1:] {
				g.NVLink.Links[i].Active = false
			}
		}), topology.Joined},
		"fabric not started": {pair(func(g *inventory.GPU) { g.Fabric.State = inventory.FabricNotStarted }), topology.FabricPending},
		"fabric in progress": {pair(func(g *inventory.GPU) { g.Fabric.State = inventory.FabricInProgress }), topology.FabricPending},
		"fabric broken":      {pair(func(g *inventory.GPU) { g.Fabric.Healthy = false }), topology.FabricBroken},
		"alone":              {isolated(), topology.Alone},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := resolve(t, tc.snapshot, topology.Memory{})
			p := a.GPUs[tc.snapshot.GPUs[0].PCI]
			if p.State != tc.want || (p.Why == "") != (tc.want == topology.Joined) {
				t.Errorf("state %q (%s), want %q", p.State, p.Why, tc.want)
			}
			// Nobody else is dragged along.
			if tc.want != topology.Joined && tc.want != topology.NoLinks && tc.want != topology.Alone {
				if got := groups(a, tc.snapshot); !cmp.Equal(got, [][]int{{1, 2, 3, 4, 5, 6, 7}}) {
					t.Errorf("the others form %v", got)
				}
			}
		})
	}
}

// isolated is a machine whose first GPU works but reaches nobody.
func isolated() inventory.Snapshot {
	s := inventorytest.HGXH100()
	for _, g := range s.GPUs[1:] {
		s = inventorytest.Unlink(s, s.GPUs[0].PCI, g.PCI)
	}
	return s
}

func TestDoubleUUIDJoinsNothing(t *testing.T) {
	s := inventorytest.HGXH100()
	s.GPUs[5].UUID = s.GPUs[4].UUID
	a, _ := resolve(t, s, topology.Memory{})
	if got := groups(a, s); !cmp.Equal(got, [][]int{{0, 1, 2, 3, 6, 7}}) {
		t.Errorf("domains %v", got)
	}
}

// The truth is NVML's answer about peers; links decide only where there is none.
func TestPeerAnswerBeatsLinks(t *testing.T) {
	noAnswer := func(s inventory.Snapshot, known bool) inventory.Snapshot {
		s = inventorytest.Clone(s)
		for i := range s.GPUs {
			s.GPUs[i].NVLink.Peers, s.GPUs[i].NVLink.PeersKnown = nil, known
		}
		return s
	}
	oneWay := noAnswer(inventorytest.BridgePairs(), false)
	oneWay.GPUs[0].NVLink.Links = slices.Clone(oneWay.GPUs[0].NVLink.Links)
	for i := range oneWay.GPUs[0].NVLink.Links {
		oneWay.GPUs[0].NVLink.Links[i].Remote = inventory.RemoteNPU
	}
	unknownEnd := inventorytest.BridgePairs()
	for i := range unknownEnd.GPUs {
		for j := range unknownEnd.GPUs[i].NVLink.Links {
			unknownEnd.GPUs[i].NVLink.Links[j].Remote = inventory.RemoteUnknown
		}
	}
	pairs := [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}}
	for name, tc := range map[string]struct {
		s    inventory.Snapshot
		want [][]int
	}{
		"links up, peers denied":                {noAnswer(inventorytest.BridgePairs(), true), [][]int{}},
		"links up, peers not answered":          {noAnswer(inventorytest.BridgePairs(), false), pairs},
		"switch, peers denied":                  {noAnswer(inventorytest.DGXA100(), true), [][]int{}},
		"switch, peers not answered":            {noAnswer(inventorytest.DGXA100(), false), [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}},
		"a link that only one end knows":        {oneWay, pairs[1:]},
		"ends unknown, but NVML names the peer": {unknownEnd, pairs},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := resolve(t, tc.s, topology.Memory{})
			if diff := cmp.Diff(tc.want, groups(a, tc.s)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func ExampleResolve() {
	machine := inventorytest.TwoIslands()
	first, memory := topology.Resolve(machine, topology.Memory{})
	lost := machine.GPUs[2].PCI
	later, _ := topology.Resolve(inventorytest.Lose(machine, lost), memory)
	at := pci.Address{Bus: 7}
	fmt.Println(first.GPUs[at].Size, later.GPUs[at].Size, first.GPUs[at].Domain == later.GPUs[at].Domain)
	fmt.Println(len(later.Domains[0].Members), len(later.Domains[0].Live))
	// Output:
	// 4 4 true
	// 4 3
}
