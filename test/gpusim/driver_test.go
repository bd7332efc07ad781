package gpusim_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

func TestDriverAbsentAndBack(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	address := node.Spec().GPUs[1].PCI.String()
	bound := filepath.Join(node.SysRoot(), "bus/pci/devices", address, "driver")
	before, err := os.Readlink(bound)
	do(t, err)
	do(t, node.RemoveGPU(2))
	do(t, node.RemoveDriver())
	entries, err := os.ReadDir(node.DriverRoot())
	if err != nil || len(entries) != 1 || entries[0].Name() != "proc" {
		t.Errorf("driver root without a driver holds %v, %v; want proc alone", entries, err)
	}
	for _, gone := range []string{bound, filepath.Join(node.ProcRoot(), "driver/nvidia"), filepath.Join(node.SysRoot(), "bus/pci/drivers/nvidia", address)} {
		if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s without a driver: %v, want it gone", gone, err)
		}
	}
	for _, kept := range []string{filepath.Join(node.ProcRoot(), "devices"), filepath.Join(filepath.Dir(bound), "vendor")} {
		if _, err := os.Stat(kept); err != nil {
			t.Errorf("what the machine has without a driver: %v", err)
		}
	}
	do(t, node.RestoreDriver())
	if after, err := os.Readlink(bound); err != nil || after != before {
		t.Errorf("the board is bound to %q, %v; want %q as before", after, err, before)
	}
	if _, err := os.Stat(filepath.Join(bound, address)); err != nil {
		t.Errorf("the driver does not list its board: %v", err)
	}
	removed := filepath.Join(node.SysRoot(), "bus/pci/devices", node.Spec().GPUs[2].PCI.String())
	if _, err := os.Lstat(removed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a board that left came with the driver: %v", err)
	}
	s := start(t, node, 1)
	s.want("uuid 0", node.UUIDs()[0])
}

func TestNoControlNodeMeansNoDriver(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, os.Remove(filepath.Join(node.DevRoot(), "dev/nvidiactl")))
	openSession(t, node).want("init", notLoaded)
}

func TestMachineWithoutGPUs(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) { f.GPUs = nil }))
	s := openSession(t, node)
	s.want("init", ok)
	s.want("count", "0")
	s.want("handle 0", invalid)
}

func TestRebootPermutesMinorsAndForgetsModes(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	s := start(t, node, 8)
	s.want("setcompute 3 3", ok)
	s.want("setpersistence 3 0", ok)
	s.want("compute 3", "3")
	do(t, node.LoseGPU(1))
	do(t, node.Reboot(7))
	s = start(t, node, 8)
	s.want("compute 3", "0")
	moved := 0
	for i, uuid := range node.UUIDs() {
		s.want(fmt.Sprintf("uuid %d", i), uuid)
		minor := s.ask(fmt.Sprintf("minor %d", i))
		if minor != fmt.Sprint(i) {
			moved++
		}
		if _, err := os.Stat(filepath.Join(node.DevRoot(), "dev/nvidia"+minor)); err != nil {
			t.Errorf("device node of GPU %d: %v", i, err)
		}
	}
	if moved == 0 {
		t.Error("no minor number moved")
	}
	again, err := gpusim.Open(node.Dir())
	do(t, err)
	s.want("minor 5", fmt.Sprint(again.Spec().GPUs[5].Minor))
}

func TestRebootBringsEverythingBack(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	bootID := func() string {
		text, err := os.ReadFile(filepath.Join(node.ProcRoot(), "sys/kernel/random/boot_id"))
		do(t, err)
		return string(text)
	}
	before := bootID()
	do(t, node.RemoveGPU(2))
	do(t, node.Reboot(0))
	if bootID() == before {
		t.Error("the boot id did not change")
	}
	if _, err := os.Stat(filepath.Join(node.SysRoot(), "bus/pci/devices", node.Spec().GPUs[2].PCI.String(), "vendor")); err != nil {
		t.Errorf("the removed GPU after a reboot: %v", err)
	}
	s := start(t, node, 3)
	s.want("uuid 2", node.UUIDs()[2])
	s.want("minor 2", "2")
}
