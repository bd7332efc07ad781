// Package offer says what a node offers: the devices and slices that follow from a look at its
// hardware, its settings and the conditions that it is in. It is for the plugin's catalog and for
// tools that want to know what a node publishes, or would. It is pure; it must not know NVML,
// files, claims or the API server.
package offer

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
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
}

// Offer is what the node offers.
type Offer struct {
	Devices   []device.Device
	Resources resourceslice.DriverResources
	// Omissions are devices and attributes that are not published, and why.
	Omissions []device.Omission
}

// Make says what a node with these settings offers in these conditions. The assignment must be of
// the snapshot.
func (s Settings) Make(snapshot inventory.Snapshot, assignment topology.Assignment, conditions Conditions) Offer {
	in, omissions := s.devices(snapshot, assignment)
	devices, unshared := device.Share(in.Devices, shares.Of(s.Shares, snapshot))
	in.Devices, omissions = devices, append(omissions, unshared...)
	in.Vocabulary, in.Layout, in.Taints = s.Vocabulary, conditions.Layout, conditions.of(in.Devices)
	built := slices.Build(in)
	return Offer{
		Devices:   in.Devices,
		Resources: built.Resources(s.Pool),
		Omissions: append(built.Omissions, omissions...),
	}
}

func (s Settings) devices(snapshot inventory.Snapshot, assignment topology.Assignment) (slices.Input, []device.Omission) {
	var options []device.Option
	if s.Lists {
		options = append(options, device.WithLists())
	}
	if !s.Partitions {
		return slices.Input{Devices: device.FromSnapshot(snapshot, assignment, options...), Topology: assignment}, nil
	}
	parts := device.FromPartitionedSnapshot(snapshot, assignment, s.Order, options...)
	return slices.Input{Devices: parts.Devices, Topology: parts.Topology, Counters: parts.Counters}, parts.Omissions
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
