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
	n := rapid.IntRange(0, 10).Draw(t, "GPUs")
	e, well := node(n), map[pci.Address]bool{}
	e.reading.Refused = map[pci.Address]error{}
	for i := range n {
		b, f := &e.reading.Boards[i], &e.functions[i]
		switch rapid.IntRange(0, 9).Draw(t, "illness") {
		case 0:
			b.Err = inventory.ErrLost
		case 1:
			b.UUID = inventory.Unknown[string](inventory.ErrHung)
		case 2:
			b.Minor = inventory.Unknown[int](errors.New("x"))
		case 3:
			*b = inventory.Board{Index: i, Err: inventory.ErrLost, PCI: inventory.Unknown[pci.Address](inventory.ErrLost)}
			e.reading.Refused[bus(i)] = inventory.ErrLost
		case 4:
			b.VGPUHost = inventory.Known(true)
		case 5:
			f.Driver = "vfio-pci"
			*b = inventory.Board{Index: i, PCI: inventory.Unknown[pci.Address](errors.New("x"))}
		case 6:
			b.Serial = inventory.Unknown[string](errors.New("x"))
			well[bus(i)] = true
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
