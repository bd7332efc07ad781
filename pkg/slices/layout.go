package slices

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
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
