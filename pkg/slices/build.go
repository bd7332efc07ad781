// Package slices renders the node's devices into the ResourceSlices of one pool: in which order,
// in which slice, and within the API's limits. It is for the publisher and for people who want
// to see what would be published. It is pure; it must not know NVML, files or the API server.
//
// # Order
//
// The scheduler's allocator takes the first device that fits, so the order is the only say that
// a driver has in where things go. GPUs come in groups, one for each NVLink domain; a group of
// fewer working members comes before one of more, and GPUs that never had a domain come first.
// So requests that any GPU can serve use up what the fewest others need: boards without NVLink,
// then domains that are small or have lost members, and one domain before the next is touched.
// Members that lost their links come first in their group. Everything else is in bus order.
//
// # Slices
//
// A slice holds at most 64 devices: one taint lowers the API's limit from 128 to that. GPUs that
// are one device each share slices. A GPU with several devices has slices of its own, so that
// what happens to it rewrites one slice and moves no other GPU's devices. Counter sets are in
// slices of their own, at most eight each, before all devices; Kubernetes 1.34 wants them beside
// their devices, for which there is a layout of its own. A pool without devices still has
// one empty slice: the driver is there, and has nothing to offer.
//
// # Limits
//
// One invalid device would make the API server refuse the slice, or the library the pool. Every
// device is therefore checked here, and what breaks a rule is left out and reported: a taint or
// an attribute where that heals it, else the device. The checks do not replace those of the
// devices' own code; they make its mistakes harmless.
package slices

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

// Input is what the pool is made of.
type Input struct {
	// Devices are all devices of the node. Those of one GPU keep their order, which is their
	// allocation priority.
	Devices []device.Device
	// Topology is of the same snapshot as the devices.
	Topology   topology.Assignment
	Vocabulary device.Vocabulary
	// Taints are the taints of devices by name.
	Taints map[string][]resourceapi.DeviceTaint
	// Counters are the counter sets that the devices consume from.
	Counters []resourceapi.CounterSet
	// Layout puts devices and counters into slices; nil is SeparateCounters.
	Layout Layout
}

// Result is the pool, and what is not in it.
type Result struct {
	Slices []resourceslice.Slice
	// Omissions name the device and the attribute that were left out; Name is empty where the
	// whole device was. They are in the order of the devices.
	Omissions []device.Omission
}

// Resources gives the pool as the library's controller wants it. The pool's name is the node's.
func (r Result) Resources(pool string) resourceslice.DriverResources {
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Slices: r.Slices}}}
}

// Count is the number of published devices.
func (r Result) Count() int {
	n := 0
	for _, s := range r.Slices {
		n += len(s.Devices)
	}
	return n
}

// Build renders the pool. Equal input, in whatever order the GPUs come, gives equal results.
func Build(in Input) Result {
	c := newChecker(in.Counters)
	var groups []Group
	for _, g := range grouped(in.Devices, in.Topology) {
		group := Group{GPU: g.gpu}
		for _, d := range g.devices {
			published, omissions := d.Publish(in.Vocabulary)
			published.Taints = sortedTaints(in.Taints[d.Name()])
			c.omissions = append(c.omissions, omissions...)
			if c.admit(&published) {
				group.Devices = append(group.Devices, published)
			}
		}
		if len(group.Devices) > 0 {
			groups = append(groups, group)
		}
	}
	layout := in.Layout
	if layout == nil {
		layout = SeparateCounters
	}
	out := layout(groups, c.counters)
	c.omitMissing(groups, out)
	if len(out) == 0 {
		out = []resourceslice.Slice{{}}
	}
	return Result{Slices: out, Omissions: c.omissions}
}

// sortedTaints puts taints in an order of their own, so that the order in which faults were
// noticed does not change a slice.
func sortedTaints(taints []resourceapi.DeviceTaint) []resourceapi.DeviceTaint {
	out := slices.Clone(taints)
	slices.SortFunc(out, func(a, b resourceapi.DeviceTaint) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Effect, b.Effect), cmp.Compare(a.Value, b.Value))
	})
	return out
}

// board is the devices of one physical GPU.
type board struct {
	gpu     pci.Address
	devices []device.Device
}

// grouped sorts the devices into boards, and the boards into allocation priority.
func grouped(devices []device.Device, a topology.Assignment) []board {
	by := map[pci.Address][]device.Device{}
	for _, d := range devices {
		at := d.Identity().PCI
		by[at] = append(by[at], d)
	}
	var out []board
	for at, devices := range by {
		out = append(out, board{gpu: at, devices: devices})
	}
	p := priorities(a)
	slices.SortFunc(out, func(x, y board) int { return p.compare(x.gpu, y.gpu) })
	return out
}
