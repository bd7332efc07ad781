package prepare

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/device"
)

// Prepared is one device of a prepared claim, as the kubelet is told of it.
type Prepared struct {
	Request string
	Pool    string
	Device  string
	ShareID *types.UID
	// CDIDeviceIDs are qualified CDI names; the first is unique to this device and claim.
	CDIDeviceIDs []string
	Identity     device.Identity
}
