package inventory

import "fmt"

// ComputeMode says how many programs may have a CUDA context on a device. The numbers are
// NVML's nvmlComputeMode_t.
type ComputeMode int

// The modes. What was 1 is not used any more.
const (
	// ComputeDefault lets any number in.
	ComputeDefault ComputeMode = 0
	// ComputeProhibited lets none in.
	ComputeProhibited ComputeMode = 2
	// ComputeExclusiveProcess lets one process in: the server of an MPS control daemon, so that
	// nobody passes it by.
	ComputeExclusiveProcess ComputeMode = 3
)

// String is what nvidia-smi calls the mode.
func (m ComputeMode) String() string {
	switch m {
	case ComputeDefault:
		return "DEFAULT"
	case ComputeProhibited:
		return "PROHIBITED"
	case ComputeExclusiveProcess:
		return "EXCLUSIVE_PROCESS"
	}
	return fmt.Sprintf("mode %d", int(m))
}
