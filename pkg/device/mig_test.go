package device_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

func partitioned(s inventory.Snapshot, options ...device.Option) device.Partitioned {
	a, _ := topology.Resolve(s, topology.Memory{})
	return device.FromPartitionedSnapshot(s, a, nil, options...)
}

// node is a machine of one GPU of a preset, as it is or after a change.
func node(t testing.TB, preset string, changes ...func(inventory.GPU) inventory.GPU) inventory.Snapshot {
	t.Helper()
	s := migtest.Snapshot(t, preset)
	s.GPUs = s.GPUs[:1]
	for _, change := range changes {
		s.GPUs[0] = change(s.GPUs[0])
	}
	return s
}

// with adds an instance, on switches the mode on as somebody else does.
func with(t testing.TB, ours bool, name string) func(inventory.GPU) inventory.GPU {
	return func(g inventory.GPU) inventory.GPU { return migtest.With(t, g, ours, name) }
}

func on(g inventory.GPU) inventory.GPU {
	g.MIG.Enabled, g.MIG.PendingEnabled = true, true
	return g
}

func oursOn(g inventory.GPU) inventory.GPU {
	g = on(g)
	g.MIG.Ours = true
	return g
}

// labels are the names of devices without their GPU's.
func labels(p device.Partitioned) []string {
	var out []string
	for _, d := range p.Devices {
		name := strings.TrimPrefix(d.Name(), device.GPUName(d.Identity().PCI))
		name = strings.TrimPrefix(name, "-mig-")
		if name == "" {
			name = "whole"
		}
		if m, ok := d.(device.MIG); ok && m.Static() {
			name += " static"
		}
		out = append(out, name)
	}
	return out
}

// Which devices a GPU has, by board, mode and who made what is on it.
func TestDevicesOfAPartitionedGPU(t *testing.T) {
	all := []string{
		"1g-10gb-6", "1g-10gb-5", "1g-10gb-4", "1g-10gb-3", "1g-10gb-2", "1g-10gb-1", "1g-10gb-0",
		"1g-10gb-with-me-6", "1g-10gb-with-me-5", "1g-10gb-with-me-4", "1g-10gb-with-me-3", "1g-10gb-with-me-2", "1g-10gb-with-me-1", "1g-10gb-with-me-0",
		"1g-20gb-6", "1g-20gb-4", "1g-20gb-2", "1g-20gb-0", "2g-20gb-4", "2g-20gb-2", "2g-20gb-0", "3g-40gb-4", "3g-40gb-0", "4g-40gb-0", "7g-80gb-0",
	}
	whole := append(slices.Clone(all), "whole")
	beside := func(static string, gone ...string) []string {
		kept := slices.DeleteFunc(slices.Clone(all), func(n string) bool {
			return slices.ContainsFunc(gone, func(g string) bool { return strings.HasSuffix(n, g) })
		})
		return append([]string{static + " static"}, kept...)
	}
	for name, c := range map[string]struct {
		snapshot inventory.Snapshot
		want     []string
		sets     int
	}{
		"mode off":                        {node(t, "hgx-h100-8"), whole, 1},
		"switched on by us":               {node(t, "hgx-h100-8", oursOn), whole, 1},
		"switched on by others":           {node(t, "hgx-h100-8", on), all, 1},
		"an instance of ours":             {node(t, "hgx-h100-8", oursOn, with(t, true, "1g.10gb:3")), whole, 1},
		"mode of others, instance ours":   {node(t, "hgx-h100-8", with(t, true, "1g.10gb:3")), all, 1},
		"a large instance of others":      {node(t, "hgx-h100-8", oursOn, with(t, false, "3g.40gb:4")), beside("3g-40gb-4", "-4", "-5", "-6", "7g-80gb-0"), 1},
		"the media engines are taken":     {node(t, "hgx-h100-8", with(t, false, "1g.10gb+me:6")), beside("1g-10gb-with-me-6", "-6", "-with-me-0", "-with-me-1", "-with-me-2", "-with-me-3", "-with-me-4", "-with-me-5", "3g-40gb-4", "7g-80gb-0"), 1},
		"Ampere, off":                     {node(t, "dgx-a100-80"), []string{"whole"}, 0},
		"Ampere, on":                      {node(t, "dgx-a100-80", on), all, 1},
		"no partitions":                   {node(t, "l40s-8"), []string{"whole"}, 0},
		"on, but nothing is known":        {node(t, "hgx-h100-8", on, func(g inventory.GPU) inventory.GPU { g.MIG.Profiles = nil; return g }), nil, 0},
		"off, and nothing is known":       {node(t, "hgx-h100-8", func(g inventory.GPU) inventory.GPU { g.MIG.Profiles = nil; return g }), []string{"whole"}, 0},
		"four slices, the whole is taken": {node(t, "a30-4", with(t, false, "4g.24gb:0")), []string{"4g-24gb-0 static"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := partitioned(c.snapshot)
			if diff := cmp.Diff(c.want, labels(got)); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if len(got.Counters) != c.sets || len(got.Omissions) != 0 {
				t.Errorf("%d counter sets, omissions %v", len(got.Counters), got.Omissions)
			}
		})
	}
}

