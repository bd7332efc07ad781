// Package memlimits has the GPU driver limit how much of a GPU's memory the processes of a cgroup
// can have: nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryLimits_v1, which came with CUDA
// 13.4. It is for sharing with limits by the driver. It must not know claims, nor which cgroup is
// whose.
//
// By nvml.h such a limit needs root, is not for MIG devices, names a cgroup by the full path of
// its directory, and goes with the cgroup.
package memlimits

import (
	"context"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
)

// The C functions that this package calls.
const (
	symHandle = "nvmlDeviceGetHandleByPciBusId_v2"
	symUUID   = "nvmlDeviceGetUUID"
	symSet    = "nvmlDeviceSetMemoryLimits_v1"
	symGet    = "nvmlDeviceGetMemoryLimits_v1"
)

// Calls are the C functions that the library must look for: nvml.Options.Calls.
func Calls() []string { return []string{symHandle, symUUID, symSet, symGet} }

// Lender lends the process's session with the driver; nvml.Library does.
type Lender interface {
	Lend(ctx context.Context) (session.Loan, func(), error)
}

// Limiter asks the driver in the lender's session.
type Limiter struct{ Lender Lender }

// Check tells whether the driver can limit memory on a GPU: nil, or an error that wraps
// inventory.ErrNotSupported where it cannot, or another one where that is not known. The cgroup is
// any that there is; nothing is changed.
func (l Limiter) Check(ctx context.Context, gpu inventory.GPUID, cgroup string) error {
	return l.on(ctx, gpu, symGet, func(d gonvml.Device) gonvml.Return {
		_, ret := d.GetMemoryLimits_v1(cgroup)
		if ret == gonvml.ERROR_NOT_FOUND {
			return gonvml.SUCCESS // the cgroup has none, and could
		}
		return ret
	})
}

// Set limits the memory of a GPU that the processes of a cgroup can have together, in bytes, which
// is as much guaranteed to them, and reads the limit back. Errors are those of a session's call,
// inventory.ErrNoSuchGPU where another GPU is there, and those of the driver:
// inventory.ErrNotSupported, or a cgroup that cannot be opened.
func (l Limiter) Set(ctx context.Context, gpu inventory.GPUID, cgroup string, bytes uint64) error {
	err := l.on(ctx, gpu, symSet, func(d gonvml.Device) gonvml.Return { return d.SetMemoryLimits_v1(cgroup, bytes, bytes) })
	if err != nil {
		return err
	}
	got := make(chan uint64, 1)
	err = l.on(ctx, gpu, symGet, func(d gonvml.Device) gonvml.Return {
		limits, ret := d.GetMemoryLimits_v1(cgroup)
		got <- limits.HardLimit
		return ret
	})
	if err != nil {
		return err
	}
	if have := <-got; have != bytes {
		return fmt.Errorf("the driver was given a limit of %d bytes for %s on GPU %s and has one of %d", bytes, cgroup, gpu.PCI, have)
	}
	return nil
}

// on makes a call about a GPU, if it is still the one that is meant.
func (l Limiter) on(ctx context.Context, gpu inventory.GPUID, call string, f func(gonvml.Device) gonvml.Return) error {
	s, giveBack, err := l.Lender.Lend(ctx)
	if err != nil {
		return err
	}
	defer giveBack()
	if missing := missing(s); missing != "" {
		return fmt.Errorf("the GPU driver has no %s, which came with CUDA 13.4: %w", missing, inventory.ErrNotSupported)
	}
	found := make(chan string, 1)
	err = s.Call(ctx, gpu.PCI.String(), call, func(api session.API) session.Return {
		d, ret := api.DeviceGetHandleByPciBusId(gpu.PCI.String())
		if ret != gonvml.SUCCESS {
			return ret
		}
		uuid, ret := d.GetUUID()
		if ret != gonvml.SUCCESS {
			return ret
		}
		found <- uuid
		if uuid != gpu.UUID {
			return gonvml.SUCCESS
		}
		return f(d)
	})
	if err != nil {
		return err
	}
	if uuid := <-found; uuid != gpu.UUID {
		return fmt.Errorf("the GPU at %s is %s, not %s: %w", gpu.PCI, uuid, gpu.UUID, inventory.ErrNoSuchGPU)
	}
	return nil
}

// missing names a call that the driver's library lacks.
func missing(s session.Loan) string {
	for _, call := range []string{symSet, symGet} {
		if !s.Has(call) {
			return call
		}
	}
	return ""
}
