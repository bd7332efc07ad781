package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
)

// The calls that change partitions, and those that only changing needs.
const (
	symSetMIGMode  = "nvmlDeviceSetMigMode"
	symCreateGI    = "nvmlDeviceCreateGpuInstanceWithPlacement"
	symGIByID      = "nvmlDeviceGetGpuInstanceById"
	symDestroyGI   = "nvmlGpuInstanceDestroy"
	symCIProfile   = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
	symCreateCI    = "nvmlGpuInstanceCreateComputeInstance"
	symCIByID      = "nvmlGpuInstanceGetComputeInstanceById"
	symCIInfo      = "nvmlComputeInstanceGetInfo_v2"
	symDestroyCI   = "nvmlComputeInstanceDestroy"
	symCompute     = "nvmlDeviceGetComputeRunningProcesses_v3"
	symGraphics    = "nvmlDeviceGetGraphicsRunningProcesses_v3"
	noGPUInstance  = 0xFFFFFFFF
	sharedEngines  = nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
	lastCIProfiles = nvml.COMPUTE_INSTANCE_PROFILE_COUNT
)

// migSymbols are the calls about partitions.
func migSymbols() []string {
	return []string{
		symGIProfile, symGIPlacements, symGIs, symGIInfo, symMIGCount, symMIGByIndex, symGIID, symCIID, symAttributes,
		symSetMIGMode, symCreateGI, symGIByID, symDestroyGI, symCIProfile, symCreateCI, symCIByID, symCIInfo, symDestroyCI,
		symCompute, symGraphics,
	}
}

// MIG reads mode and instances of one GPU anew. Errors are those of Read, inventory.ErrNoSuchGPU
// where another GPU, or none, is at the address, and ErrNotSupported where the board cannot be
// partitioned.
func (l *Library) MIG(ctx context.Context, gpu inventory.GPUID) (inventory.MIG, error) {
	var out inventory.MIG
	err := l.on(ctx, gpu, func(a *session.Asker, d nvml.Device) error {
		mode := migMode(a, d)
		if mode.Err != nil {
			return mode.Err
		}
		out = mode.Value
		driver := session.Ask(a, symDriverVersion, a.Session.API.SystemGetDriverVersion)
		if driver.Err != nil {
			return driver.Err
		}
		read := l.partitions.of(a, d, profilesKey{gpu.UUID, driver.Value})
		if read.Err != nil {
			return read.Err
		}
		out.Profiles = read.Value
		if !out.Enabled {
			return nil
		}
		found := instances(a, d, read.Value)
		out.Instances = found.Value
		return found.Err
	})
	return out, err
}

// SetMIGMode switches the mode and returns when it is in force. inventory.ErrNeedsReset tells
// that it waits for a reset, and then the mode that is pending has changed; ErrInUse that
// something uses the GPU. The GPU's minor number may be another one afterwards.
func (l *Library) SetMIGMode(ctx context.Context, gpu inventory.GPUID, on bool) error {
	mode := nvml.DEVICE_MIG_DISABLE
	if on {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	return l.on(ctx, gpu, func(a *session.Asker, d nvml.Device) error {
		// The first result is the fate of the mode, the second that of the call.
		return session.Ask(a, symSetMIGMode, func() (struct{}, nvml.Return) {
			activation, ret := d.SetMigMode(mode)
			if ret == nvml.SUCCESS {
				ret = activation
			}
			return struct{}{}, ret
		}).Err
	})
}

// CreateGPUInstance makes a GPU instance and gives its id. inventory.ErrNoRoom is NVML's answer
// to a placement that is taken, as well as to too many instances.
func (l *Library) CreateGPUInstance(ctx context.Context, gpu inventory.GPUID, profile int, at inventory.MIGPlacement) (id int, err error) {
	err = l.on(ctx, gpu, func(a *session.Asker, d nvml.Device) error {
		made := session.Ask(a, symCreateGI, func() (nvml.GpuInstance, nvml.Return) {
			return d.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: uint32(profile)},
				&nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
		})
		if made.Err != nil {
			return made.Err
		}
		info := session.Ask(a, symGIInfo, made.Value.GetInfo)
		id = int(info.Value.Id)
		return info.Err
	})
	return id, err
}

// CreateComputeInstance makes the compute instance that has all of a GPU instance, and gives its
// id.
func (l *Library) CreateComputeInstance(ctx context.Context, gpu inventory.GPUID, instance int) (id int, err error) {
	err = l.onInstance(ctx, gpu, instance, func(a *session.Asker, gi nvml.GpuInstance) error {
		whole, err := wholeCompute(a, gi)
		if err != nil {
			return err
		}
		made := session.Ask(a, symCreateCI, func() (nvml.ComputeInstance, nvml.Return) { return gi.CreateComputeInstance(&whole) })
		if made.Err != nil {
			return made.Err
		}
		info := session.Ask(a, symCIInfo, made.Value.GetInfo)
		id = int(info.Value.Id)
		return info.Err
	})
	return id, err
}

