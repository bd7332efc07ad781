package inventory_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
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
		"problem": func(s *inventory.Snapshot) { s.Problems = append(s.Problems, inventory.Problem{Fact: "x"}) },
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

func TestDiffSeesWhatSameSees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, _ := harmed(t)
		two, _ := harmed(t)
		a, b := scanIn(t, one), scanIn(t, two)
		changes := inventory.Diff(a, b)
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
