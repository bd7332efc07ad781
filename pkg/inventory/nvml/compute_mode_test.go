package nvml_test

import (
	"errors"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/test/gpusim"
)

// A mode is that of one GPU, and of one MIG device on it; what is not there is told.
func TestComputeMode(t *testing.T) {
	m := cut(t, "hgx-h100-8")
	gpu, other := m.id(t, 0), m.id(t, 1)
	want := func(gpu inventory.GPUID, partition string, mode inventory.ComputeMode) {
		t.Helper()
		if got, err := m.library.ComputeMode(t.Context(), gpu, partition); got != mode || err != nil {
			t.Errorf("mode of %s %s is %s, %v, want %s", gpu.PCI, partition, got, err, mode)
		}
	}
	want(gpu, "", inventory.ComputeDefault)
	do(t, m.library.SetComputeMode(t.Context(), gpu, "", inventory.ComputeExclusiveProcess))
	want(gpu, "", inventory.ComputeExclusiveProcess)
	want(other, "", inventory.ComputeDefault)

	do(t, m.SetMIGMode(1, true))
	made, err := m.CreateMIG(1, "1g.10gb", gpusim.AnyStart)
	do(t, err)
	uuid := made.Compute[0].UUID
	if err := m.library.SetComputeMode(t.Context(), other, "", inventory.ComputeProhibited); !errors.Is(err, inventory.ErrNotSupported) {
		t.Errorf("the parent in MIG mode: %v", err)
	}
	do(t, m.library.SetComputeMode(t.Context(), other, uuid, inventory.ComputeExclusiveProcess))
	want(other, uuid, inventory.ComputeExclusiveProcess)

	do(t, m.DestroyMIG(1, made.ID))
	if _, err := m.library.ComputeMode(t.Context(), other, uuid); !errors.Is(err, inventory.ErrNoSuchGPU) {
		t.Errorf("a MIG device that is gone: %v", err)
	}
	gpu.UUID = "GPU-another"
	if err := m.library.SetComputeMode(t.Context(), gpu, "", inventory.ComputeDefault); !errors.Is(err, inventory.ErrNoSuchGPU) {
		t.Errorf("a board that was swapped: %v", err)
	}
	do(t, m.LoseGPU(0))
	if _, err := m.library.ComputeMode(t.Context(), inventory.GPUID{PCI: gpu.PCI, UUID: m.UUIDs()[0]}, ""); !errors.Is(err, inventory.ErrLost) {
		t.Errorf("a lost GPU: %v", err)
	}
}

func TestComputeModesHaveNvidiaSmisNames(t *testing.T) {
	for mode, name := range map[inventory.ComputeMode]string{
		inventory.ComputeDefault: "DEFAULT", inventory.ComputeProhibited: "PROHIBITED",
		inventory.ComputeExclusiveProcess: "EXCLUSIVE_PROCESS", 1: "mode 1",
	} {
		if mode.String() != name {
			t.Errorf("%d is %q, want %q", int(mode), mode, name)
		}
	}
}
