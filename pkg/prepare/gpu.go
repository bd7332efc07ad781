package prepare

import (
	"fmt"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// GPUHandler prepares full GPUs: a device node and nothing to do.
type GPUHandler struct{}

// minored is a device with a node of its own. The number is that of the current snapshot.
type minored interface{ Minor() int }

// Steps implements Handler.
func (GPUHandler) Steps(claims.Device) ([]journal.Step, error) { return nil, nil }

// Edits implements Handler.
func (GPUHandler) Edits(d claims.Device, _ []journal.Step) (cdi.Edits, error) {
	gpu, ok := d.Device.(minored)
	if !ok {
		return cdi.Edits{}, fmt.Errorf("device %s of kind %s has no minor number", d.Device.Name(), d.Device.Kind())
	}
	return cdi.Edits{Nodes: []cdi.NodeWant{cdi.GPUNode(gpu.Minor())}}, nil
}
