package process_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// change makes of a claim of whole GPUs another one.
type change = func(*resourceapi.ResourceClaim)

// kind is a kind of claim that meets a mishap.
type kind struct {
	name     string
	settings []process.Setting
	// mps: the supervisor of MPS control daemons is there.
	mps bool
	// gpus and partitions are what the claim gets, partitions as "0/2g.20gb/4": GPU, profile, start.
	gpus       []int
	partitions []string
	// with makes the claim what it is. otherWith does so for another claim, which wants the first of
	// the claim's devices.
	with, otherWith []change
	// held is what a refusal of the other says beside the claim's name.
	held string
	// slice and mode are what the GPUs have while the claim is prepared.
	slice, mode int
	// daemons are the MPS control daemons of the claim.
	daemons int
}

const stillPrepared = "is still prepared for claim"

// wholes are claims of whole GPUs without anything.
func wholes(gpus ...int) kind {
	return kind{name: fmt.Sprintf("%d devices", len(gpus)), gpus: gpus, held: stillPrepared}
}

// kinds are those of claims that change something on the hardware.
func kinds() []kind {
	partitions := process.Flag("mig-devices", "on-demand")
	declared := func(what string) process.Setting {
		return process.Flag("shared-devices", `[{`+what+`,"replicas":4,"devices":{"indices":[3]}}]`)
	}
	const exclusive = gpusim.ComputeExclusiveProcess
	return []kind{
		{
			name: "time slices", gpus: []int{2, 3}, slice: gpusim.TimeSliceLong, held: stillPrepared,
			with: []change{interval("Long")}, otherWith: []change{interval("Medium")},
		},
		{
			name: "share", gpus: []int{3}, slice: gpusim.TimeSliceLong, held: `"Long"`,
			settings: []process.Setting{declared(`"enforcement":"none"`)},
			with:     []change{share("0"), interval("Long")}, otherWith: []change{share("0"), interval("Medium")},
		},
		{
			name: "partition", partitions: []string{"0/2g.20gb/4"}, held: stillPrepared, settings: []process.Setting{partitions},
		},
		{
			name: "partitions and a GPU", partitions: []string{"0/2g.20gb/4", "0/1g.10gb/6", "2/3g.40gb/0"}, gpus: []int{1},
			held: stillPrepared, settings: []process.Setting{partitions},
		},
		{
			name: "MPS", gpus: []int{3}, mode: exclusive, daemons: 1, mps: true, held: stillPrepared,
			with: []change{byMPS("GpuConfig")}, otherWith: []change{byMPS("GpuConfig")},
		},
		{
			name: "MPS of two GPUs", gpus: []int{2, 3}, mode: exclusive, daemons: 1, mps: true, held: stillPrepared,
			with: []change{byMPS("GpuConfig")},
		},
		{
			name: "share by MPS", gpus: []int{3}, mode: exclusive, daemons: 1, mps: true,
			settings: []process.Setting{declared(`"enforcement":"mps"`)},
			with:     []change{share("1Gi")}, otherWith: []change{share("2Gi")},
		},
		{
			name: "partition by MPS", partitions: []string{"0/2g.20gb/4"}, daemons: 1, mps: true, held: stillPrepared,
			settings: []process.Setting{partitions}, with: []change{byMPS("MigDeviceConfig")},
		},
	}
}

