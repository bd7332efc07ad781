package inventory_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

func TestLinks(t *testing.T) {
	broken := errors.New("Unknown Error")
	peer := pci.Address{Bus: 0x77}
	direct := activeLink(inventory.RemoteGPU, 3)
	direct.Peer = inventory.Known(peer)
	old := direct
	old.Remote = inventory.Unknown[inventory.Remote](inventory.ErrNotSupported)
	unknownEnd := activeLink(inventory.RemoteUnknown, 5)
	brokenEnd := activeLink(inventory.RemoteSwitch, 4)
	brokenEnd.Remote = inventory.Unknown[inventory.Remote](broken)
	brokenVersion := activeLink(inventory.RemoteSwitch, 0)
	brokenVersion.Version = inventory.Unknown[int](broken)
	for name, c := range map[string]struct {
		reading  inventory.LinkReading
		want     inventory.Link
		problems int
	}{
		"to a GPU":             {direct, inventory.Link{Active: true, Remote: inventory.RemoteGPU, Peer: peer, BandwidthMBps: 25000}, 0},
		"to a GPU, old driver": {old, inventory.Link{Active: true, Remote: inventory.RemoteGPU, Peer: peer, BandwidthMBps: 25000}, 0},
		"to a switch":          {activeLink(inventory.RemoteSwitch, 5), inventory.Link{Active: true, Remote: inventory.RemoteSwitch, BandwidthMBps: 50000}, 0},
		"to a CPU":             {activeLink(inventory.RemoteNPU, 2), inventory.Link{Active: true, Remote: inventory.RemoteNPU, BandwidthMBps: 25000}, 0},
		"Pascal":               {activeLink(inventory.RemoteGPU, 1), inventory.Link{Active: true, Remote: inventory.RemoteGPU, BandwidthMBps: 20000}, 0},
		"newer than the table": {activeLink(inventory.RemoteSwitch, 9), inventory.Link{Active: true, Remote: inventory.RemoteSwitch}, 0},
		"end unknown":          {unknownEnd, inventory.Link{Active: true, BandwidthMBps: 50000}, 0},
		"down":                 {inventory.LinkReading{Active: inventory.Known(false)}, inventory.Link{}, 0},
		"state unreadable":     {inventory.LinkReading{Active: inventory.Unknown[bool](broken)}, inventory.Link{}, 1},
		"end unreadable":       {brokenEnd, inventory.Link{Active: true, BandwidthMBps: 25000}, 1},
		"version unreadable":   {brokenVersion, inventory.Link{Active: true, Remote: inventory.RemoteSwitch}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := node(1)
			e.reading.Boards[0].Architecture = inventory.Known("Blackwell")
			e.reading.Boards[0].Links = inventory.Known([]inventory.LinkReading{c.reading})
			got := e.scan(t)
			if diff := cmp.Diff([]inventory.Link{c.want}, got.GPUs[0].NVLink.Links); diff != "" {
				t.Errorf("link (-want +got):\n%s", diff)
			}
			if len(got.Problems) != c.problems || (c.problems == 1 && got.Problems[0].Fact != "nvlink 0") {
				t.Errorf("problems are %+v", got.Problems)
			}
		})
	}
}

func TestHopperHasNoFifthGeneration(t *testing.T) {
	e := node(1)
	e.reading.Boards[0].Links = inventory.Known([]inventory.LinkReading{activeLink(inventory.RemoteSwitch, 5)})
	if got := e.scan(t).GPUs[0].NVLink; got.Version != 4 || got.Links[0].BandwidthMBps != 25000 {
		t.Errorf("NVLink is %+v", got)
	}
}

func TestPeersThatWereAnsweredCountBesideAMissingAnswer(t *testing.T) {
	e := node(3)
	e.reading.Boards[0].Peers = inventory.Fact[[]pci.Address]{
		Value: []pci.Address{bus(2), bus(1), bus(2), bus(0), bus(9)}, Err: errors.New("no answer for one"),
	}
	got := e.scan(t).GPUs[0].NVLink
	if diff := cmp.Diff([]pci.Address{bus(1), bus(2)}, got.Peers); diff != "" || got.PeersKnown {
		t.Errorf("known %v, peers (-want +got):\n%s", got.PeersKnown, diff)
	}
}

