package inventory_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

func TestSameIgnoresIndexAndErrorTexts(t *testing.T) {
	a, b := node(2).scan(t), node(2).scan(t)
	b.GPUs[0].Index = 5
	a.Problems = []inventory.Problem{{PCI: bus(0), Fact: "serial", Err: errors.New("one")}}
	b.Problems = []inventory.Problem{{PCI: bus(0), Fact: "serial", Err: errors.New("two")}}
	b.Driver.Err = errors.New("x")
	if !a.Same(b) || len(inventory.Diff(a, b)) != 0 {
		t.Errorf("differences: %+v", inventory.Diff(a, b))
	}
}

// Each field that something is published or prepared from makes two snapshots differ.
func TestSameSeesEveryField(t *testing.T) {
	node1 := 1
	for name, change := range map[string]func(*inventory.Snapshot){
		"driver version": func(s *inventory.Snapshot) { s.Driver.Version = "590.1" },
		"driver present": func(s *inventory.Snapshot) { s.Driver.Present = false },
		"missing":        func(s *inventory.Snapshot) { s.Driver.Missing = "x" },
		"minor":          func(s *inventory.Snapshot) { s.GPUs[0].Minor = 6 },
		"UUID":           func(s *inventory.Snapshot) { s.GPUs[0].UUID = "GPU-9" },
		"NUMA node":      func(s *inventory.Snapshot) { s.GPUs[0].NUMANode = &node1 },
		"no ECC":         func(s *inventory.Snapshot) { s.GPUs[0].ECCEnabled = nil },
		"link down":      func(s *inventory.Snapshot) { s.GPUs[0].NVLink.Links[0].Active = false },
		"peer":           func(s *inventory.Snapshot) { s.GPUs[0].NVLink.Peers = nil },
		"fabric":         func(s *inventory.Snapshot) { s.GPUs[0].Fabric.Healthy = false },
		"MIG":            func(s *inventory.Snapshot) { s.GPUs[0].MIG.Enabled = true },
		"one fewer":      func(s *inventory.Snapshot) { s.GPUs = s.GPUs[:1] },
		"unusable": func(s *inventory.Snapshot) {
			s.Unusable = append(s.Unusable, inventory.Unusable{PCI: bus(7), Reason: "x"})
		},
		"excluded": func(s *inventory.Snapshot) { s.Excluded = append(s.Excluded, bus(7)) },
		"problem":  func(s *inventory.Snapshot) { s.Problems = append(s.Problems, inventory.Problem{Fact: "x"}) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := node(2).scan(t), node(2).scan(t)
			change(&b)
			if a.Same(b) || b.Same(a) {
				t.Error("not seen")
			}
		})
	}
}

func TestDiff(t *testing.T) {
	before := node(4).scan(t)
	after := node(5)
	after.reading.Boards[0].Minor = inventory.Known(9)
	after.reading.Boards[0].ECCEnabled = inventory.Unknown[bool](inventory.ErrNotSupported)
	after.reading.Boards[1].Err = fmt.Errorf("nvmlDeviceGetUUID: %w", inventory.ErrLost)
	// The GPU at place 3 was unplugged.
	after.reading.Boards = append(after.reading.Boards[:3:3], after.reading.Boards[4])
	after.functions = append(after.functions[:3:3], after.functions[4])
	for i := range after.reading.Boards {
		// Whoever lost a peer would be reported as changed: not the point here.
		after.reading.Boards[i].Peers.Value = nil
	}
	for i := range before.GPUs {
		before.GPUs[i].NVLink.Peers = nil
	}
	want := []inventory.Change{
		{PCI: bus(0), Kind: inventory.Changed, Detail: "Minor: 7 -> 9, ECCEnabled: true -> none"},
		{PCI: bus(1), Kind: inventory.Failed, Detail: "lost: nvmlDeviceGetUUID: GPU is lost"},
		{PCI: bus(3), Kind: inventory.Left, Detail: "GPU-3"},
		{PCI: bus(4), Kind: inventory.Appeared, Detail: "NVIDIA H100 80GB HBM3"},
	}
	if diff := cmp.Diff(want, inventory.Diff(before, after.scan(t))); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if got := inventory.Diff(after.scan(t), after.scan(t)); got != nil {
		t.Errorf("a lost GPU is reported again: %+v", got)
	}
}

// A GPU that the settings leave to others has not left, and is told once.
func TestDiffOfExclusion(t *testing.T) {
	before, after := node(2), node(2)
	after.reading.Boards, after.reading.Excluded = after.reading.Boards[:1], []pci.Address{bus(1)}
	for _, e := range []*edges{before, after} {
		e.reading.Boards[0].Peers.Value = nil
	}
	want := []inventory.Change{{PCI: bus(1), Kind: inventory.Excluded, Detail: "the settings leave it to others"}}
	if diff := cmp.Diff(want, inventory.Diff(before.scan(t), after.scan(t))); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if got := inventory.Diff(after.scan(t), after.scan(t)); got != nil {
		t.Errorf("it is told again: %+v", got)
	}
}