// byMPS asks for a part of the threads and of the memory.
func byMPS(kind string) change {
	return config(process.Driver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"`+kind+`","sharing":{"strategy":"MPS",
		"mpsConfig":{"defaultActiveThreadPercentage":25,"defaultPinnedDeviceMemoryLimit":"1Gi"}}}`)
}

// flags are what the plugin is run with for the kind.
func (k kind) flags(more ...process.Setting) []process.Setting {
	flags := append([]process.Setting{process.Flag("rescan-interval", "1h")}, more...)
	if k.mps {
		flags = append(flags, process.Flag("mps", "true"))
	}
	return append(flags, k.settings...)
}

// devices are the names of what the claim gets.
func (k kind) devices(b *process.Bed) []string {
	var all []string
	for _, p := range k.partitions {
		part := strings.Split(p, "/")
		gpu, _ := strconv.Atoi(part[0]) // of the table above
		all = append(all, fmt.Sprintf("%s-mig-%s-%s", b.Device(gpu), strings.ReplaceAll(part[1], ".", "-"), part[2]))
	}
	for _, gpu := range k.gpus {
		all = append(all, b.Device(gpu))
	}
	return all
}

// gets allocates devices to a claim.
func gets(devices ...string) change {
	return func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Results = nil
		for _, d := range devices {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Request: process.Request, Driver: process.Driver, Pool: process.NodeName, Device: d})
		}
	}
}

func (k kind) claim(b *process.Bed, name string) kubelet.Claim {
	return b.Allocated(name, nil, append([]change{gets(k.devices(b)...)}, k.with...)...)
}

func (k kind) other(b *process.Bed) kubelet.Claim {
	return b.Allocated("other", nil, append([]change{gets(k.devices(b)[0])}, k.otherWith...)...)
}

// prepare must succeed and leave the hardware as the claim wants it.
func (k kind) prepare(t testing.TB, b *process.Bed, c kubelet.Claim) {
	t.Helper()
	answer, err := b.Prepare(c)
	if err == nil {
		err = k.there(b, c, answer)
	}
	if err != nil {
		t.Fatalf("prepare of claim %s: %v", c.Name, err)
	}
}

// there holds an answer and the hardware against what the claim is to have.
func (k kind) there(b *process.Bed, c kubelet.Claim, answer []kubelet.Device) error {
	var names []string
	for _, d := range answer {
		names = append(names, d.Name)
	}
	if want := k.devices(b); !slices.Equal(names, want) {
		return fmt.Errorf("the answer has %v, not %v", names, want)
	}
	if len(k.partitions) == 0 {
		if err := b.CheckPrepared(c, answer, k.gpus...); err != nil {
			return err
		}
	}
	have, err := partitioned(b)
	if err != nil {
		return err
	}
	if want := slices.Sorted(slices.Values(k.partitions)); !slices.Equal(have, want) {
		return fmt.Errorf("there are the partitions %v, not %v", have, want)
	}
	for _, gpu := range k.gpus {
		if have, err := b.Node.Sharing(gpu); err != nil || have.TimeSlice != k.slice || have.ComputeMode != k.mode {
			return fmt.Errorf("GPU %d is shared as %+v, %w", gpu, have, err)
		}
	}
	return k.served(b, c)
}

// served looks whether the MPS control daemons live to which the claim's CDI spec leads.
func (k kind) served(b *process.Bed, c kubelet.Claim) error {
	spec, err := b.Spec(c)
	if err != nil {
		return err
	}
	pipes := map[string]bool{}
	for _, d := range spec.Devices {
		for _, m := range d.ContainerEdits.Mounts {
			if filepath.Base(m.HostPath) == "pipe" {
				pipes[m.HostPath] = true
			}
		}
	}
	for pipe := range pipes {
		text, err := os.ReadFile(filepath.Join(pipe, "nvidia-cuda-mps-control.pid"))
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, 0); err != nil {
			return fmt.Errorf("control daemon %d of %s: %w", pid, pipe, err)
		}
	}
	if len(pipes) != k.daemons {
		return fmt.Errorf("the CDI spec leads to %v, not to %d control daemons", pipes, k.daemons)
	}
	return nil
}

// partitioned lists the partitions of the node, as kind.partitions has them.
func partitioned(b *process.Bed) ([]string, error) {
	var all []string
	for gpu := range b.Node.GPUCount() {
		instances, err := b.Node.MIGInstances(gpu)
		if err != nil {
			return nil, err
		}
		for _, i := range instances {
			if len(i.Compute) != 1 {
				return nil, fmt.Errorf("GPU %d has %+v", gpu, i)
			}
			all = append(all, fmt.Sprintf("%d/%s/%d", gpu, i.Profile, i.Start))
		}
	}
	slices.Sort(all)
	return all, nil
}

// four is a node with GPUs for all kinds.
func four(f *nodefile.File) { f.GPUs, f.NVLink.Switches = f.GPUs[:4], [][]int{{0, 1, 2, 3}} }

// idle tells what of claims is left on the hardware and in the notes about it.
func idle(b *process.Bed) error {
	for i := range b.Node.GPUCount() {
		sharing, err := b.Node.Sharing(i)
		if err != nil {
			return err
		}
		mode, err := b.Node.MIGMode(i)
		if err != nil {
			return err
		}
		instances, err := b.Node.MIGInstances(i)
		if err != nil {
			return err
		}
		if sharing != (gpusim.Sharing{}) || len(instances) > 0 || mode {
			return fmt.Errorf("GPU %d: %+v, partitions %+v, MIG mode %t", i, sharing, instances, mode)
		}
	}
	for _, pattern := range []string{"mps/daemons/*", "mps/devices/*.json", "mig/*.json", "timeslices/*/*"} {
		left, err := filepath.Glob(filepath.Join(b.DataDir(), pattern))
		if err != nil {
			return err
		}
		// A killed process may leave a file that it was writing; whoever writes there next removes it.
		left = slices.DeleteFunc(left, func(f string) bool { return strings.HasPrefix(filepath.Base(f), ".") })
		if len(left) > 0 {
			return errors.New("left behind: " + strings.Join(left, ", "))
		}
	}
	return nil
}