// What this driver makes and removes changes nothing that is published.
func TestOwnInstancesChangeNoDevice(t *testing.T) {
	published := func(s inventory.Snapshot) []resourceapi.Device {
		var out []resourceapi.Device
		for _, d := range partitioned(s).Devices {
			p, _ := d.Publish(device.VocabularyFull)
			out = append(out, p)
		}
		return out
	}
	before := published(node(t, "hgx-h100-8", oursOn))
	after := published(node(t, "hgx-h100-8", oursOn, with(t, true, "1g.10gb:3"), with(t, true, "3g.40gb:4")))
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("published (-before +after):\n%s", diff)
	}
}

// Instances of others that cannot be devices keep their place all the same.
func TestOddInstances(t *testing.T) {
	for name, spoil := range map[string]func(*inventory.MIGInstance){
		"no compute instance":         func(i *inventory.MIGInstance) { i.Compute = nil },
		"several compute instances":   func(i *inventory.MIGInstance) { i.Compute = append(i.Compute, i.Compute[0]) },
		"a partial compute instance":  func(i *inventory.MIGInstance) { i.Compute[0].Slices = 2 },
		"a profile that nobody knows": func(i *inventory.MIGInstance) { i.ProfileID = 999 },
	} {
		s := node(t, "hgx-h100-8", with(t, false, "3g.40gb:4"))
		spoil(&s.GPUs[0].MIG.Instances[0])
		got := partitioned(s)
		if len(got.Omissions) != 1 || got.Omissions[0].Device != got.Devices[0].Name()[:16] || got.Omissions[0].Reason == "" {
			t.Errorf("%s: omissions %+v", name, got.Omissions)
		}
		for _, d := range got.Devices {
			at := d.(device.MIG).Partition().Placement
			if at.End() > 4 || d.(device.MIG).Instance() != nil {
				t.Errorf("%s: %s is a device", name, d.Name())
			}
		}
	}
	s := node(t, "hgx-h100-8", with(t, false, "3g.40gb:4"))
	s.GPUs[0].MIG.Instances[0].Compute[0].Slices = 0
	if got := partitioned(s); len(got.Omissions) != 0 {
		t.Errorf("a compute instance of unknown size: %v", got.Omissions)
	}
}

func exampleMIG(t testing.TB, options ...device.Option) resourceapi.Device {
	t.Helper()
	s := inventorytest.GB200Tray()
	g := &s.GPUs[0]
	g.UUID, g.ProductName, g.Architecture = "GPU-8f6d2b1c-0a7e-4c55-9d3f-6f1e2a3b4c5d", "NVIDIA H100 80GB HBM3", "Hopper"
	g.PCIeRoot, g.ComputeMajor, g.PCI = "pci0000:16", 9, pci.Address{Bus: 0x1a}
	g.MIG = migtest.Snapshot(t, "hgx-h100-8").GPUs[0].MIG
	*g = migtest.With(t, *g, false, "1g.10gb:4")
	d, omitted := partitioned(s, options...).Devices[0].Publish(device.VocabularyFull)
	if len(omitted) > 0 || d.Name != "gpu-0000-1a-00-0-mig-1g-10gb-4" {
		t.Fatalf("device %s, omissions %v", d.Name, omitted)
	}
	return d
}

