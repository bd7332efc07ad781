package slices_test

import (
	"encoding/json"
	"fmt"
	stdslices "slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/topology"
)

// input is the pool of a machine that was healthy once and is in a state now.
func input(machine, now inventory.Snapshot, options ...device.Option) slices.Input {
	_, memory := topology.Resolve(machine, topology.Memory{})
	a, _ := topology.Resolve(now, memory)
	return slices.Input{Devices: device.FromSnapshot(now, a, options...), Topology: a, Vocabulary: device.VocabularyFull}
}

func healthy(s inventory.Snapshot) slices.Input { return input(s, s) }

// numbers gives the published order as GPU numbers of the machine.
func numbers(r slices.Result, machine inventory.Snapshot) (out []int) {
	for _, s := range r.Slices {
		for _, d := range s.Devices {
			out = append(out, stdslices.IndexFunc(machine.GPUs, func(g inventory.GPU) bool { return device.GPUName(g.PCI) == d.Name }))
		}
	}
	return out
}

func at(s inventory.Snapshot, i int) pci.Address { return s.GPUs[i].PCI }

func TestOrder(t *testing.T) {
	islands, mixed, cube := inventorytest.TwoIslands(), inventorytest.Mixed(), inventorytest.CubeMesh()
	for name, tc := range map[string]struct {
		machine, now inventory.Snapshot
		want         []int
	}{
		"healthy islands":             {islands, islands, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		"broken island first":         {islands, inventorytest.Lose(islands, at(islands, 6)), []int{4, 5, 7, 0, 1, 2, 3}},
		"first island broken":         {islands, inventorytest.Lose(islands, at(islands, 0)), []int{1, 2, 3, 4, 5, 6, 7}},
		"cut off member first":        {islands, cutOff(islands, 2), []int{2, 0, 1, 3, 4, 5, 6, 7}},
		"boards without NVLink first": {mixed, mixed, []int{2, 3, 0, 1}},
		"cube mesh":                   {cube, cube, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		"switch, one lost":            {inventorytest.HGXH100(), inventorytest.Lose(inventorytest.HGXH100(), at(islands, 3)), []int{0, 1, 2, 4, 5, 6, 7}},
		"interleaved islands":         {interleaved(), interleaved(), []int{0, 2, 4, 6, 1, 3, 5, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			r := slices.Build(input(tc.machine, tc.now))
			if diff := cmp.Diff(tc.want, numbers(r, tc.machine)); diff != "" || len(r.Omissions) > 0 {
				t.Errorf("order (-want +got), omissions %v:\n%s", r.Omissions, diff)
			}
		})
	}
}

// cutOff takes all links of one GPU down.
func cutOff(s inventory.Snapshot, i int) inventory.Snapshot {
	s = inventorytest.Clone(s)
	for j := range s.GPUs {
		if j != i {
			s = inventorytest.Unlink(s, at(s, i), at(s, j))
		}
	}
	return s
}

// interleaved is two islands whose members take turns on the bus.
func interleaved() inventory.Snapshot {
	wires := make([][]int, 8)
	for i := range wires {
		wires[i] = make([]int, 8)
		for j := range wires[i] {
			if i != j && i%2 == j%2 {
				wires[i][j] = 4
			}
		}
	}
	return inventorytest.New().Add(inventorytest.Board{LinkVersion: 3, LinkMBps: 25000}, 8).Wire(0, wires).Snapshot
}

func TestOrderOfAddresses(t *testing.T) {
	s := inventorytest.Mixed()
	a, _ := topology.Resolve(s, topology.Memory{})
	got := slices.Order([]pci.Address{at(s, 0), at(s, 3), at(s, 1), at(s, 2)}, a)
	if diff := cmp.Diff([]pci.Address{at(s, 2), at(s, 3), at(s, 0), at(s, 1)}, got); diff != "" {
		t.Error(diff)
	}
}

func render(t testing.TB, r slices.Result) string {
	t.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Identical state gives identical bytes, however the hardware was enumerated.
func TestIdenticalStateGivesIdenticalBytes(t *testing.T) {
	machines := inventorytest.All()
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom(stdslices.Sorted(mapsKeys(machines))).Draw(rt, "machine")
		s := machines[name]
		in, shuffled := healthy(s), inventorytest.Clone(s)
		shuffled.GPUs = rapid.Permutation(shuffled.GPUs).Draw(rt, "order")
		other := healthy(shuffled)
		taints := []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: "NoSchedule"}, {Key: "gpu.nvidia.com/unmonitored", Effect: "None"}}
		dev := in.Devices[0].Name()
		in.Taints = map[string][]resourceapi.DeviceTaint{dev: taints}
		other.Taints = map[string][]resourceapi.DeviceTaint{dev: {taints[1], taints[0]}}
		if diff := cmp.Diff(render(t, slices.Build(in)), render(t, slices.Build(other))); diff != "" {
			rt.Fatalf("%s:\n%s", name, diff)
		}
	})
}

func mapsKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestEmptyPoolHasOneSlice(t *testing.T) {
	r := slices.Build(slices.Input{})
	want := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node-1": {Slices: []resourceslice.Slice{{}}}}}
	if diff := cmp.Diff(want, r.Resources("node-1")); diff != "" || r.Count() != 0 {
		t.Errorf("%d devices:\n%s", r.Count(), diff)
	}
}

// board is a device of a GPU in the shape that partitions will have.
type board struct {
	gpu       pci.Address
	name      string
	published resourceapi.Device
	omitted   []device.Omission
}

func (b board) Name() string              { return b.name }
func (b board) Kind() device.Kind         { return device.KindMIG }
func (b board) Identity() device.Identity { return device.Identity{PCI: b.gpu, Partition: b.name} }
func (b board) Overlaps(device.Identity) bool {
	return false
}

func (b board) Publish(device.Vocabulary) (resourceapi.Device, []device.Omission) {
	d := b.published
	d.Name = b.name
	return d, b.omitted
}

// boards makes devices of GPUs with the given numbers of devices.
func boards(counts ...int) []device.Device {
	var out []device.Device
	for i, n := range counts {
		for j := range n {
			out = append(out, board{gpu: pci.Address{Bus: uint8(i)}, name: fmt.Sprintf("gpu-%02d-mig-%02d", i, j)})
		}
	}
	return out
}

// shape gives the numbers of devices of each slice.
func shape(r slices.Result) (out []int) {
	for _, s := range r.Slices {
		out = append(out, len(s.Devices))
	}
	return out
}

func TestLayout(t *testing.T) {
	ones := func(n int) []int { return stdslices.Repeat([]int{1}, n) }
	for name, tc := range map[string]struct{ counts, want []int }{
		"one":                               {ones(1), []int{1}},
		"64":                                {ones(64), []int{64}},
		"65":                                {ones(65), []int{64, 1}},
		"partitions have their own":         {[]int{19, 19}, []int{19, 19}},
		"neighbours share, partitions part": {[]int{1, 1, 19, 1}, []int{2, 19, 1}},
		"more than a slice holds":           {[]int{130}, []int{64, 64, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, shape(slices.Build(slices.Input{Devices: boards(tc.counts...)}))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOwnLayout(t *testing.T) {
	layout := func(groups []slices.Group, _ []resourceapi.CounterSet) (out []resourceslice.Slice) {
		for _, g := range groups {
			out = append(out, resourceslice.Slice{Devices: g.Devices})
		}
		return out
	}
	r := slices.Build(slices.Input{Devices: boards(1, 1, 2), Layout: layout})
	if diff := cmp.Diff([]int{1, 1, 2}, shape(r)); diff != "" || r.Count() != 4 {
		t.Errorf("%d devices:\n%s", r.Count(), diff)
	}
}

// A fault of one partition changes one slice.
func TestOneFaultChangesOneSlice(t *testing.T) {
	in := slices.Input{Devices: boards(stdslices.Repeat([]int{7}, 16)...)}
	before := slices.Build(in)
	in.Taints = map[string][]resourceapi.DeviceTaint{"gpu-09-mig-03": {{Key: "gpu.nvidia.com/xid", Value: "94", Effect: "NoSchedule"}}}
	after := slices.Build(in)
	changed := 0
	for i := range after.Slices {
		if !cmp.Equal(before.Slices[i], after.Slices[i]) {
			changed++
		}
	}
	if changed != 1 || len(after.Slices) != 16 {
		t.Errorf("%d of %d slices changed", changed, len(after.Slices))
	}
}

func TestOmissionsOfDevicesAreReported(t *testing.T) {
	s := inventorytest.T4()
	s.Driver.Version = "custom"
	r := slices.Build(healthy(s))
	if len(r.Omissions) != 4 || r.Omissions[0].Name != "driverVersion" || r.Count() != 4 {
		t.Errorf("omissions %v", r.Omissions)
	}
}

// The API allows 32 attributes and capacities a device. Every machine with everything switched
// on leaves two free beside those that sharing will take (sharingEnforcement and shares).
func TestEveryMachineLeavesRoom(t *testing.T) {
	for name, s := range inventorytest.All() {
		for _, published := range slices.Build(input(s, s, device.WithLists())).Slices {
			for _, d := range published.Devices {
				if n := len(d.Attributes) + len(d.Capacity); n == 0 || n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice-4 {
					t.Errorf("%s: %s has %d attributes and capacities", name, d.Name, n)
				}
			}
		}
	}
}
