package vitals

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/health"
)

const (
	symMIGMode    = "nvmlDeviceGetMigMode"
	symMIGCount   = "nvmlDeviceGetMaxMigDeviceCount"
	symMIGByIndex = "nvmlDeviceGetMigDeviceHandleByIndex"
)

// partitions reads the partitions of a GPU in MIG mode. One that cannot be read, or ends meanwhile, is
// left out: what that means for the GPU shows elsewhere.
func partitions(a asked) []health.Partition {
	mode := get(a, symMIGMode, func() (int, gonvml.Return) {
		current, _, ret := a.GetMigMode()
		return current, ret
	})
	if mode.Err != nil || mode.Value != gonvml.DEVICE_MIG_ENABLE || !a.session.Has(symMIGByIndex) {
		return nil
	}
	most := get(a, symMIGCount, a.GetMaxMigDeviceCount)
	var out []health.Partition
	for i := range most.Value {
		d, ret := a.GetMigDeviceHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			continue
		}
		uuid, ret := d.GetUUID()
		if ret != gonvml.SUCCESS {
			continue
		}
		if memory, ret := d.GetMemoryInfo(); ret == gonvml.SUCCESS {
			out = append(out, health.Partition{UUID: uuid, MemoryUsed: memory.Used, MemoryTotal: memory.Total})
		}
	}
	return out
}
