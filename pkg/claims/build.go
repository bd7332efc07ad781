package claims

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/device"
)

// Build makes the plan of a claim for one driver and one pool. Devices are those that the node
// has now, by name. What the claim got from other drivers, from other pools and what it tells
// other drivers is passed over without a look. Errors are of type *Error; with several wrong
// results they are joined, so that one message shows everything there is to mend.
func Build(claim *resourceapi.ResourceClaim, driverName, pool string, devices map[string]device.Device) (Plan, error) {
	plan := Plan{Claim: Ref{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}}
	allocation := claim.Status.Allocation
	if allocation == nil {
		return plan, notAllocated()
	}
	configs := newConfigs(allocation.Devices.Config, driverName)
	var errs []error
	for i := range allocation.Devices.Results {
		result := &allocation.Devices.Results[i]
		if result.Driver != driverName || result.Pool != pool {
			continue
		}
		planned, err := buildDevice(result, configs, devices)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		planned.Claim = plan.Claim
		plan.Devices = append(plan.Devices, planned)
	}
	errs = append(errs, conflicts(plan.Devices)...)
	notices, mistakes := settle(plan.Devices, requestNames(claim))
	plan.Notices = notices
	errs = append(errs, mistakes...)
	if len(errs) > 0 {
		return Plan{Claim: plan.Claim}, errors.Join(distinct(errs)...)
	}
	return plan, nil
}

// distinct drops what was said before: a request for eight devices has one configuration.
func distinct(errs []error) []error {
	said := map[string]bool{}
	return slices.DeleteFunc(errs, func(err error) bool {
		text := err.Error()
		defer func() { said[text] = true }()
		return said[text]
	})
}

func buildDevice(result *resourceapi.DeviceRequestAllocationResult, configs *configs, devices map[string]device.Device) (Device, error) {
	d, ok := devices[result.Device]
	if !ok {
		return Device{}, unknownDevice(result.Request, result.Device, result.Pool, slices.Sorted(maps.Keys(devices)))
	}
	admin := result.AdminAccess != nil && *result.AdminAccess
	config, err := configs.resolve(result, d, admin)
	if err != nil {
		return Device{}, err
	}
	return Device{
		Request: result.Request, Pool: result.Pool, ShareID: result.ShareID, MemoryBytes: consumedMemory(result),
		AdminAccess: admin, Device: d, Config: config,
	}, nil
}

// consumedMemory gives the memory that was allocated of a shared device, in bytes.
func consumedMemory(result *resourceapi.DeviceRequestAllocationResult) int64 {
	for _, name := range []resourceapi.QualifiedName{"memory", resourceapi.QualifiedName(result.Driver + "/memory")} {
		if amount, ok := result.ConsumedCapacity[name]; ok {
			return max(0, amount.Value())
		}
	}
	return 0
}

// conflicts finds pairs of devices in one claim that are the same hardware. The scheduler never
// allocates such a pair, but what it saw may be older than what the node has now.
func conflicts(planned []Device) []error {
	var errs []error
	for i, a := range planned {
		for _, b := range planned[i+1:] {
			if !excludes(a, b) {
				continue
			}
			errs = append(errs, &Error{
				Reason: ReasonConflict, Request: a.Request, Device: a.Device.Name(),
				Err: fmt.Errorf("devices %q and %q (request %q) are the same hardware and cannot both be owned: delete the pod so that its claim is allocated again",
					a.Device.Name(), b.Device.Name(), b.Request),
			})
		}
	}
	return errs
}

// excludes tells whether the two cannot both be handed out. Admin access owns nothing, and
// several shares of one device are what sharing is.
func excludes(a, b Device) bool {
	if a.AdminAccess || b.AdminAccess {
		return false
	}
	if a.Device.Name() == b.Device.Name() {
		return a.ShareID == nil || b.ShareID == nil || *a.ShareID == *b.ShareID
	}
	return a.Device.Overlaps(b.Device.Identity())
}

// configSource puts the place of a configuration into words for messages.
func configSource(source resourceapi.AllocationConfigSource) string {
	if source == resourceapi.AllocationConfigSourceClass {
		return "the DeviceClass"
	}
	return "the claim"
}

// errWrongKind says that a configuration cannot be meant for the device.
func errWrongKind(config configapi.Config, d device.Device, source resourceapi.AllocationConfigSource) error {
	return fmt.Errorf("the config of %s for this request is a %s, which is for devices of type %q, but the request got one of type %q",
		configSource(source), config.ConfigKind(), config.DeviceType(), d.Kind())
}