// What changed is told in a few words, however much a GPU has of it.
func TestDetailOfAChange(t *testing.T) {
	profile := func(name string) inventory.MIGProfile { return inventory.MIGProfile{Name: name} }
	instance := func(start int, ours bool) inventory.MIGInstance {
		return inventory.MIGInstance{Placement: inventory.MIGPlacement{Start: start, Size: 1}, Ours: ours}
	}
	long := strings.Repeat("ä", 300)
	for name, c := range map[string]struct {
		before, after func(*inventory.GPU)
		want          string
	}{
		"a peer is gone": {
			after: func(g *inventory.GPU) { g.NVLink.Peers = g.NVLink.Peers[1:] },
			want:  "NVLink.Peers: 7 -> 6 (-0000:11:00.0)",
		},
		"all peers are gone": {
			after: func(g *inventory.GPU) { g.NVLink.Peers, g.NVLink.PeersKnown = nil, false },
			want:  "NVLink.Peers: 7 -> 0 (-0000:11:00.0 -0000:12:00.0 -0000:13:00.0 and 4 more), NVLink.PeersKnown: true -> false",
		},
		"a link went down": {
			before: func(g *inventory.GPU) { g.NVLink.Links = slices.Repeat(g.NVLink.Links, 18) },
			after: func(g *inventory.GPU) {
				g.NVLink.Links = slices.Repeat(g.NVLink.Links, 18)
				g.NVLink.Links[3] = inventory.Link{}
			},
			want: "NVLink.Links: 18 -> 17 (-3)",
		},
		"a link is slower": {
			after: func(g *inventory.GPU) { g.NVLink.Links = []inventory.Link{{Active: true, BandwidthMBps: 1}} },
			want:  "NVLink.Links: 1 -> 1 (in their values)",
		},
		"fabric": {
			after: func(g *inventory.GPU) { g.Fabric.Healthy, g.Fabric.Reason = false, "route unhealthy" },
			want:  "Fabric.Healthy: true -> false, Fabric.Reason:  -> route unhealthy",
		},
		"MIG": {
			before: func(g *inventory.GPU) {
				g.MIG.Instances = []inventory.MIGInstance{instance(0, true), instance(1, true)}
			},
			after: func(g *inventory.GPU) {
				g.MIG.Enabled, g.MIG.Profiles = true, []inventory.MIGProfile{profile("1g.10gb"), profile("7g.80gb")}
				g.MIG.Instances = []inventory.MIGInstance{instance(1, false), instance(4, true)}
			},
			want: "MIG.Enabled: false -> true, MIG.Profiles: 0 -> 2 (+1g.10gb +7g.80gb), MIG.Instances: 2 -> 2 (-0:1 +4:1)",
		},
		"long values": {
			after: func(g *inventory.GPU) { g.Serial, g.Brand, g.PCIeRoot = long, long, "pci0000:20" },
			want:  "Brand: Nvidia -> " + long[:56] + "…, Serial: 165000 -> " + long[:56] + "…, PCIeRoot: pci0000:10 -> pci0000:20",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := node(8).scan(t), node(8).scan(t)
			if c.before != nil {
				c.before(&a.GPUs[0])
			}
			c.after(&b.GPUs[0])
			want := []inventory.Change{{PCI: bus(0), Kind: inventory.Changed, Detail: c.want}}
			if diff := cmp.Diff(want, inventory.Diff(a, b)); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

// A detail of any length is cut between characters.
func TestALongDetailIsCut(t *testing.T) {
	before, after := node(1).scan(t), node(1)
	after.reading.Boards[0].Err = errors.New(strings.Repeat("ä", 300))
	changes := inventory.Diff(before, after.scan(t))
	if len(changes) != 1 || len(changes[0].Detail) > 200 || len(changes[0].Detail) < 190 ||
		!utf8.ValidString(changes[0].Detail) || !strings.HasSuffix(changes[0].Detail, "ä…") {
		t.Errorf("changes are %+v", changes)
	}
}

func TestDiffSeesWhatSameSees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, _ := harmed(t)
		two, _ := harmed(t)
		a, b := scanIn(t, one), scanIn(t, two)
		changes := inventory.Diff(a, b)
		for _, c := range changes {
			if c.Detail == "" || len(c.Detail) > 200 {
				t.Fatalf("the detail of %s %s has %d bytes: %q", c.PCI, c.Kind, len(c.Detail), c.Detail)
			}
		}
		same := a.Same(b)
		if same && len(changes) != 0 {
			t.Fatalf("equal snapshots differ: %+v", changes)
		}
		if !same && len(changes) == 0 && len(inventory.Diff(b, a)) == 0 && sameProblems(a, b) {
			t.Fatalf("a difference is not told: %s", cmp.Diff(a, b, errorText()))
		}
	})
}

func sameProblems(a, b inventory.Snapshot) bool {
	return cmp.Equal(a.Problems, b.Problems, errorText()) && reflect.DeepEqual(a.Driver, b.Driver)
}

func BenchmarkScan(b *testing.B) {
	for _, n := range []int{8, 16} {
		b.Run(fmt.Sprintf("%d GPUs", n), func(b *testing.B) {
			e := node(n)
			for b.Loop() {
				e.scan(b)
			}
		})
	}
}

func BenchmarkSame(b *testing.B) {
	s, t := node(8).scan(b), node(8).scan(b)
	for b.Loop() {
		if !s.Same(t) {
			b.Fatal("differ")
		}
	}
}