func TestPublishMIG(t *testing.T) {
	want := map[string]string{
		"type": `{"string":"mig"}`, "uuid": `{"string":"MIG-1g.10gb-4"}`, "parentUUID": `{"string":"GPU-8f6d2b1c-0a7e-4c55-9d3f-6f1e2a3b4c5d"}`,
		"profile": `{"string":"1g.10gb"}`, "productName": `{"string":"NVIDIA H100 80GB HBM3"}`, "brand": `{"string":"Nvidia"}`,
		"architecture": `{"string":"Hopper"}`, "cudaComputeCapability": `{"version":"9.0.0"}`, "driverVersion": `{"version":"580.95.5"}`,
		"cudaDriverVersion": `{"version":"13.0.0"}`, "addressingMode": `{"string":"ATS"}`, "migPlacementStart": `{"int":4}`, "migPlacementSize": `{"int":1}`,
		"resource.kubernetes.io/pciBusID": `{"string":"0000:1a:00.0"}`, "resource.kubernetes.io/pcieRoot": `{"string":"pci0000:16"}`,
		"resource.kubernetes.io/numaNode": `{"int":0}`,
		"memory":                          "9984Mi", "multiprocessors": "16", "copyEngines": "1", "decoders": "1", "encoders": "0", "jpegEngines": "1", "ofaEngines": "0",
	}
	d := exampleMIG(t)
	if diff := cmp.Diff(want, show(d)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	var used []string
	for name, c := range d.ConsumesCounters[0].Counters {
		used = append(used, fmt.Sprintf("%s=%s", name, c.Value.String()))
	}
	slices.Sort(used)
	if diff := cmp.Diff([]string{"memory-slice-4=1"}, used); diff != "" {
		t.Errorf("consumed (-want +got):\n%s", diff)
	}
	s := node(t, "hgx-h100-8", oursOn, with(t, true, "1g.10gb:4"))
	minimal, _ := partitioned(s).Devices[2].Publish(device.VocabularyMinimal)
	shown := show(minimal)
	if _, hasUUID := shown["uuid"]; hasUUID || len(shown) != 6 || len(minimal.ConsumesCounters) != 1 {
		t.Errorf("one of ours in the minimal vocabulary: %v", shown)
	}
}

// A partition leaves room for what other features add, on the board with the most slices too.
func TestWorstCaseOfMIGLeavesRoom(t *testing.T) {
	d := exampleMIG(t, device.WithLists())
	const sharing, free = 2, 2
	if n := len(d.Attributes) + len(d.Capacity) + sharing + free; n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%d attributes and capacities with room to spare", n)
	}
	for _, preset := range migtest.Presets() {
		for _, set := range partitioned(migtest.Snapshot(t, preset)).Counters {
			if len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
				t.Errorf("%s: %d counters", preset, len(set.Counters))
			}
		}
	}
}

func TestMIG(t *testing.T) {
	s := node(t, "hgx-h100-8", oursOn, with(t, true, "1g.10gb:4"))
	all := partitioned(s).Devices
	m := all[2].(device.MIG)
	want := device.Identity{PCI: s.GPUs[0].PCI, GPUUUID: s.GPUs[0].UUID, Partition: "1g.10gb:4+1"}
	if m.Identity() != want || m.Kind() != device.KindMIG || m.Parent().UUID != s.GPUs[0].UUID || m.Static() ||
		m.Name() != device.MIGName(want.PCI, m.Partition()) || m.Instance() == nil || m.Instance().ID != 11 {
		t.Errorf("got %+v", m)
	}
	for partition, overlaps := range map[string]bool{"": true, "1g.10gb:4+1": true, "1g.10gb:5+1": false, "3g.40gb:4+4": true, "4g.40gb:0+4": false, "nonsense": true} {
		if got := m.Overlaps(device.Identity{PCI: want.PCI, Partition: partition}); got != overlaps {
			t.Errorf("overlaps with %q: %t", partition, got)
		}
	}
	if m.Overlaps(device.Identity{PCI: pci.Address{Bus: 0xff}, Partition: want.Partition}) {
		t.Error("it overlaps with a partition of another GPU")
	}
}

