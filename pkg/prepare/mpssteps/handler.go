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
	// Setting gives what the claim wants of the device; wanted is false for a device that is not
	// shared by MPS.
	Setting func(claims.Device) (setting Setting, wanted bool)
}

// Steps lists the one step of a device that is shared by MPS.
func (h Handler) Steps(d claims.Device) ([]journal.Step, error) {
	setting, wanted := h.Setting(d)
	if !wanted {
		return nil, nil
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
