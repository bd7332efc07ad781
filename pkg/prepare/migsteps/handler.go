package migsteps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/go-json-experiment/json"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Numbers knows the device numbers of this moment; sysfs.Tree is one. Those of the last look at
// the hardware may be old: switching the mode can change them.
type Numbers interface {
	GPUMinor(ctx context.Context, at pci.Address) (int, error)
	// InstanceCapabilities gives fs.ErrNotExist where there is no such instance.
	InstanceCapabilities(ctx context.Context, gpuMinor, gpuInstance, computeInstance int) (gi, ci int, err error)
}

// partition is a device that is part of a GPU; device.MIG is one.
type partition interface {
	device.Device
	Parent() inventory.GPU
	Partition() mig.Partition
	Instance() *inventory.MIGInstance
	Static() bool
}

// Handler prepares partitions.
type Handler struct{ Numbers Numbers }

// Steps lists what makes a partition. One that somebody else made needs nothing.
func (Handler) Steps(d claims.Device) ([]journal.Step, error) {
	m, ok := d.Device.(partition)
	if !ok {
		return nil, fmt.Errorf("device %s of kind %s is no partition", d.Device.Name(), d.Device.Kind())
	}
	if m.Static() {
		return nil, nil
	}
	parent, part := m.Parent(), m.Partition()
	gpu := inventory.GPUID{PCI: parent.PCI, UUID: parent.UUID}
	instance, err := InstanceStep(gpu, ledger.Instance{Profile: part.Profile.ID, Start: part.Placement.Start, Size: part.Placement.Size}, part.Profile.Name)
	if err != nil || !mig.SwitchesAtOnce(parent) {
		return []journal.Step{instance}, err
	}
	mode, err := ModeStep(gpu)
	return []journal.Step{mode, instance}, err
}

// Edits gives the node of the GPU and those that open the instances. Admin access to a partition
// that does not exist sees the GPU and nothing of it.
func (h Handler) Edits(d claims.Device, steps []journal.Step) (cdi.Edits, error) {
	m, ok := d.Device.(partition)
	if !ok {
		return cdi.Edits{}, fmt.Errorf("device %s of kind %s is no partition", d.Device.Name(), d.Device.Kind())
	}
	// Files of the kernel driver: they are there or not, and nothing waits for them.
	ctx := context.Background()
	minor, err := h.Numbers.GPUMinor(ctx, m.Parent().PCI)
	if err != nil {
		return cdi.Edits{}, err
	}
	edits := cdi.Edits{Nodes: []cdi.NodeWant{cdi.GPUNode(minor)}}
	gi, ci, found, err := instanceOf(m, steps)
	if err != nil || !found && d.AdminAccess {
		return edits, err
	}
	if !found {
		return cdi.Edits{}, fmt.Errorf("the partition of device %s was removed by another tool: delete the pod and its claim so that a device is allocated anew", d.Device.Name())
	}
	giMinor, ciMinor, err := h.Numbers.InstanceCapabilities(ctx, minor, gi, ci)
	switch {
	case err == nil:
		edits.Nodes = append(edits.Nodes, cdi.CapNode(giMinor), cdi.CapNode(ciMinor))
	case !d.AdminAccess || !errors.Is(err, fs.ErrNotExist):
		return cdi.Edits{}, err
	}
	return edits, nil
}

// instanceOf gives the instance that a partition is: what the step made, or what was found.
func instanceOf(m partition, steps []journal.Step) (gi, ci int, found bool, err error) {
	for _, s := range steps {
		if s.Kind == KindInstance && s.Output != nil {
			var out instanceOutput
			err := json.Unmarshal(s.Output, &out)
			return out.GPUInstance, out.ComputeInstance, err == nil, err
		}
	}
	if there := m.Instance(); there != nil && len(there.Compute) == 1 {
		return there.ID, there.Compute[0].ID, true, nil
	}
	return 0, 0, false, nil
}

// whole is a whole GPU; device.GPU is one.
type whole interface {
	device.Device
	Hardware() inventory.GPU
}

// WholeHandler prepares whole GPUs of a node that makes partitions on demand.
type WholeHandler struct{ Numbers Numbers }

// Steps switches a MIG mode off that this driver switched on.
func (WholeHandler) Steps(d claims.Device) ([]journal.Step, error) {
	gpu, ok := d.Device.(whole)
	if !ok {
		return nil, fmt.Errorf("device %s of kind %s is no whole GPU", d.Device.Name(), d.Device.Kind())
	}
	h := gpu.Hardware()
	if !h.MIG.Enabled || !h.MIG.Ours {
		return nil, nil
	}
	off, err := OffStep(inventory.GPUID{PCI: h.PCI, UUID: h.UUID})
	return []journal.Step{off}, err
}

// Edits gives the GPU's node.
func (h WholeHandler) Edits(d claims.Device, _ []journal.Step) (cdi.Edits, error) {
	minor, err := h.Numbers.GPUMinor(context.Background(), d.Device.Identity().PCI)
	if err != nil {
		return cdi.Edits{}, err
	}
	return cdi.Edits{Nodes: []cdi.NodeWant{cdi.GPUNode(minor)}}, nil
}

// Made is the instance that the steps of a prepared device made; false where they made none.
func Made(steps []journal.Step) (gi, ci int, uuid string, made bool) {
	for _, s := range steps {
		if s.Kind == KindInstance && s.Output != nil {
			var out instanceOutput
			err := json.Unmarshal(s.Output, &out)
			return out.GPUInstance, out.ComputeInstance, out.UUID, err == nil
		}
	}
	return 0, 0, "", false
}
