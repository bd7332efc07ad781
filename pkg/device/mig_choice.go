package device

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/topology"
)

// Partitioned are the devices of a node that cuts its GPUs on demand.
type Partitioned struct {
	Devices []Device
	// Counters are the counter sets of GPUs that have partitions, in the order of the snapshot.
	Counters []resourceapi.CounterSet
	// Omissions are instances that are no devices, and why.
	Omissions []Omission
	// Topology is the assignment without the modes that this driver switched on for a time: with
	// it the order of GPUs stays as it is.
	Topology topology.Assignment
}

// FromPartitionedSnapshot makes the devices of a snapshot whose GPUs may be cut while they are
// in use; instances that this driver made are marked in it. The assignment must be of the same
// snapshot. Order is that of placements; nil is the default.
//
// A GPU has these devices, in this order:
//
//   - each instance that somebody else made, as it is: those are never destroyed;
//   - each partition that has room beside those, if the GPU's MIG mode is on or can be switched
//     on without a reset;
//   - the whole GPU, if its mode is off or was switched on by this driver, which then switches it
//     off again, and if nobody else made an instance.
//
// Whoever is given one of these excludes the others that need the same counters. What this
// driver makes and removes for claims changes no device.
func FromPartitionedSnapshot(s inventory.Snapshot, a topology.Assignment, order mig.Order, options ...Option) Partitioned {
	out := Partitioned{Topology: undisturbed(s, a)}
	for _, hardware := range s.GPUs {
		g := GPU{hardware: hardware, driver: s.Driver, nvlink: out.Topology.GPUs[hardware.PCI]}
		for _, o := range options {
			o(&g)
		}
		geometry, ok := mig.NewGeometry(hardware)
		if !ok || !hardware.MIG.Enabled && !mig.SwitchesAtOnce(hardware) {
			if !hardware.MIG.Enabled {
				out.Devices = append(out.Devices, g)
			}
			continue
		}
		out.cut(g, geometry, order)
	}
	return out
}

// cut adds the devices of one GPU that has partitions.
func (out *Partitioned) cut(g GPU, geometry mig.Geometry, order mig.Order) {
	out.Counters = append(out.Counters, geometry.CounterSet())
	whole := geometry.Whole()
	g.counters = &whole
	parts := geometry.Partitions(order)
	foreign := out.foreign(g, geometry)
	for _, d := range foreign.devices {
		out.Devices = append(out.Devices, d)
	}
	for _, part := range parts {
		if !geometry.Fits(part, foreign.taken) {
			continue
		}
		d := MIG{parent: g, geometry: geometry, part: part}
		for _, instance := range g.hardware.MIG.Instances {
			if instance.ProfileID == part.Profile.ID && instance.Placement == part.Placement {
				d.instance = &instance
			}
		}
		out.Devices = append(out.Devices, d)
	}
	if len(foreign.taken) == 0 && (!g.hardware.MIG.Enabled || g.hardware.MIG.Ours) {
		out.Devices = append(out.Devices, g)
	}
}

// foreign is what others made on one GPU.
type foreign struct {
	taken   []mig.Partition
	devices []MIG
}

func (out *Partitioned) foreign(g GPU, geometry mig.Geometry) foreign {
	var f foreign
	for _, instance := range g.hardware.MIG.Instances {
		if instance.Ours {
			continue
		}
		part := geometry.PartitionOf(instance)
		f.taken = append(f.taken, part)
		d := MIG{parent: g, geometry: geometry, part: part, instance: &instance}
		if reason := unusableInstance(instance, part); reason != "" {
			out.Omissions = append(out.Omissions, Omission{
				Device: g.Name(), Name: fmt.Sprintf("MIG instance at %s", instance.Placement), Value: part.Profile.Name, Reason: reason,
			})
			continue
		}
		f.devices = append(f.devices, d)
	}
	return f
}

// unusableInstance says why an instance that somebody made is no device; empty when it is one.
func unusableInstance(instance inventory.MIGInstance, part mig.Partition) string {
	switch {
	case part.Label == "":
		return fmt.Sprintf("the driver reports no profile with its id %d", instance.ProfileID)
	case len(instance.Compute) != 1:
		return fmt.Sprintf("it has %d compute instances, exactly one that spans it is needed", len(instance.Compute))
	}
	if slices.Contains([]int{0, part.Profile.Slices}, instance.Compute[0].Slices) {
		return ""
	}
	return fmt.Sprintf("its compute instance has %d of its %d compute slices", instance.Compute[0].Slices, part.Profile.Slices)
}
