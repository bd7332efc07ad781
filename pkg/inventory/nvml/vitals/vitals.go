// Package vitals reads how GPUs are through NVML: the errors that the driver reports, as they come,
// and what can be asked for: the recovery that a GPU needs, the state of its memory, its links, and
// what people like to see. It is for the health monitor. It judges nothing.
package vitals

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
)

// The C functions that this package calls.
const (
	symHandle    = "nvmlDeviceGetHandleByPciBusId_v2"
	symUUID      = "nvmlDeviceGetUUID"
	symFields    = "nvmlDeviceGetFieldValues"
	symMemory    = "nvmlDeviceGetMemoryInfo"
	symRemapped  = "nvmlDeviceGetRemappedRows"
	symRetired   = "nvmlDeviceGetRetiredPagesPendingStatus"
	symECC       = "nvmlDeviceGetTotalEccErrors"
	symLinkState = "nvmlDeviceGetNvLinkState"
	symLinkError = "nvmlDeviceGetNvLinkErrorCounter"
	symHeat      = "nvmlDeviceGetTemperature"
	symPower     = "nvmlDeviceGetPowerUsage"
	symBusy      = "nvmlDeviceGetUtilizationRates"

	symSetCreate = "nvmlEventSetCreate"
	symSetFree   = "nvmlEventSetFree"
	symRegister  = "nvmlDeviceRegisterEvents"
	symSupported = "nvmlDeviceGetSupportedEventTypes"
	symWait      = "nvmlEventSetWait_v2"
)

// Calls are the C functions that the library must look for: nvml.Options.Calls.
func Calls() []string {
	return []string{
		symHandle, symUUID, symFields, symMemory, symRemapped, symRetired, symECC, symLinkState, symLinkError,
		symHeat, symPower, symBusy, symMIGMode, symMIGCount, symMIGByIndex, symSetCreate, symSetFree, symRegister, symSupported, symWait,
	}
}

// Lender lends the process's session with the driver; nvml.Library does.
type Lender interface {
	Lend(ctx context.Context) (session.Loan, func(), error)
}

// Reader reads GPUs in the lender's session.
type Reader struct {
	Lender Lender
	// Retry is how long a GPU has to be registered for what the driver reports, and how long after a
	// failure that is tried again; zero for the default, 10 s.
	Retry time.Duration
	// Turn is how long one wait for events lasts while none comes; zero for the default, 5 s.
	Turn time.Duration
}

// Read reads one GPU. Links is how many NVLinks it has. What goes wrong is in the result.
func (r Reader) Read(ctx context.Context, gpu inventory.GPUID, links int) health.Vitals {
	s, giveBack, err := r.Lender.Lend(ctx)
	if err != nil {
		return health.Vitals{Err: err}
	}
	defer giveBack()
	v := new(health.Vitals)
	// One call of many: who waits for a GPU that hangs waits once.
	err = s.Call(ctx, gpu.PCI.String(), symHandle, func(api session.API) session.Return {
		d, ret := api.DeviceGetHandleByPciBusId(gpu.PCI.String())
		if ret != gonvml.SUCCESS {
			return ret
		}
		uuid, ret := d.GetUUID()
		if ret != gonvml.SUCCESS {
			return ret
		}
		if uuid != gpu.UUID {
			v.Err = fmt.Errorf("the GPU at %s is %s, not %s: %w", gpu.PCI, uuid, gpu.UUID, inventory.ErrNoSuchGPU)
			return gonvml.SUCCESS
		}
		readAll(asked{s, d}, links, v)
		return gonvml.SUCCESS
	})
	if err != nil {
		// What is left behind may still write into v.
		return health.Vitals{Err: err}
	}
	return *v
}

// asked is a device within one watched call.
type asked struct {
	session session.Loan
	gonvml.Device
}

func get[T any](a asked, symbol string, call func() (T, gonvml.Return)) inventory.Fact[T] {
	if !a.session.Has(symbol) {
		return inventory.Unknown[T](fmt.Errorf("%s: %w", symbol, inventory.ErrNotSupported))
	}
	value, ret := call()
	return inventory.Fact[T]{Value: value, Err: session.Failure(symbol, ret)}
}

