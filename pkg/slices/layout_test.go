package slices_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	gpuslices "github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/topology"
)

// laidOut is the pool of a preset whose GPUs are cut, in the layout for a release.
func laidOut(t testing.TB, preset, release string) gpuslices.Result {
	t.Helper()
	s := migtest.Snapshot(t, preset)
	for i := range s.GPUs {
		s.GPUs[i].MIG.Enabled = s.GPUs[i].MIG.Capable && s.GPUs[i].ComputeMajor < 9
	}
	a, _ := topology.Resolve(s, topology.Memory{})
	p := device.FromPartitionedSnapshot(s, a, nil)
	return gpuslices.Build(gpuslices.Input{
		Devices: p.Devices, Counters: p.Counters, Topology: p.Topology, Vocabulary: device.VocabularyFull,
		Layout: gpuslices.LayoutFor(version.MustParseGeneric(release)),
	})
}

// In Kubernetes 1.34 whatever a device consumes is in its own slice and in no other.
func TestCountersWithDevices(t *testing.T) {
	for _, preset := range migtest.Presets() {
		t.Run(preset, func(t *testing.T) {
			r, newer := laidOut(t, preset, "1.34.4"), laidOut(t, preset, "1.35.0")
			if len(r.Omissions) > 0 || r.Count() != newer.Count() {
				t.Errorf("%d devices, %d in the newer layout, omissions %v", r.Count(), newer.Count(), r.Omissions)
			}
			seen := map[string]int{}
			for i, s := range r.Slices {
				own := map[string]bool{}
				counters := 0
				for _, set := range s.SharedCounters {
					seen[set.Name]++
					own[set.Name] = true
					counters += len(set.Counters)
				}
				// Counters of a slice in that release: ResourceSliceMaxSharedCounters.
				if len(s.Devices) == 0 || len(s.Devices) > gpuslices.MaxDevices || counters > 32 {
					t.Errorf("slice %d has %d devices and %d counters", i, len(s.Devices), counters)
				}
				for _, d := range s.Devices {
					for _, c := range d.ConsumesCounters {
						if !own[c.CounterSet] {
							t.Errorf("slice %d: %s consumes from %s, which is not there", i, d.Name, c.CounterSet)
						}
					}
				}
			}
			for name, n := range seen {
				if n != 1 {
					t.Errorf("counter set %s is in %d slices", name, n)
				}
			}
			if len(seen) == 0 {
				t.Error("no counters")
			}
		})
	}
}

func names(all []resourceslice.Slice) (out []string) {
	for _, s := range all {
		text := ""
		for _, set := range s.SharedCounters {
			text += set.Name + "= "
		}
		for _, d := range s.Devices {
			text += d.Name + " "
		}
		out = append(out, text)
	}
	return out
}

// Plain GPUs share slices between those that are cut; the order stays, and sets that nobody
// consumes from are left out.
func TestCountersWithDevicesBesidePlainGPUs(t *testing.T) {
	plain := func(name string) resourceapi.Device { return resourceapi.Device{Name: name} }
	cut := func(name, set string) resourceapi.Device {
		return resourceapi.Device{Name: name, ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: set}}}
	}
	set := func(name string) resourceapi.CounterSet {
		return resourceapi.CounterSet{Name: name, Counters: map[string]resourceapi.Counter{"a": {Value: resource.MustParse("1")}}}
	}
	group := func(d ...resourceapi.Device) gpuslices.Group { return gpuslices.Group{Devices: d} }
	got := gpuslices.CountersWithDevices([]gpuslices.Group{
		group(plain("a")), group(plain("b")), group(cut("c1", "c"), cut("c2", "c")), group(plain("d")), group(cut("e", "e")),
	}, []resourceapi.CounterSet{set("e"), set("nobody's"), set("c")})
	if diff := cmp.Diff([]string{"a b ", "c= c1 c2 ", "d ", "e= e "}, names(got)); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
	many := group()
	for i := range gpuslices.MaxDevices + 3 {
		many.Devices = append(many.Devices, cut(fmt.Sprint(i), "c"))
	}
	if got := gpuslices.CountersWithDevices([]gpuslices.Group{many}, []resourceapi.CounterSet{set("c")}); len(got) != 1 || len(got[0].Devices) != gpuslices.MaxDevices {
		t.Errorf("a GPU with too many devices has %d slices", len(got))
	}
}

func TestLayoutFor(t *testing.T) {
	for release, together := range map[string]bool{
		"1.34.0": true, "1.34.99": true, "1.35.0": false, "1.36.2": false, "1.37.2": false, "2.0.0": false, "": false,
	} {
		var v *version.Version
		if release != "" {
			v = version.MustParseGeneric(release)
		}
		d := resourceapi.Device{Name: "d", ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "s"}}}
		out := gpuslices.LayoutFor(v)([]gpuslices.Group{{Devices: []resourceapi.Device{d}}}, []resourceapi.CounterSet{{Name: "s"}})
		if got := len(out) == 1; got != together {
			t.Errorf("release %q: counters with devices %t, want %t", release, got, together)
		}
	}
}

// What a layout has no room for is reported.
func TestLayoutWithoutRoom(t *testing.T) {
	s := migtest.Snapshot(t, "a30-4")
	a, _ := topology.Resolve(s, topology.Memory{})
	r := gpuslices.Build(gpuslices.Input{
		Devices: device.FromSnapshot(s, a), Topology: a, Vocabulary: device.VocabularyFull,
		Layout: func(groups []gpuslices.Group, _ []resourceapi.CounterSet) []resourceslice.Slice {
			return []resourceslice.Slice{{Devices: groups[1].Devices}}
		},
	})
	if r.Count() != 1 || len(r.Omissions) != 3 || r.Omissions[0].Device == "" || r.Omissions[0].Reason == "" {
		t.Errorf("%d devices, omissions %+v", r.Count(), r.Omissions)
	}
}
