package nvml

import (
	"context"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
)

// The calls about compute modes.
const (
	symComputeMode    = "nvmlDeviceGetComputeMode"
	symSetComputeMode = "nvmlDeviceSetComputeMode"
	symHandleByUUID   = "nvmlDeviceGetHandleByUUID"
)

// modeSymbols are the calls about compute modes.
func modeSymbols() []string { return []string{symComputeMode, symSetComputeMode, symHandleByUUID} }

// ComputeMode reads the compute mode of a GPU, or of the MIG device on it with that UUID; empty
// for the GPU. Errors are those of Read, inventory.ErrNoSuchGPU where the GPU or the MIG device
// is not there, and ErrNotSupported where it has no such mode.
func (l *Library) ComputeMode(ctx context.Context, gpu inventory.GPUID, partition string) (inventory.ComputeMode, error) {
	var mode inventory.Fact[nvml.ComputeMode]
	err := l.onDevice(ctx, gpu, partition, func(a *session.Asker, d nvml.Device) error {
		mode = session.Ask(a, symComputeMode, d.GetComputeMode)
		return mode.Err
	})
	return inventory.ComputeMode(mode.Value), err
}

// SetComputeMode sets it; errors are those of ComputeMode. It lasts until the driver lets go of
// the GPU, at the latest until a reboot.
func (l *Library) SetComputeMode(ctx context.Context, gpu inventory.GPUID, partition string, mode inventory.ComputeMode) error {
	return l.onDevice(ctx, gpu, partition, func(a *session.Asker, d nvml.Device) error {
		return session.Ask(a, symSetComputeMode, func() (struct{}, nvml.Return) {
			return struct{}{}, d.SetComputeMode(nvml.ComputeMode(mode))
		}).Err
	})
}

// onDevice is on for a GPU or for a MIG device on it.
func (l *Library) onDevice(ctx context.Context, gpu inventory.GPUID, partition string, f func(*session.Asker, nvml.Device) error) error {
	return l.on(ctx, gpu, func(a *session.Asker, d nvml.Device) error {
		if partition == "" {
			return f(a, d)
		}
		handle := session.Ask(a, symHandleByUUID, func() (nvml.Device, nvml.Return) { return a.Session.API.DeviceGetHandleByUUID(partition) })
		if handle.Err != nil {
			return handle.Err
		}
		return f(a, handle.Value)
	})
}
