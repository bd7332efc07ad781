package timeslicing

import (
	"context"
	"errors"
	"fmt"
	"time"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/driverroot/smi"
)

// toolLimit bounds one run of the tool, which takes a second on a busy node. The lock of the GPU
// is held meanwhile, and the kubelet waits 45 s.
const toolLimit = 20 * time.Second

// Tool is the nvidia-smi of a driver root. NVML itself has no call for the time slice.
type Tool struct {
	// Root is the driver root as this process sees it.
	Root string
}

// number is the tool's word for an interval.
func number(interval configapi.TimeSlice) (string, error) {
	n, ok := map[configapi.TimeSlice]string{
		configapi.DefaultTimeSlice: "0", configapi.ShortTimeSlice: "1",
		configapi.MediumTimeSlice: "2", configapi.LongTimeSlice: "3",
	}[interval]
	if !ok {
		return "", fmt.Errorf("time slice %q is not known: allowed are Default, Short, Medium and Long", interval)
	}
	return n, nil
}

// SetTimeSlice implements Setter.
func (t Tool) SetTimeSlice(ctx context.Context, gpuUUID string, interval configapi.TimeSlice) error {
	n, err := number(interval)
	if err != nil {
		return err
	}
	err = smi.Tool(t).Run(ctx, toolLimit, "compute-policy", "-i", gpuUUID, "--set-timeslice="+n)
	if errors.Is(err, smi.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	return err
}
