package gpusim

import (
	"errors"
	"fmt"

	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// Compute modes, as NVML numbers them.
const (
	ComputeDefault          = 0
	ComputeProhibited       = 2
	ComputeExclusiveProcess = 3
)

// Time slices, as nvidia-smi numbers them.
const (
	TimeSliceDefault = iota
	TimeSliceShort
	TimeSliceMedium
	TimeSliceLong
)

// Sharing is how processes share one GPU.
type Sharing struct {
	// ComputeMode is a Compute constant, TimeSlice a TimeSlice constant.
	ComputeMode, TimeSlice int
}

// SetComputeMode sets the compute mode of a GPU as another tool would.
func (n *Node) SetComputeMode(number, mode int) error {
	_, err := n.tool(number, fmt.Sprintf("-c %d", mode))
	return err
}

// SetTimeSlice sets the time slice of a GPU as another tool would.
func (n *Node) SetTimeSlice(number, slice int) error {
	_, err := n.tool(number, "compute-policy", fmt.Sprintf("--set-timeslice=%d", slice))
	return err
}

// Sharing returns how processes share a GPU.
func (n *Node) Sharing(number int) (Sharing, error) {
	var out Sharing
	err := n.gpu(number, func(g *simstate.GPU) error {
		out = Sharing{ComputeMode: int(g.ComputeMode), TimeSlice: int(g.TimeSlice)}
		return nil
	})
	return out, err
}

// MIGComputeMode returns the compute mode of a compute instance.
func (n *Node) MIGComputeMode(number, gpuInstance, computeInstance int) (int, error) {
	mode := 0
	err := n.gpu(number, func(g *simstate.GPU) error {
		if gpuInstance < 0 || gpuInstance >= len(g.MIG.Instances) || computeInstance < 0 || computeInstance >= simstate.MaxComputeInstances {
			return errors.New("no such instance")
		}
		mode = int(g.MIG.Instances[gpuInstance].ComputeInstances[computeInstance].ComputeMode)
		return nil
	})
	return mode, err
}
