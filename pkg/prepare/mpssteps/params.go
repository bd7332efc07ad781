package mpssteps

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// Kind is the kind of the step. It is in records: never rename it.
const Kind = "mps"

// Setting is what all clients of a device get.
type Setting struct {
	// ActiveThreadPercentage is 0 to 100; nil leaves it to the daemon, which means all.
	ActiveThreadPercentage *int `json:"activeThreadPercentage,omitzero"`
	// PinnedMemoryMiB is the limit of each client; 0 is none.
	PinnedMemoryMiB int64 `json:"pinnedMemoryMiB,omitzero"`
	MultiUser       bool  `json:"multiUser,omitzero"`
	// Group are the whole GPUs that share one daemon, for a claim whose programs use several;
	// empty for a device with a daemon of its own.
	Group []Member `json:"group,omitzero"`
}

// Member is one GPU of a group.
type Member struct {
	Device          string `json:"device"`
	UUID            string `json:"uuid"`
	PinnedMemoryMiB int64  `json:"pinnedMemoryMiB,omitzero"`
}

// params are those of a step.
type params struct {
	// Device is its name in the pool.
	Device  string      `json:"device"`
	PCI     pci.Address `json:"pci"`
	GPUUUID string      `json:"gpuUUID"`
	// Place is where on the GPU the partition is; nil for a whole GPU. Its UUID is known only
	// when it is there.
	Place   *place     `json:"place,omitzero"`
	Setting Setting    `json:"setting"`
	Claim   holder     `json:"claim"`
	Share   *types.UID `json:"share,omitzero"`
}

// place is inventory.MIGPlacement in records.
type place struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// holder is claims.Ref in records.
type holder struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

func (h holder) String() string { return h.Namespace + "/" + h.Name }

func (p params) gpu() inventory.GPUID { return inventory.GPUID{PCI: p.PCI, UUID: p.GPUUUID} }

// user is what counts as one user of the device: a share, of which a claim may have several.
func (p params) user() string {
	if p.Share == nil {
		return string(p.Claim.UID)
	}
	return string(p.Claim.UID) + "_" + string(*p.Share)
}

// daemon is the name of the daemon that the device is with.
func (p params) daemon() string {
	if len(p.Setting.Group) > 0 {
		return p.Setting.Group[0].Device
	}
	return p.Device
}

// spec is what that daemon has to be; uuid is the device's own.
func (p params) spec(uuid string) mps.Spec {
	s := mps.Spec{ActiveThreadPercentage: p.Setting.ActiveThreadPercentage, MultiUser: p.Setting.MultiUser}
	for _, m := range p.Setting.Group {
		s.Devices = append(s.Devices, mps.Device{UUID: m.UUID, PinnedMemoryMiB: m.PinnedMemoryMiB})
	}
	if len(s.Devices) == 0 {
		s.Devices = []mps.Device{{UUID: uuid, PinnedMemoryMiB: p.Setting.PinnedMemoryMiB}}
	}
	return s
}

func holderOf(r claims.Ref) holder { return holder{Namespace: r.Namespace, Name: r.Name, UID: r.UID} }

func decode(raw jsontext.Value) (params, error) {
	var p params
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("parameters of %s in the record: %w", Kind, err)
	}
	return p, mps.CheckName(p.Device)
}
