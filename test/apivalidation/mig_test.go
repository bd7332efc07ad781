package apivalidation

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	gpuslices "github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/pkg/topology"
)

// partitioned is the input of a node that makes partitions.
func partitioned(s inventory.Snapshot, vocabulary device.Vocabulary, options ...device.Option) gpuslices.Input {
	a, _ := topology.Resolve(s, topology.Memory{})
	p := device.FromPartitionedSnapshot(s, a, nil, options...)
	return gpuslices.Input{Devices: p.Devices, Counters: p.Counters, Topology: p.Topology, Vocabulary: vocabulary}
}

// machines are nodes of every board that can be partitioned, the largest with 16 GPUs.
func machines(t *testing.T) map[string]inventory.Snapshot {
	t.Helper()
	all := map[string]inventory.Snapshot{}
	for _, preset := range migtest.Presets() {
		off := migtest.Snapshot(t, preset)
		all[preset] = off
		on := migtest.Snapshot(t, preset)
		for i := range on.GPUs {
			on.GPUs[i].MIG.Enabled = on.GPUs[i].MIG.Capable
		}
		all[preset+", mode on"] = on
	}
	// The board with the most devices, sixteen times, beside one that cannot be partitioned.
	pro, sixteen := migtest.Snapshot(t, "rtx-pro-6000-8"), inventory.Snapshot{}
	for i := range 16 {
		g := pro.GPUs[0]
		g.PCI, g.UUID = pci.Address{Bus: uint8(i)}, fmt.Sprintf("GPU-%d", i)
		sixteen.GPUs = append(sixteen.GPUs, g)
	}
	plain := migtest.Snapshot(t, "l40s-8").GPUs[0]
	plain.PCI = pci.Address{Bus: 0x80}
	sixteen.GPUs = append(sixteen.GPUs, plain)
	all["sixteen of twelve slices"] = sixteen
	// Instances of others on a GPU.
	mixed := migtest.Snapshot(t, "hgx-h100-8")
	mixed.GPUs[3] = migtest.With(t, mixed.GPUs[3], false, "3g.40gb:4")
	mixed.GPUs[5] = migtest.With(t, mixed.GPUs[5], false, "1g.10gb+me:0")
	all["instances of others"] = mixed
	return all
}

// Pools with partitions are valid, whole, and so small a slice that a taint on every device does
// not change that.
func TestPartitionedMachines(t *testing.T) {
	taint := []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoExecute}}
	for name, s := range machines(t) {
		for _, vocabulary := range []device.Vocabulary{device.VocabularyFull, device.VocabularyMinimal} {
			t.Run(fmt.Sprintf("%s/%s", name, vocabulary), func(t *testing.T) {
				in := partitioned(s, vocabulary, device.WithLists())
				in.Taints = map[string][]resourceapi.DeviceTaint{}
				for _, d := range in.Devices {
					in.Taints[d.Name()] = taint
				}
				r := gpuslices.Build(in)
				if errs := validate(t, r); len(errs) > 0 || len(r.Omissions) > 0 || r.Count() != len(in.Devices) {
					t.Errorf("%d of %d devices, omissions %v, errors %v", r.Count(), len(in.Devices), r.Omissions, errs)
				}
				sets := 0
				for _, slice := range r.Slices {
					sets += len(slice.SharedCounters)
				}
				if sets != len(in.Counters) {
					t.Errorf("%d of %d counter sets", sets, len(in.Counters))
				}
			})
		}
	}
}

// Each GPU's devices are in one slice of their own, so that what happens to it rewrites one.
func TestOneSliceForEachGPU(t *testing.T) {
	s := migtest.Snapshot(t, "hgx-h100-16")
	before := gpuslices.Build(partitioned(s, device.VocabularyFull))
	if n := len(before.Slices); n != 2+16 {
		t.Errorf("%d slices", n)
	}
	s.GPUs[7] = migtest.With(t, s.GPUs[7], false, "1g.10gb:0")
	after := gpuslices.Build(partitioned(s, device.VocabularyFull))
	changed := 0
	for i, object := range slicestest.Objects(after.Slices) {
		old, err := json.Marshal(slicestest.Objects(before.Slices)[i])
		if err != nil {
			t.Fatal(err)
		}
		now, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(old, now) {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("an instance on one GPU changes %d slices", changed)
	}
}

// The bytes of a node's pool stay within what is bearable: the vocabulary "full" for eight H100
// at most 213 KiB of JSON, "minimal" at most 120 KiB.
func TestBytes(t *testing.T) {
	for vocabulary, most := range map[device.Vocabulary]int{device.VocabularyFull: 213 << 10, device.VocabularyMinimal: 120 << 10} {
		r := gpuslices.Build(partitioned(migtest.Snapshot(t, "hgx-h100-8"), vocabulary))
		bytes := 0
		for _, object := range slicestest.Objects(r.Slices) {
			data, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			bytes += len(data)
		}
		t.Logf("%s: %d devices, %d bytes", vocabulary, r.Count(), bytes)
		if bytes > most {
			t.Errorf("%s: %d bytes, at most %d are wanted", vocabulary, bytes, most)
		}
	}
}