// wholeCompute finds the profile of the compute instance that spans a GPU instance: the one
// with the most slices, the plain one of several.
func wholeCompute(a *session.Asker, gi nvml.GpuInstance) (nvml.ComputeInstanceProfileInfo, error) {
	var whole nvml.ComputeInstanceProfileInfo
	for number := range lastCIProfiles {
		info := session.Ask(a, symCIProfile, func() (nvml.ComputeInstanceProfileInfo, nvml.Return) {
			return gi.GetComputeInstanceProfileInfo(number, sharedEngines)
		})
		switch {
		case session.HasCode(info.Err, nvml.ERROR_INVALID_ARGUMENT), session.HasCode(info.Err, nvml.ERROR_NOT_SUPPORTED):
		case info.Err != nil:
			return whole, info.Err
		case info.Value.SliceCount > whole.SliceCount:
			whole = info.Value
		}
	}
	if whole.SliceCount == 0 {
		return whole, errors.New("NVML reports no profile of a compute instance that could span the GPU instance")
	}
	return whole, nil
}

// DestroyComputeInstance removes a compute instance: inventory.ErrInUse while a program uses it,
// ErrNoSuchGPU where there is none.
func (l *Library) DestroyComputeInstance(ctx context.Context, gpu inventory.GPUID, instance, compute int) error {
	return l.onInstance(ctx, gpu, instance, func(a *session.Asker, gi nvml.GpuInstance) error {
		ci := session.Ask(a, symCIByID, func() (nvml.ComputeInstance, nvml.Return) { return gi.GetComputeInstanceById(compute) })
		if ci.Err != nil {
			return ci.Err
		}
		return session.Ask(a, symDestroyCI, func() (struct{}, nvml.Return) { return struct{}{}, ci.Value.Destroy() }).Err
	})
}

// DestroyGPUInstance removes a GPU instance: inventory.ErrInUse while it has a compute instance,
// ErrNoSuchGPU where there is none.
func (l *Library) DestroyGPUInstance(ctx context.Context, gpu inventory.GPUID, instance int) error {
	return l.onInstance(ctx, gpu, instance, func(a *session.Asker, gi nvml.GpuInstance) error {
		return session.Ask(a, symDestroyGI, func() (struct{}, nvml.Return) { return struct{}{}, gi.Destroy() }).Err
	})
}

// Processes lists the programs that use a GPU, partitions included, as far as NVML tells.
func (l *Library) Processes(ctx context.Context, gpu inventory.GPUID) ([]inventory.Process, error) {
	var out []inventory.Process
	err := l.on(ctx, gpu, func(a *session.Asker, d nvml.Device) error {
		for symbol, call := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){
			symCompute: d.GetComputeRunningProcesses, symGraphics: d.GetGraphicsRunningProcesses,
		} {
			list := session.Ask(a, symbol, call)
			if err := unlessNotSupported(list.Err); err != nil {
				return err
			}
			for _, p := range list.Value {
				process := inventory.Process{PID: int(p.Pid), Instance: -1}
				if p.GpuInstanceId != noGPUInstance {
					process.Instance = int(p.GpuInstanceId)
				}
				out = append(out, process)
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b inventory.Process) int { return a.PID - b.PID })
	return slices.Compact(out), err
}

func unlessNotSupported(err error) error {
	if errors.Is(err, inventory.ErrNotSupported) {
		return nil
	}
	return err
}

// on runs f with the GPU's handle. Several may run at once on different GPUs, also beside a
// reading; the watchdog keeps calls about one GPU one after the other.
func (l *Library) on(ctx context.Context, gpu inventory.GPUID, f func(*session.Asker, nvml.Device) error) error {
	s, release, err := l.Borrow(ctx)
	if err != nil {
		return err
	}
	defer release()
	a := s.About(ctx, gpu.PCI.String())
	handle := session.Ask(a, symHandleByPCI, func() (nvml.Device, nvml.Return) { return s.API.DeviceGetHandleByPciBusId(gpu.PCI.String()) })
	if handle.Err != nil {
		return handle.Err
	}
	uuid := session.Ask(a, symUUID, handle.Value.GetUUID)
	if uuid.Err != nil {
		return uuid.Err
	}
	if uuid.Value != gpu.UUID {
		return fmt.Errorf("the GPU at %s is %s, not %s: %w", gpu.PCI, uuid.Value, gpu.UUID, inventory.ErrNoSuchGPU)
	}
	return f(a, handle.Value)
}

func (l *Library) onInstance(ctx context.Context, gpu inventory.GPUID, instance int, f func(*session.Asker, nvml.GpuInstance) error) error {
	return l.on(ctx, gpu, func(a *session.Asker, d nvml.Device) error {
		gi := session.Ask(a, symGIByID, func() (nvml.GpuInstance, nvml.Return) { return d.GetGpuInstanceById(instance) })
		if gi.Err != nil {
			return gi.Err
		}
		return f(a, gi.Value)
	})
}
