package slices

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/pci"
)

// MaxDevices is the most devices that one slice holds.
const MaxDevices = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// Group is the published devices of one physical GPU, at least one.
type Group struct {
	GPU     pci.Address
	Devices []resourceapi.Device
}

// Layout puts groups, in their order, and counter sets into slices.
type Layout func(groups []Group, counters []resourceapi.CounterSet) []resourceslice.Slice

// SeparateCounters is the layout of Kubernetes 1.35 and later: a slice holds counter sets or
// devices, never both.
func SeparateCounters(groups []Group, counters []resourceapi.CounterSet) []resourceslice.Slice {
	var out []resourceslice.Slice
	for sets := range slices.Chunk(counters, resourceapi.ResourceSliceMaxCounterSets) {
		out = append(out, resourceslice.Slice{SharedCounters: sets})
	}
	var shared []resourceapi.Device
	flush := func() {
		if len(shared) > 0 {
			out = append(out, resourceslice.Slice{Devices: shared})
			shared = nil
		}
	}
	for _, g := range groups {
		if len(g.Devices) == 1 {
			shared = append(shared, g.Devices[0])
			if len(shared) == MaxDevices {
				flush()
			}
			continue
		}
		flush()
		for devices := range slices.Chunk(g.Devices, MaxDevices) {
			out = append(out, resourceslice.Slice{Devices: devices})
		}
	}
	flush()
	return out
}

// CountersWithDevices is the layout of Kubernetes 1.34: devices find their counter set in their
// own slice and nowhere else. A GPU with counters has one slice of its own, with at most
// MaxDevices devices: a second slice would need the set once more, and would give it out once more.
func CountersWithDevices(groups []Group, counters []resourceapi.CounterSet) []resourceslice.Slice {
	var out []resourceslice.Slice
	var plain []Group
	flush := func() {
		out = append(out, SeparateCounters(plain, nil)...)
		plain = nil
	}
	for _, g := range groups {
		sets := setsOf(g, counters)
		if len(sets) == 0 {
			plain = append(plain, g)
			continue
		}
		flush()
		out = append(out, resourceslice.Slice{SharedCounters: sets, Devices: g.Devices[:min(len(g.Devices), MaxDevices)]})
	}
	flush()
	return out
}

// setsOf are the counter sets that a GPU's devices consume from.
func setsOf(g Group, counters []resourceapi.CounterSet) []resourceapi.CounterSet {
	var out []resourceapi.CounterSet
	for _, set := range counters {
		if slices.ContainsFunc(g.Devices, func(d resourceapi.Device) bool {
			return slices.ContainsFunc(d.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool { return c.CounterSet == set.Name })
		}) {
			out = append(out, set)
		}
	}
	return out
}

// LayoutFor is the layout that an API server and a scheduler of a release understand; that of the
// newest where the release is not known (nil). The two layouts exclude each other: a pool of the
// one is not valid for the other's release (KEP-4815).
func LayoutFor(release *version.Version) Layout {
	if release != nil && release.LessThan(version.MajorMinor(1, 35)) {
		return CountersWithDevices
	}
	return SeparateCounters
}
