package mpssteps

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// partitioned is a device that is part of a GPU; device.MIG is one.
type partitioned interface {
	device.Device
	Parent() inventory.GPU
	Partition() mig.Partition
}

// Handler adds to a device what MPS needs. It comes behind the handler that makes the device.
type Handler struct {
	Layout mps.Layout
}

// Steps lists the one step of a device that is shared by MPS.
func (Handler) Steps(d claims.Device) ([]journal.Step, error) {
	if d.Settings.MPS == nil {
		return nil, nil
	}
	setting, err := settingOf(d)
	if err != nil {
		return nil, err
	}
	id := d.Device.Identity()
	p := params{
		Device: d.Device.Name(), PCI: id.PCI, GPUUUID: id.GPUUUID, Setting: setting,
		Claim: holderOf(d.Claim), Share: d.ShareID,
	}
	if part, ok := d.Device.(partitioned); ok {
		at := part.Partition().Placement
		p.Place = &place{Start: at.Start, Size: at.Size}
	}
	data, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode the parameters of %s: %w", Kind, err)
	}
	return []journal.Step{{Kind: Kind, Params: data}}, nil
}

// settingOf gives what the claim wants of a device. Whole GPUs under one configuration share a
// daemon, since a program can speak to one only; a program can use one partition only, so each
// has its own.
func settingOf(d claims.Device) (Setting, error) {
	wanted := d.Settings.MPS
	setting := Setting{
		ActiveThreadPercentage: wanted.ActiveThreadPercentage,
		PinnedMemoryMiB:        mebibytes(wanted.PinnedMemoryBytes),
		MultiUser:              wanted.MultiUser,
	}
	if len(wanted.Group) < 2 || d.Device.Kind() != device.KindGPU {
		return setting, nil
	}
	if len(wanted.GroupMemoryBytes) != len(wanted.Group) {
		return setting, fmt.Errorf("device %s: %d devices have %d limits of memory", d.Device.Name(), len(wanted.Group), len(wanted.GroupMemoryBytes))
	}
	setting.PinnedMemoryMiB = 0
	for i, id := range wanted.Group {
		setting.Group = append(setting.Group, Member{
			Device: device.GPUName(id.PCI), UUID: id.GPUUUID, PinnedMemoryMiB: mebibytes(wanted.GroupMemoryBytes[i]),
		})
	}
	return setting, nil
}

// mebibytes rounds down: a limit is not passed.
func mebibytes(bytes int64) int64 { return bytes >> 20 }

// Edits has the containers of a device find its daemon.
func (h Handler) Edits(d claims.Device, steps []journal.Step) (cdi.Edits, error) {
	i := slices.IndexFunc(steps, func(s journal.Step) bool { return s.Kind == Kind })
	if i < 0 {
		return cdi.Edits{}, nil
	}
	p, err := decode(steps[i].Params)
	if err != nil {
		return cdi.Edits{}, fmt.Errorf("device %s: %w", d.Device.Name(), err)
	}
	dir := h.Layout.Daemon(p.daemon())
	mount := func(host, container string) *specs.Mount {
		return &specs.Mount{HostPath: host, ContainerPath: container, Options: []string{"rw", "nosuid", "nodev", "noexec", "rbind"}}
	}
	return cdi.Edits{
		Env: []string{mps.EnvPipeDir + "=" + mps.ClientPipeDir},
		Mounts: []*specs.Mount{
			mount(dir.Pipe(), mps.ClientPipeDir),
			// Server and client exchange data there. It takes the place of the container's own.
			mount(dir.Shm(), mps.ClientShmDir),
		},
	}, nil
}