// readAll fills in everything, and Err where the GPU went away on the way.
func readAll(a asked, links int, v *health.Vitals) {
	v.Recovery = get(a, symFields, func() (int, gonvml.Return) { return field(a, gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION) })
	readMemory(a, v)
	v.LinkErrors = linkErrors(a, links)
	v.CelsiusDegrees = get(a, symHeat, func() (int, gonvml.Return) {
		t, ret := a.GetTemperature(gonvml.TEMPERATURE_GPU)
		return int(t), ret
	})
	v.PowerMilliwatts = get(a, symPower, func() (int, gonvml.Return) {
		p, ret := a.GetPowerUsage()
		return int(p), ret
	})
	busy := get(a, symBusy, a.GetUtilizationRates)
	v.GPUUtilization = inventory.Fact[int]{Value: int(busy.Value.Gpu), Err: busy.Err}
	v.Partitions = partitions(a)
	v.MemoryBusUtilization = inventory.Fact[int]{Value: int(busy.Value.Memory), Err: busy.Err}
	for _, err := range []error{v.Recovery.Err, v.MemoryTotal.Err, v.CelsiusDegrees.Err} {
		if errors.Is(err, inventory.ErrLost) {
			v.Err = err
		}
	}
}

func readMemory(a asked, v *health.Vitals) {
	memory := get(a, symMemory, a.GetMemoryInfo)
	v.MemoryUsed = inventory.Fact[uint64]{Value: memory.Value.Used, Err: memory.Err}
	v.MemoryTotal = inventory.Fact[uint64]{Value: memory.Value.Total, Err: memory.Err}
	type rows struct{ pending, failed bool }
	remapped := get(a, symRemapped, func() (rows, gonvml.Return) {
		_, _, pending, failed, ret := a.GetRemappedRows()
		return rows{pending, failed}, ret
	})
	v.RemapPending = inventory.Fact[bool]{Value: remapped.Value.pending, Err: remapped.Err}
	v.RemapFailed = inventory.Fact[bool]{Value: remapped.Value.failed, Err: remapped.Err}
	v.RetirementPending = get(a, symRetired, func() (bool, gonvml.Return) {
		pending, ret := a.GetRetiredPagesPendingStatus()
		return pending == gonvml.FEATURE_ENABLED, ret
	})
	v.Corrected = get(a, symECC, func() (uint64, gonvml.Return) {
		return a.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_CORRECTED, gonvml.VOLATILE_ECC)
	})
	v.Uncorrected = get(a, symECC, func() (uint64, gonvml.Return) {
		return a.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.VOLATILE_ECC)
	})
}

// field reads an unsigned int by its number.
func field(a asked, id uint32) (int, gonvml.Return) {
	values := []gonvml.FieldValue{{FieldId: id}}
	if ret := a.GetFieldValues(values); ret != gonvml.SUCCESS {
		return 0, ret
	}
	// NVML's unions are in the machine's byte order.
	return int(binary.NativeEndian.Uint32(values[0].Value[:4])), gonvml.Return(values[0].NvmlReturn)
}

// linkErrors adds up what the links that are up count.
func linkErrors(a asked, links int) inventory.Fact[uint64] {
	if links == 0 || !a.session.Has(symLinkState) {
		return inventory.Unknown[uint64](inventory.ErrNotSupported)
	}
	return get(a, symLinkError, func() (uint64, gonvml.Return) {
		var sum uint64
		for link := range links {
			if state, ret := a.GetNvLinkState(link); ret != gonvml.SUCCESS || state != gonvml.FEATURE_ENABLED {
				continue
			}
			for _, counter := range []gonvml.NvLinkErrorCounter{
				gonvml.NVLINK_ERROR_DL_REPLAY, gonvml.NVLINK_ERROR_DL_RECOVERY, gonvml.NVLINK_ERROR_DL_CRC_FLIT,
			} {
				n, ret := a.GetNvLinkErrorCounter(link, counter)
				if ret != gonvml.SUCCESS {
					return 0, ret
				}
				sum += n
			}
		}
		return sum, gonvml.SUCCESS
	})
}
