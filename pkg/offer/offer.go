// Package offer says what a node offers: the devices and slices that follow from a look at its
// hardware, its settings and the conditions that it is in. It is for the plugin's catalog and for
// tools that want to know what a node publishes, or would. It is pure; it must not know NVML,
// files, claims or the API server.
package offer

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/topology"
)

// Settings are what the admin decided; they do not change while the plugin runs.
type Settings struct {
	// Pool is the name of the node's pool, which is the node's.
	Pool       string
	Vocabulary device.Vocabulary
	// Lists adds list attributes, where the cluster takes them.
	Lists bool
	// Partitions has GPUs cut on demand.
	Partitions bool
	// NotOnDemand offers partitions that are there and makes none for claims.
	NotOnDemand bool
	// HideForeign leaves out what others made, and still what that excludes.
	HideForeign bool
	// Order is that of a profile's placements; nil is the default.
	Order mig.Order
	// Shares declares devices as shared.
	Shares []shares.Declaration
}

// Tainter says which taints a device has. It must be pure.
type Tainter func(device.Device) []resourceapi.DeviceTaint

// Conditions are what changes without the hardware looking different.
type Conditions struct {
	// Taints of every device are those of all of these, in this order.
	Taints []Tainter
	// Layout puts devices and counters into slices, as the cluster's release wants it; nil is
	// slices.SeparateCounters.
	Layout slices.Layout
	// Layouts are the declared MIG layouts of GPUs: those offer what is laid out and nothing else.
	Layouts layout.Layouts
	// LayoutsHeld is why no GPU is laid out now; nil where layouts are applied.
	LayoutsHeld error
	// WithheldShares is why devices that exclude others are not offered in shares; "" offers them.
	WithheldShares string
	// NoLimits is why the GPU driver cannot limit the memory of sharers of a GPU; "" where it can.
	// Nil is that it can everywhere.
	NoLimits func(pci.Address) string
}

// Offer is what the node offers.
type Offer struct {
	Devices   []device.Device
	Resources resourceslice.DriverResources
	// Omissions are devices and attributes that are not published, and why.
	Omissions []device.Omission
	// Withheld are partitions that the node could have and does not offer now.
	Withheld []device.Withheld
}

// Make says what a node with these settings offers in these conditions. The assignment must be of
// the snapshot.
func (s Settings) Make(snapshot inventory.Snapshot, assignment topology.Assignment, conditions Conditions) Offer {
	in, omissions, withheld := s.devices(snapshot, assignment, conditions)
	devices, unshared := device.Share(in.Devices, shares.Of(s.Shares, snapshot))
	omissions = append(omissions, unshared...)
	if why := conditions.WithheldShares; why != "" {
		devices, unshared = device.WithholdShares(devices, why)
		omissions = append(omissions, unshared...)
	}
	if conditions.NoLimits != nil {
		devices, unshared = device.WithoutLimits(devices, conditions.NoLimits)
		omissions = append(omissions, unshared...)
	}
	in.Devices = devices
	in.Vocabulary, in.Layout, in.Taints = s.Vocabulary, conditions.Layout, conditions.of(in.Devices)
	built := slices.Build(in)
	return Offer{
		Devices:   in.Devices,
		Resources: built.Resources(s.Pool),
		Omissions: append(built.Omissions, omissions...),
		Withheld:  withheld,
	}
}

func (s Settings) devices(
	snapshot inventory.Snapshot, assignment topology.Assignment, conditions Conditions,
) (slices.Input, []device.Omission, []device.Withheld) {
	var options []device.Option
	if s.Lists {
		options = append(options, device.WithLists())
	}
	if !s.Partitions {
		return slices.Input{Devices: device.FromSnapshot(snapshot, assignment, options...), Topology: assignment}, nil, nil
	}
	options = append(options, device.WithCut(func(g inventory.GPU) device.Cut { return s.cut(g, conditions) }))
	parts := device.FromPartitionedSnapshot(snapshot, assignment, s.Order, options...)
	return slices.Input{Devices: parts.Devices, Topology: parts.Topology, Counters: parts.Counters}, parts.Omissions, parts.Withheld
}

// cut decides how a GPU is offered. One that is going to be laid out anew offers nothing, so that
// it becomes idle; one whose layout cannot be had offers what is there.
func (s Settings) cut(g inventory.GPU, c Conditions) device.Cut {
	cut := device.Everything()
	l, declared := c.Layouts[g.PCI]
	undo := layout.Undo(g)
	switch {
	case c.LayoutsHeld != nil && (declared || !undo.Done()):
		cut.OnDemand, cut.Whole, cut.Reason = false, declared && !l.Enabled, c.LayoutsHeld.Error()
	case declared:
		cut = cutOf(l, g)
	case !undo.Done():
		cut = device.Cut{Reason: "a MIG layout is removed as soon as nothing uses the GPU"}
	}
	cut.OnDemand = cut.OnDemand && !s.NotOnDemand
	cut.Foreign = cut.Foreign && !s.HideForeign
	return cut
}

func cutOf(l layout.Layout, g inventory.GPU) device.Cut {
	plan, err := l.Plan(g)
	switch {
	case err == nil && plan.Disturbs():
		return device.Cut{Reason: fmt.Sprintf("MIG layout %q is applied as soon as nothing uses the GPU", l.Config)}
	case err != nil:
		return device.Cut{Declared: true, Foreign: true, Whole: !l.Enabled, Reason: err.Error()}
	}
	return device.Cut{Declared: true, Foreign: true, Whole: !l.Enabled}
}

func (c Conditions) of(devices []device.Device) map[string][]resourceapi.DeviceTaint {
	if len(c.Taints) == 0 {
		return nil
	}
	taints := map[string][]resourceapi.DeviceTaint{}
	for _, d := range devices {
		for _, of := range c.Taints {
			if more := of(d); len(more) > 0 {
				taints[d.Name()] = append(taints[d.Name()], more...)
			}
		}
	}
	return taints
}
