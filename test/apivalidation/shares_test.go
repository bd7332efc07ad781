package apivalidation

import (
	"fmt"
	"testing"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	gpuslices "github.com/gpu-dra/driver/pkg/slices"
)

// Shared devices of every machine, in every way, are what the API server takes; with everything
// else switched on, too.
func TestSharedMachines(t *testing.T) {
	ways := []device.Sharing{
		{Enforcement: device.EnforcedByMPS, Replicas: 2},
		{Enforcement: device.EnforcedByMPS, Replicas: 60, ThreadPercentage: new(1)},
		{Enforcement: device.Cooperative},
		{Enforcement: device.Cooperative, Replicas: 7},
		{Enforcement: device.NotEnforced},
		{Enforcement: device.NotEnforced, Replicas: 128},
	}
	inputs := map[string]gpuslices.Input{}
	for name, s := range inventorytest.All() {
		inputs[name] = input(s, device.VocabularyFull, device.WithLists())
	}
	for name, s := range machines(t) {
		inputs["partitioned "+name] = partitioned(s, device.VocabularyFull, device.WithLists())
	}
	for name, in := range inputs {
		for _, how := range ways {
			t.Run(fmt.Sprintf("%s/%s/%d", name, how.Enforcement, how.Replicas), func(t *testing.T) {
				in := in
				devices, omissions := device.Share(in.Devices, func(device.Device) *device.Sharing { return &how })
				in.Devices = devices
				r := gpuslices.Build(in)
				if errs := validate(t, r); len(errs) > 0 || len(r.Omissions) > 0 || r.Count() != len(devices) {
					t.Errorf("%d devices, omissions %v, errors %v", r.Count(), r.Omissions, errs)
				}
				for _, o := range omissions {
					t.Logf("left out: %+v", o)
				}
			})
		}
	}
}
