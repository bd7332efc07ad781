package claims

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/device"
)

// configs are the configurations of one allocation that are for our driver, in the order in
// which they win: those of the claim before those of its classes, later before earlier.
type configs struct {
	entries []entry
}

// entry is one configuration, decoded when it is first looked at: an invalid one that applies
// to none of our devices is none of our business.
type entry struct {
	allocated resourceapi.DeviceAllocationConfiguration
	decoded   bool
	config    configapi.Config
	err       error
}

func newConfigs(allocated []resourceapi.DeviceAllocationConfiguration, driverName string) *configs {
	c := &configs{}
	for _, fromClass := range []bool{false, true} {
		for _, a := range slices.Backward(allocated) {
			isOurs := a.Opaque != nil && a.Opaque.Driver == driverName
			if isOurs && (a.Source == resourceapi.AllocationConfigSourceClass) == fromClass {
				c.entries = append(c.entries, entry{allocated: a})
			}
		}
	}
	return c
}

func (e *entry) load() (configapi.Config, error) {
	if !e.decoded {
		e.decoded = true
		e.config, e.err = configapi.Load(e.allocated.Opaque.Parameters.Raw)
	}
	return e.config, e.err
}

// resolve finds the one configuration of a result. The first that applies wins; nothing is
// merged. One that names the request must be of the device's kind. One that names no request,
// or only the main request of a prioritized list, applies where the kind fits: the alternatives
// of a list may be of different kinds.
func (c *configs) resolve(result *resourceapi.DeviceRequestAllocationResult, d device.Device, admin bool) (configapi.Config, error) {
	fail := func(reason Reason, err error) (configapi.Config, error) {
		return nil, &Error{Reason: reason, Request: result.Request, Device: d.Name(), Err: err}
	}
	for i := range c.entries {
		e := &c.entries[i]
		source := e.allocated.Source
		if len(resourceclaim.ConfigForResult([]resourceapi.DeviceAllocationConfiguration{e.allocated}, *result)) == 0 {
			continue
		}
		config, err := e.load()
		if err != nil {
			return fail(ReasonConfig, fmt.Errorf("the config of %s: %w", configSource(source), err))
		}
		if config.DeviceType() != string(d.Kind()) {
			if slices.Contains(e.allocated.Requests, result.Request) {
				return fail(ReasonWrongKind, errWrongKind(config, d, source))
			}
			continue
		}
		if admin && config.SharingStrategy() != "" {
			if source == resourceapi.AllocationConfigSourceClass {
				// The class means owners of the device. An observer cannot change the class,
				// and must not change the device.
				continue
			}
			return fail(ReasonAdminSharing, errors.New("sharing cannot be set with adminAccess, which changes nothing of the device it looks at: leave out sharing"))
		}
		return config, nil
	}
	return nil, nil
}
