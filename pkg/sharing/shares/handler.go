package shares

import (
	"fmt"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
)

// limitVariable tells a container its limit of device memory in MiB. The name is that of NVIDIA's
// container toolkit (1.20), whose hook for it this driver does not run.
const limitVariable = "NVIDIA_GPU_MEMORY_LIMIT"

// Handler tells containers with a share of a device what their part of the memory is. It goes
// into the chain of every kind of device that can be shared.
type Handler struct{}

// Steps gives none: nothing is set on the device.
func (Handler) Steps(claims.Device) ([]journal.Step, error) { return nil, nil }

// Edits gives the variable for a share with a limit that nobody else makes known. With several
// shares in one container the last one's counts.
func (Handler) Edits(d claims.Device, _ []journal.Step) (cdi.Edits, error) {
	how := device.SharingOf(d.Device)
	if how == nil || how.Enforcement != device.Cooperative || d.ShareID == nil || d.AdminAccess || d.MemoryBytes == 0 {
		return cdi.Edits{}, nil
	}
	return cdi.Edits{Env: []string{fmt.Sprintf("%s=%d", limitVariable, d.MemoryBytes>>20)}}, nil
}
