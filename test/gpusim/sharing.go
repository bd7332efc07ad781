package gpusim

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

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

// MPSControl is the path of the node's nvidia-cuda-mps-control.
func (n *Node) MPSControl() string {
	return filepath.Join(n.layout.Driver(), "usr/bin/nvidia-cuda-mps-control")
}

// Client is the path of gpusim-client, a program that computes on a GPU as far as others see.
func (n *Node) Client() string { return filepath.Join(n.layout.Driver(), "usr/bin/gpusim-client") }

// ContainerClient is the path that gpusim-client has in a container with the driver's files.
func (n *Node) ContainerClient() string {
	return strings.TrimPrefix(n.layout.ContainerClient(), n.layout.Driver())
}

// Process is a client of a GPU.
type Process struct {
	PID int
	// Name is its first argument.
	Name string
	// Device is the UUID of the GPU, or of the MIG device.
	Device string
	// Memory is in MiB.
	Memory int
}

// Processes lists the clients of a GPU, as nvidia-smi on the host sees them.
func (n *Node) Processes(number int) ([]Process, error) {
	out, err := n.tool(number, "--query-compute-apps=pid,used_gpu_memory,gpu_uuid,process_name --format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	var list []Process
	for line := range strings.Lines(out) {
		var p Process
		words := strings.SplitN(strings.TrimSpace(line), ", ", 4)
		if _, err := fmt.Sscan(strings.Join(words[:3], " "), &p.PID, &p.Memory, &p.Device); err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		p.Name = words[3]
		list = append(list, p)
	}
	return list, nil
}
