package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Limits of MIG capability minors: the kernel driver numbers them for every GPU, GPU
// instance and compute instance that could exist.
const (
	capGPUs             = 32
	capGPUInstances     = 15
	capComputeInstances = 8
)

func (b *Builder) proc() error {
	dir := filepath.Join(b.Proc(), "driver", "nvidia")
	version := fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (simulated)\n"+
		"GCC version:  gcc version 12.2.0 (simulated)\n", kernelArch(), b.Version)
	if b.has("procVersion") {
		if err := write(filepath.Join(dir, "version"), version); err != nil {
			return err
		}
	}
	files := map[string]string{
		filepath.Join(dir, "params"):                   "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
		filepath.Join(dir, "capabilities/mig/config"):  accessFile(1, 0o400),
		filepath.Join(dir, "capabilities/mig/monitor"): accessFile(2, 0o444),
		filepath.Join(b.Proc(), "devices"):             b.devicesFile(),
	}
	if b.has("migMinors") {
		files[filepath.Join(b.Proc(), "driver/nvidia-caps/mig-minors")] = migMinors()
	}
	for path, content := range files {
		if err := write(path, content); err != nil {
			return err
		}
	}
	return errors.Join(b.bootID(), b.ProcGPUs())
}

// bootID draws a new boot id, as the kernel does.
func (b *Builder) bootID() error {
	return write(filepath.Join(b.Proc(), "sys/kernel/random/boot_id"), uuid.NewString()+"\n")
}

// ProcGPUs writes the information file and the capability directory of every GPU anew.
func (b *Builder) ProcGPUs() error {
	old, err := filepath.Glob(filepath.Join(b.Proc(), "driver/nvidia/capabilities/gpu*"))
	if err != nil {
		return err
	}
	for _, dir := range append(old, filepath.Join(b.Proc(), "driver/nvidia/gpus")) {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	for i := range b.Node.GPUs {
		if err := b.procGPU(&b.Node.GPUs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Builder) procGPU(gpu *nodefile.ResolvedGPU) error {
	lines := []string{
		"Model: \t\t " + gpu.Board.Product,
		"IRQ:   \t\t 18",
		"GPU UUID: \t " + gpu.UUID,
		"Video BIOS: \t " + gpu.Board.VBIOS,
		"Bus Type: \t PCIe",
		"DMA Size: \t 52 bits",
		"DMA Mask: \t 0xfffffffffffff",
		"Bus Location: \t " + gpu.PCI.String(),
		fmt.Sprintf("Device Minor: \t %d", gpu.Minor),
		"GPU Firmware: \t " + b.Version,
		"GPU Excluded:\t No",
	}
	path := filepath.Join(b.Proc(), "driver/nvidia/gpus", gpu.PCI.String(), "information")
	if err := write(path, strings.Join(lines, "\n")+"\n"); err != nil {
		return err
	}
	if gpu.Board.MIG == nil {
		return nil
	}
	return os.MkdirAll(filepath.Join(b.capabilities(gpu), "mig"), 0o755)
}

func (b *Builder) capabilities(gpu *nodefile.ResolvedGPU) string {
	return filepath.Join(b.Proc(), "driver/nvidia/capabilities", fmt.Sprintf("gpu%d", gpu.Minor))
}

func kernelArch() string {
	if Triplet() == "aarch64-linux-gnu" {
		return "aarch64"
	}
	return "x86_64"
}

func accessFile(minor, mode int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode)
}

// devicesFile lists the majors that the device nodes have.
func (b *Builder) devicesFile() string {
	m := b.Node.Majors
	return fmt.Sprintf("Character devices:\n  1 mem\n  5 /dev/tty\n%3d nvidia\n%3d nvidia-modeset\n%3d nvidiactl\n%3d nvidia-caps\n%3d nvidia-uvm\n\nBlock devices:\n  8 sd\n",
		m.GPU, m.GPU, m.GPU, m.Caps, m.UVM)
}

// CapMinor returns the minor of the nvidia-cap node of a GPU instance or, with a compute
// instance that is not negative, of that.
func CapMinor(gpuMinor, gpuInstance, computeInstance int) int {
	base := 3 + 135*gpuMinor + 9*gpuInstance
	if computeInstance < 0 {
		return base
	}
	return base + 1 + computeInstance
}

// migMinors is the table that the kernel driver offers: name and minor of every capability.
func migMinors() string {
	var out strings.Builder
	out.WriteString("config 1\nmonitor 2\n")
	for g := range capGPUs {
		for gi := range capGPUInstances {
			fmt.Fprintf(&out, "gpu%d/gi%d/access %d\n", g, gi, CapMinor(g, gi, -1))
			for ci := range capComputeInstances {
				fmt.Fprintf(&out, "gpu%d/gi%d/ci%d/access %d\n", g, gi, ci, CapMinor(g, gi, ci))
			}
		}
	}
	return out.String()
}
