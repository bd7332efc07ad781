package allocation_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/pkg/topology"
	"github.com/gpu-dra/driver/test/bench/allocation"
)

func pool(s inventory.Snapshot) []resourceslice.Slice {
	a, _ := topology.Resolve(s, topology.Memory{})
	devices := device.FromSnapshot(s, a)
	return slices.Build(slices.Input{Devices: devices, Topology: a, Vocabulary: device.VocabularyFull}).Slices
}

func machines() map[string]inventory.Snapshot {
	return map[string]inventory.Snapshot{
		"HGX H100": inventorytest.HGXH100(), "two islands": inventorytest.TwoIslands(), "bridge pairs": inventorytest.BridgePairs(),
		"cube mesh": inventorytest.CubeMesh(), "T4": inventorytest.T4(), "GB200 tray": inventorytest.GB200Tray(),
	}
}

// Each case has the answer that it expects, on each kind of machine.
func TestCases(t *testing.T) {
	for name, machine := range machines() {
		t.Run(name, func(t *testing.T) {
			p := pool(machine)
			for _, c := range allocation.Cases(p) {
				if err := c.Ask(p)(t.Context()); err != nil {
					t.Error(err)
				}
				c.Fits = !c.Fits
				if err := c.Ask(p)(t.Context()); err == nil {
					t.Errorf("%s: the opposite answer is taken as well", c.Name)
				}
			}
		})
	}
}

func TestCasesByMachine(t *testing.T) {
	counts := func(s inventory.Snapshot) (out []int) {
		for _, c := range allocation.Cases(pool(s)) {
			out = append(out, c.Count)
		}
		return out
	}
	if diff := cmp.Diff([]int{1, 8, 8, 9, 4, 4}, counts(inventorytest.TwoIslands())); diff != "" {
		t.Errorf("GPUs asked for on two islands (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{1, 4, 4, 5}, counts(inventorytest.T4())); diff != "" {
		t.Errorf("GPUs asked for without NVLink (-want +got):\n%s", diff)
	}
}

func TestTime(t *testing.T) {
	p := pool(inventorytest.T4())
	series, err := allocation.Cases(p)[0].Time(t.Context(), p, 3)
	if err != nil || len(series) < 3 {
		t.Errorf("%d runs, %v; want at least 3", len(series), err)
	}
}

// What was published is what is asked about.
func TestPool(t *testing.T) {
	want := pool(inventorytest.T4())
	var objects []resourceapi.ResourceSlice
	for _, o := range slicestest.Objects(want) {
		objects = append(objects, *o)
	}
	if diff := cmp.Diff(want, allocation.Pool(objects)); diff != "" {
		t.Errorf("pool (-want +got):\n%s", diff)
	}
}

func BenchmarkAllocate(b *testing.B) {
	for name, machine := range machines() {
		p := pool(machine)
		for _, c := range allocation.Cases(p) {
			b.Run(name+"/"+c.Name, func(b *testing.B) {
				ask := c.Ask(p)
				for b.Loop() {
					if err := ask(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
