// Package claims decides, from a ResourceClaim and the node's devices, what preparing the
// claim means: a Plan. It is for the prepare package and for the command line's dry run. It is
// pure: it must not touch files, hardware or the API server.
package claims

import (
	"k8s.io/apimachinery/pkg/types"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/device"
)

// Ref names a claim. The UID is its identity; namespace and name are for people and Events.
type Ref struct {
	Namespace string
	Name      string
	UID       types.UID
}

// Plan is what preparing one claim on this node means. Results of other drivers and of other
// nodes' pools are not part of it.
type Plan struct {
	Claim Ref
	// Devices are in the order of the allocation results.
	Devices []Device
	// Notices are for the claim's author: what was asked for and has no effect.
	Notices []string
}

// Device is one allocation result of ours with the device it names.
type Device struct {
	// Claim is the plan's.
	Claim Ref
	// Request is the request's name as the result has it, "request" or "request/subrequest".
	Request string
	Pool    string
	// ShareID is set for a share of a device that several claims may hold.
	ShareID *types.UID
	// MemoryBytes is how much of a shared device's memory was allocated; 0 where it is not counted.
	MemoryBytes int64
	// AdminAccess results do not own the device: no side effects, no exclusivity.
	AdminAccess bool
	Device      device.Device
	// Config is the one configuration that applies: defaulted and valid, nil where neither
	// class nor claim gives one.
	Config configapi.Config
	// Settings is what Config means for this device. Never set with AdminAccess.
	Settings Settings
}