// Overlapping is symmetric, and two devices of a GPU that both fit by their counters never
// overlap.
func TestOverlapsAgreesWithCounters(t *testing.T) {
	presets := map[string]inventory.Snapshot{}
	for _, name := range migtest.Presets() {
		presets[name] = migtest.Snapshot(t, name)
	}
	rapid.Check(t, func(t *rapid.T) {
		s := presets[rapid.SampledFrom(migtest.Presets()).Draw(t, "preset")]
		all := partitioned(s).Devices
		a, b := rapid.SampledFrom(all).Draw(t, "a"), rapid.SampledFrom(all).Draw(t, "b")
		if a.Overlaps(b.Identity()) != b.Overlaps(a.Identity()) {
			t.Fatalf("%s and %s overlap in one direction", a.Name(), b.Name())
		}
		if a.Identity().PCI != b.Identity().PCI {
			return
		}
		x, okX := a.(device.MIG)
		y, okY := b.(device.MIG)
		if !okX || !okY {
			return
		}
		g, _ := mig.NewGeometry(x.Parent())
		if g.Fits(x.Partition(), []mig.Partition{y.Partition()}) && a.Overlaps(b.Identity()) {
			t.Fatalf("%s and %s overlap and fit", a.Name(), b.Name())
		}
	})
}

func BenchmarkPartitioned(b *testing.B) {
	s := migtest.Snapshot(b, "hgx-h100-16")
	for b.Loop() {
		for _, d := range partitioned(s).Devices {
			d.Publish(device.VocabularyFull)
		}
	}
}

// Claims that come and go on one GPU move no GPU to another place, and the whole GPU keeps its
// NVLink domain, though NVML sees no NVLink on it meanwhile.
func TestOwnModesDisturbNoDomain(t *testing.T) {
	for name, healthy := range map[string]inventory.Snapshot{"node": inventorytest.HGXH100(), "fabric of nodes": inventorytest.GB200Tray(), "pairs": inventorytest.TwoIslands()} {
		for i := range healthy.GPUs {
			healthy.GPUs[i].ComputeMajor = 9
			healthy.GPUs[i].MIG = migtest.Snapshot(t, "hgx-h100-8").GPUs[0].MIG
		}
		before, memory := topology.Resolve(healthy, topology.Memory{})
		for _, count := range []int{1, len(healthy.GPUs)} {
			cut := healthy
			for _, g := range healthy.GPUs[:count] {
				cut = inventorytest.MIG(cut, g.PCI)
			}
			for i := range cut.GPUs[:count] {
				cut.GPUs[i].MIG.Ours = true
				cut.GPUs[i].MIG.Profiles = healthy.GPUs[i].MIG.Profiles
			}
			a, _ := topology.Resolve(cut, memory)
			got := device.FromPartitionedSnapshot(cut, a, nil)
			for at, p := range before.GPUs {
				if q := got.Topology.GPUs[at]; q.Domain != p.Domain || q.Size != p.Size {
					t.Errorf("%s, %d cut: GPU %s is in domain %q of %d, not %q of %d", name, count, at, q.Domain, q.Size, p.Domain, p.Size)
				}
			}
			for i, d := range before.Domains {
				if diff := cmp.Diff(d.Live, got.Topology.Domains[i].Live); diff != "" {
					t.Errorf("%s, %d cut: live members (-before +now):\n%s", name, count, diff)
				}
			}
			// A mode of somebody else is there to stay.
			for i := range cut.GPUs {
				cut.GPUs[i].MIG.Ours = false
			}
			if got := device.FromPartitionedSnapshot(cut, a, nil); got.Topology.GPUs[cut.GPUs[0].PCI].Domain != "" {
				t.Errorf("%s: a GPU in somebody's MIG mode is in a domain", name)
			}
		}
	}
}
