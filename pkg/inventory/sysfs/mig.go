package sysfs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/gpu-dra/driver/pkg/pci"
)

// GPUMinor is the number of a GPU's device node at this moment, from
// <proc>/driver/nvidia/gpus/<address>/information. It may change with a switch of the MIG mode.
func (t *Tree) GPUMinor(ctx context.Context, at pci.Address) (int, error) {
	data, err := t.procFile(ctx, "driver/nvidia/gpus/"+at.String()+"/information")
	if err != nil {
		return 0, fmt.Errorf("minor number of GPU %s: %w", at, err)
	}
	minor, err := ParseField(data, "Device Minor")
	if err != nil {
		return 0, fmt.Errorf("minor number of GPU %s: %w", at, err)
	}
	return minor, nil
}

// InstanceCapabilities are the minor numbers of the capability nodes that open a GPU instance
// and one of its compute instances to a program, from the access files that the kernel driver
// shows while they exist. fs.ErrNotExist tells that there is no such instance. The number that
// the files give is held against the driver's own table and the rule by which it numbers.
func (t *Tree) InstanceCapabilities(ctx context.Context, gpuMinor, gpuInstance, computeInstance int) (gi, ci int, err error) {
	name := fmt.Sprintf("gpu%d/gi%d", gpuMinor, gpuInstance)
	gi, err = t.capability(ctx, name, capabilityMinor(gpuMinor, gpuInstance, -1))
	if err != nil {
		return 0, 0, err
	}
	ci, err = t.capability(ctx, fmt.Sprintf("%s/ci%d", name, computeInstance), capabilityMinor(gpuMinor, gpuInstance, computeInstance))
	return gi, ci, err
}

// capability reads one access file. A driver that numbers by another rule says so in its table.
func (t *Tree) capability(ctx context.Context, name string, expected int) (int, error) {
	gpu, instance, _ := strings.Cut(name, "/")
	data, err := t.procFile(ctx, "driver/nvidia/capabilities/"+gpu+"/mig/"+instance+"/access")
	if err != nil {
		return 0, fmt.Errorf("capability of %s: %w", name, err)
	}
	minor, err := ParseField(data, "DeviceFileMinor")
	if err != nil {
		return 0, fmt.Errorf("capability of %s: %w", name, err)
	}
	if minor == expected {
		return minor, nil
	}
	table, err := t.procFile(ctx, "driver/nvidia-caps/mig-minors")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("capability of %s has minor number %d, %d was expected, and there is no table mig-minors to decide", name, minor, expected)
	}
	if err != nil {
		return 0, fmt.Errorf("capability of %s: %w", name, err)
	}
	if listed, ok := ParseMIGMinors(table)[name+"/access"]; !ok || listed != minor {
		return 0, fmt.Errorf("capability of %s has minor number %d by its access file and %d by mig-minors", name, minor, listed)
	}
	return minor, nil
}

// capabilityMinor is the rule of the open kernel modules and of the MIG user guide ("Device
// nodes and capabilities"): config 1, monitor 2, then for each of 32 GPUs 15 GPU instances with
// one number for itself and 8 for its compute instances.
func capabilityMinor(gpuMinor, gpuInstance, computeInstance int) int {
	const (
		firstGPU    = 3
		perInstance = 1 + 8
		perGPU      = 15 * perInstance
	)
	minor := firstGPU + perGPU*gpuMinor + perInstance*gpuInstance
	if computeInstance < 0 {
		return minor
	}
	return minor + 1 + computeInstance
}

// ParseField finds the number of a "Name: number" line of a file of the NVIDIA kernel driver.
func ParseField(data []byte, name string) (int, error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if !ok || strings.TrimSpace(key) != name {
			continue
		}
		number, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31)
		if err != nil {
			return 0, fmt.Errorf("%s is %q, not a number: %w", name, strings.TrimSpace(value), err)
		}
		return int(number), nil
	}
	return 0, fmt.Errorf("there is no line %q", name+":")
}

// ParseMIGMinors reads the kernel driver's table of capabilities, lines of "gpu0/gi1/access 12".
// Other lines are skipped; of two with one name the first counts.
func ParseMIGMinors(data []byte) map[string]int {
	table := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, number, ok := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		minor, err := strconv.ParseUint(number, 10, 31)
		if !ok || err != nil {
			continue
		}
		if _, taken := table[name]; !taken {
			table[name] = int(minor)
		}
	}
	return table
}
