package device

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/pci"
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
	// Withheld are partitions that are not offered for now.
	Withheld []Withheld
}

// Withheld says that a GPU does not offer what it could.
type Withheld struct {
	GPU pci.Address
	// Partitions is how many of its partitions are not offered.
	Partitions int
	Reason     string
}

// Cut says how a GPU is offered. The zero Cut offers nothing of it.
type Cut struct {
	// OnDemand offers every partition that has room; it is made when a claim gets it.
	OnDemand bool
	// Declared offers the instances of a declared layout, Foreign those that somebody else made.
	Declared, Foreign bool
	// Whole offers the whole GPU where its MIG mode allows it.
	Whole bool
	// Reason is why the GPU offers less than it could, for people; empty where it does not.
	Reason string
}

// Everything is the Cut that offers a GPU in every way.
func Everything() Cut { return Cut{OnDemand: true, Declared: true, Foreign: true, Whole: true} }

// WithCut decides for each GPU how it is offered. Without it a GPU is offered in every way.
func WithCut(of func(inventory.GPU) Cut) Option { return func(g *GPU) { g.cut = of(g.hardware) } }

// FromPartitionedSnapshot makes the devices of a snapshot whose GPUs may be cut while they are
// in use; instances that this driver made are marked in it. The assignment must be of the same
// snapshot. Order is that of placements; nil is the default.
//
// A GPU has these devices, in this order:
//
//   - each instance that was not made for a claim, as it is: those are never destroyed;
//   - each partition that has room beside those, if the GPU's MIG mode is on or can be switched
//     on without a reset;
//   - the whole GPU, if its mode is off or was switched on by this driver, which then switches it
//     off again, and if nobody else made an instance.
//
// WithCut leaves some of them out. Whoever is given one of these excludes the others that need the same counters. What this
// driver makes and removes for claims changes no device.
func FromPartitionedSnapshot(s inventory.Snapshot, a topology.Assignment, order mig.Order, options ...Option) Partitioned {
	out := Partitioned{Topology: undisturbed(s, a)}
	for _, hardware := range s.GPUs {
		g := GPU{hardware: hardware, driver: s.Driver, nvlink: out.Topology.GPUs[hardware.PCI], cut: Everything()}
		for _, o := range options {
			o(&g)
		}
		geometry, ok := mig.NewGeometry(hardware)
		if ok && (hardware.MIG.Enabled || g.cut.OnDemand && mig.SwitchesAtOnce(hardware)) {
			out.cut(g, geometry, order)
			continue
		}
		switch {
		case hardware.MIG.Enabled:
		case g.cut.Whole:
			out.Devices = append(out.Devices, g)
		case g.cut.Reason != "":
			out.Withheld = append(out.Withheld, Withheld{GPU: hardware.PCI, Reason: g.cut.Reason})
		}
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
	static := out.static(g, foreign)
	withheld := Withheld{GPU: g.hardware.PCI, Reason: g.cut.Reason}
	for _, part := range parts {
		switch {
		case static[part.Key()] || !g.cut.OnDemand && g.cut.Reason == "":
			// It is offered as it is, or the GPU is not meant to offer it.
		case !g.cut.OnDemand || !geometry.Fits(part, foreign.taken):
			withheld.Partitions++
		default:
			out.Devices = append(out.Devices, onDemand(g, geometry, part))
		}
	}
	if g.cut.Whole && len(foreign.taken) == 0 && (!g.hardware.MIG.Enabled || g.hardware.MIG.Ours) {
		out.Devices = append(out.Devices, g)
	}
	if withheld.Partitions > 0 {
		withheld.Reason = cmp.Or(withheld.Reason, foreign.reason())
		out.Withheld = append(out.Withheld, withheld)
	}
}

// static adds the instances that are offered as they are, and gives their keys.
func (out *Partitioned) static(g GPU, f foreign) map[string]bool {
	keys := map[string]bool{}
	for _, d := range f.devices {
		if d.instance.Declared && g.cut.Declared || !d.instance.Declared && g.cut.Foreign {
			out.Devices = append(out.Devices, d)
			keys[d.part.Key()] = true
		}
	}
	return keys
}

// onDemand is a partition that is made for claims, with what is at its place now.
func onDemand(g GPU, geometry mig.Geometry, part mig.Partition) MIG {
	d := MIG{parent: g, geometry: geometry, part: part}
	for _, instance := range g.hardware.MIG.Instances {
		if instance.ProfileID == part.Profile.ID && instance.Placement == part.Placement {
			d.instance = &instance
		}
	}
	return d
}

// foreign is what others made on one GPU.
type foreign struct {
	taken   []mig.Partition
	devices []MIG
}

// reason says what keeps partitions from being offered.
func (f foreign) reason() string {
	var places []string
	for _, part := range f.taken {
		places = append(places, fmt.Sprintf("%s at %s", cmp.Or(part.Profile.Name, "an unknown profile"), part.Placement))
	}
	return "instances that were not made for claims have their place: " + strings.Join(places, ", ")
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
