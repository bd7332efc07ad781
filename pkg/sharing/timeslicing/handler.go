package timeslicing

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"k8s.io/apimachinery/pkg/types"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Kind is the kind of the step. It is in records: never rename it.
const Kind = "time-slice"

// stepParams are what the step has to know to be done and undone.
type stepParams struct {
	PCI      pci.Address         `json:"pci"`
	GPUUUID  string              `json:"gpuUUID"`
	Interval configapi.TimeSlice `json:"interval"`
	// Namespace and Name are the claim's, for messages to others; UID and Share tell this step
	// from others on the same GPU.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Share     types.UID `json:"share,omitzero"`
}

// user is the name of this step's entry at its GPU.
func (p stepParams) user() string {
	if p.Share == "" {
		return string(p.UID)
	}
	return string(p.UID) + "_" + string(p.Share)
}

// Handler plans the step. It goes into the chain of full GPUs.
type Handler struct{}

// Steps gives one step for a device whose claim asks for an interval, and none for others.
func (Handler) Steps(d claims.Device) ([]journal.Step, error) {
	if d.Settings.TimeSlice == "" {
		return nil, nil
	}
	id := d.Device.Identity()
	p := stepParams{
		PCI: id.PCI, GPUUUID: id.GPUUUID, Interval: d.Settings.TimeSlice,
		Namespace: d.Claim.Namespace, Name: d.Claim.Name, UID: d.Claim.UID,
	}
	if d.ShareID != nil {
		p.Share = *d.ShareID
	}
	params, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode the parameters of %s: %w", Kind, err)
	}
	return []journal.Step{{Kind: Kind, Params: params}}, nil
}

// Edits gives none: containers see nothing of it.
func (Handler) Edits(claims.Device, []journal.Step) (cdi.Edits, error) { return cdi.Edits{}, nil }
