package shares

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/topology"
)

func TestHandler(t *testing.T) {
	how := func(e device.Enforcement) device.Device {
		devices := device.FromSnapshot(inventorytest.T4(), topology.Assignment{})
		out, _ := device.Share(devices[:1], func(device.Device) *device.Sharing { return &device.Sharing{Enforcement: e, Replicas: 2} })
		return out[0]
	}
	id := types.UID("share")
	for name, tt := range map[string]struct {
		device claims.Device
		want   []string
	}{
		"a limit":         {claims.Device{Device: how(device.Cooperative), ShareID: &id, MemoryBytes: 5 << 30}, []string{"NVIDIA_GPU_MEMORY_LIMIT=5120"}},
		"nothing counted": {claims.Device{Device: how(device.Cooperative), ShareID: &id}, nil},
		"whole":           {claims.Device{Device: how(device.Cooperative), MemoryBytes: 5 << 30}, nil},
		"an observer":     {claims.Device{Device: how(device.Cooperative), ShareID: &id, MemoryBytes: 5 << 30, AdminAccess: true}, nil},
		"by a daemon":     {claims.Device{Device: how(device.EnforcedByMPS), ShareID: &id, MemoryBytes: 5 << 30}, nil},
		"no limit":        {claims.Device{Device: how(device.NotEnforced), ShareID: &id, MemoryBytes: 5 << 30}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			edits, err := Handler{}.Edits(tt.device, nil)
			if diff := cmp.Diff(tt.want, edits.Env); diff != "" || err != nil {
				t.Errorf("env (-want +got):\n%s\n%v", diff, err)
			}
			if steps, err := (Handler{}).Steps(tt.device); steps != nil || err != nil {
				t.Errorf("steps %v, %v", steps, err)
			}
		})
	}
}