func TestFabric(t *testing.T) {
	cluster := [16]byte{0x12, 0x34, 15: 0xff}
	completed := func(mask uint32) inventory.FabricReading {
		return inventory.FabricReading{State: inventory.FabricCompleted, HealthMask: mask}
	}
	for name, c := range map[string]struct {
		reading inventory.FabricReading
		want    inventory.Fabric
	}{
		"not supported": {inventory.FabricReading{}, inventory.Fabric{Healthy: true}},
		"not started":   {inventory.FabricReading{State: inventory.FabricNotStarted}, inventory.Fabric{State: inventory.FabricNotStarted, Healthy: true}},
		"in progress, leftovers ignored": {
			inventory.FabricReading{State: inventory.FabricInProgress, Status: errors.New("x"), ClusterUUID: cluster, CliqueID: 4, HealthMask: 1},
			inventory.Fabric{State: inventory.FabricInProgress, Healthy: true},
		},
		"single node":     {completed(0x1aa), inventory.Fabric{State: inventory.FabricCompleted, Healthy: true}},
		"before the mask": {completed(0), inventory.Fabric{State: inventory.FabricCompleted, Healthy: true}},
		"multi node": {
			inventory.FabricReading{State: inventory.FabricCompleted, ClusterUUID: cluster, CliqueID: 32766, HealthMask: 0x51aa},
			inventory.Fabric{State: inventory.FabricCompleted, Healthy: true, ClusterUUID: "12340000-0000-0000-0000-0000000000ff", CliqueID: 32766},
		},
		"failed": {
			inventory.FabricReading{State: inventory.FabricCompleted, Status: errors.New("Insufficient Resources")},
			inventory.Fabric{State: inventory.FabricCompleted, Reason: "registration ended with Insufficient Resources"},
		},
		"degraded":     {completed(0x1a9), inventory.Fabric{State: inventory.FabricCompleted, Reason: "bandwidth degraded"}},
		"recovering":   {completed(0x1a6), inventory.Fabric{State: inventory.FabricCompleted, Reason: "route recovery in progress"}},
		"route":        {completed(0x19a), inventory.Fabric{State: inventory.FabricCompleted, Reason: "route unhealthy"}},
		"timeout":      {completed(0x16a), inventory.Fabric{State: inventory.FabricCompleted, Reason: "access timeout recovery in progress"}},
		"location":     {completed(0x7aa), inventory.Fabric{State: inventory.FabricCompleted, Reason: "incorrect configuration: invalid location"}},
		"new code":     {completed(0xfaa), inventory.Fabric{State: inventory.FabricCompleted, Reason: "incorrect configuration: code 15"}},
		"no partition": {completed(0x21aa), inventory.Fabric{State: inventory.FabricCompleted, Reason: "no partition assigned"}},
		"two faults":   {completed(0x8199), inventory.Fabric{State: inventory.FabricCompleted, Reason: "bandwidth degraded, route unhealthy, global fabric manager disconnected"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := node(1)
			e.reading.Boards[0].Fabric = inventory.Known(c.reading)
			if diff := cmp.Diff(c.want, e.scan(t).GPUs[0].Fabric); diff != "" {
				t.Errorf("fabric (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAFabricThatCannotBeReadIsNotHealthy(t *testing.T) {
	e := node(1)
	e.reading.Boards[0].Fabric = inventory.Unknown[inventory.FabricReading](errors.New("Unknown Error"))
	want := inventory.Fabric{State: inventory.FabricUnknown, Reason: "Unknown Error"}
	if diff := cmp.Diff(want, e.scan(t).GPUs[0].Fabric); diff != "" {
		t.Errorf("fabric (-want +got):\n%s", diff)
	}
}

// harmed draws a node on which each board is well or ill in some way, and tells how many are well.
func harmed(t *rapid.T) (*edges, map[pci.Address]bool) {
	broken := errors.New("x")
	n := rapid.IntRange(0, 10).Draw(t, "GPUs")
	e, well := node(n), map[pci.Address]bool{}
	e.reading.Refused = map[pci.Address]error{}
	for i := range n {
		b, f := &e.reading.Boards[i], &e.functions[i]
		switch rapid.IntRange(0, 11).Draw(t, "illness") {
		case 0:
			b.Err = inventory.ErrLost
		case 1:
			b.UUID = inventory.Unknown[string](inventory.ErrHung)
		case 2:
			b.Minor = inventory.Unknown[int](broken)
		case 3:
			*b = inventory.Board{Index: i, Err: inventory.ErrLost, PCI: inventory.Unknown[pci.Address](inventory.ErrLost)}
			e.reading.Refused[bus(i)] = inventory.ErrLost
		case 4:
			b.VGPUHost = inventory.Known(true)
		case 5:
			f.Driver = "vfio-pci"
			*b = inventory.Board{Index: i, PCI: inventory.Unknown[pci.Address](broken)}
		case 6:
			b.Serial = inventory.Unknown[string](broken)
			well[bus(i)] = true
		case 7:
			b.VGPUHost = inventory.Unknown[bool](broken)
		case 8:
			b.MIG = inventory.Unknown[inventory.MIG](broken)
		default:
			well[bus(i)] = true
		}
	}
	return e, well
}

// Every GPU of the bus is either usable or unusable with a reason, never both and never lost
// from sight; the order is the bus's; the enumeration's order does not matter.
func TestEveryGPUIsAccountedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, well := harmed(t)
		got := scanIn(t, e)
		places := map[pci.Address]int{}
		last := pci.Address{}
		for _, g := range got.GPUs {
			places[g.PCI]++
			if !well[g.PCI] || g.PCI.Compare(last) <= 0 {
				t.Fatalf("%v is usable after %v, well: %v", g.PCI, last, well[g.PCI])
			}
			last = g.PCI
			for _, p := range g.NVLink.Peers {
				if !well[p] {
					t.Fatalf("%v has the unusable peer %v", g.PCI, p)
				}
			}
		}
		for _, u := range got.Unusable {
			places[u.PCI]++
			if u.Reason == "" || well[u.PCI] {
				t.Fatalf("%v is unusable for %q, well: %v", u.PCI, u.Reason, well[u.PCI])
			}
		}
		for _, f := range e.functions {
			if places[f.PCI] != 1 {
				t.Fatalf("%v is in %d places", f.PCI, places[f.PCI])
			}
		}
		shuffled := *e
		shuffled.reading.Boards = rapid.Permutation(e.reading.Boards).Draw(t, "boards")
		shuffled.functions = rapid.Permutation(e.functions).Draw(t, "functions")
		if again := scanIn(t, &shuffled); !got.Same(again) {
			t.Fatalf("the enumeration's order shows: %s", cmp.Diff(got, again, errorText()))
		}
	})
}

func scanIn(t *rapid.T, e *edges) inventory.Snapshot {
	s, err := inventory.NewScanner(e, e).Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// errorText compares errors by what they say.
func errorText() cmp.Option {
	return cmp.Comparer(func(a, b error) bool {
		return (a == nil) == (b == nil) && (a == nil || strings.EqualFold(a.Error(), b.Error()))
	})
}

// Any facts may be missing in any mix: each costs one problem, and the GPU stays.
func TestEachMissingFactIsOneProblem(t *testing.T) {
	broken := errors.New("Unknown Error")
	rapid.Check(t, func(t *rapid.T) {
		e := node(rapid.IntRange(1, 4).Draw(t, "GPUs"))
		want := 0
		miss := func(name string) error {
			switch rapid.IntRange(0, 3).Draw(t, name) {
			case 0:
				want++
				return broken
			case 1:
				return inventory.ErrNotSupported
			}
			return nil
		}
		for i := range e.reading.Boards {
			b, f := &e.reading.Boards[i], &e.functions[i]
			b.ProductName.Err, b.Brand.Err, b.Architecture.Err = miss("product"), miss("brand"), miss("architecture")
			b.Serial.Err, b.AddressingMode.Err, b.ComputeCapability.Err = miss("serial"), miss("addressing"), miss("capability")
			b.MemoryBytes.Err, b.ECCEnabled.Err = miss("memory"), miss("ECC")
			b.Links.Err, b.Peers.Err, b.Fabric.Err = miss("links"), miss("peers"), miss("fabric")
			f.NUMANode.Err, f.PCIeRoot.Err = miss("NUMA"), miss("root")
		}
		e.reading.DriverVersion.Err, e.reading.CUDA.Err = miss("driver"), miss("CUDA")
		got := scanIn(t, e)
		if len(got.GPUs) != len(e.reading.Boards) || len(got.Problems) != want {
			t.Fatalf("%d GPUs of %d, %d problems, want %d: %+v", len(got.GPUs), len(e.reading.Boards), len(got.Problems), want, got.Problems)
		}
		for _, g := range got.GPUs {
			if g.UUID == "" || g.PCI == (pci.Address{}) {
				t.Fatalf("a GPU lost its identity: %+v", g)
			}
		}
	})
}

// A mask is healthy exactly if no field of it names a fault, and the reason names each.
func TestFabricMaskFieldByField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var mask uint32
		var want []string
		field := func(name string, shift, width int, faults map[uint32]string) {
			v := rapid.Uint32Range(0, 1<<width-1).Draw(t, name)
			mask |= v << shift
			if fault, ok := faults[v]; ok {
				want = append(want, fault)
			}
		}
		field("bandwidth", 0, 2, map[uint32]string{1: "bandwidth degraded"})
		field("recovery", 2, 2, map[uint32]string{1: "route recovery"})
		field("route", 4, 2, map[uint32]string{1: "route unhealthy"})
		field("timeout", 6, 2, map[uint32]string{1: "access timeout"})
		field("configuration", 8, 4, map[uint32]string{
			2: "system GUID", 3: "chassis serial number", 4: "incorrect configuration: no partition", 5: "insufficient NVLinks",
			6: "firmware", 7: "location", 8: "GPU state", 9: "code 9", 10: "code 10", 11: "code 11", 12: "code 12", 13: "code 13",
			14: "code 14", 15: "code 15",
		})
		field("partition", 12, 2, map[uint32]string{2: "no partition assigned"})
		field("manager", 14, 2, map[uint32]string{2: "manager disconnected"})
		e := node(1)
		e.reading.Boards[0].Fabric = inventory.Known(inventory.FabricReading{State: inventory.FabricCompleted, HealthMask: mask})
		got := scanIn(t, e).GPUs[0].Fabric
		if got.Healthy != (len(want) == 0) || len(want) > 0 && strings.Count(got.Reason, ", ") != len(want)-1 {
			t.Fatalf("mask %#x is %+v, want %v", mask, got, want)
		}
		for _, fault := range want {
			if !strings.Contains(got.Reason, fault) {
				t.Fatalf("%q does not say %q", got.Reason, fault)
			}
		}
	})
}
