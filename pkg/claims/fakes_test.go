package claims

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/pci"
)

const (
	ourDriver = "gpu.nvidia.com"
	ourPool   = "node-a"
)

// board is a device that is only what a plan needs of it.
type board struct {
	kind      device.Kind
	bus       uint8
	partition string
	sharing   *device.Sharing
}

func (b board) Sharing() *device.Sharing { return b.sharing }

// The boards from bus 50 on are older.
const oldBus = 50

func (b board) UUID() string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", b.bus) }

func (b board) ComputeCapability() (major, minor int) {
	if b.bus >= oldBus {
		return 6, 1
	}
	return 9, 0
}

func (b board) Name() string {
	if b.bus >= oldBus {
		return fmt.Sprintf("old-%d", b.bus)
	}
	if b.kind == device.KindMIG {
		return fmt.Sprintf("mig-%d-%s", b.bus, b.partition)
	}
	return fmt.Sprintf("gpu-%d", b.bus)
}
func (b board) Kind() device.Kind { return b.kind }
func (b board) Identity() device.Identity {
	return device.Identity{PCI: pci.Address{Bus: b.bus}, Partition: b.partition}
}

func (b board) Publish(device.Vocabulary) (resourceapi.Device, []device.Omission) {
	return resourceapi.Device{Name: b.Name()}, nil
}

func (b board) Overlaps(other device.Identity) bool {
	return b.bus == other.PCI.Bus && (b.partition == "" || other.Partition == "" || b.partition == other.Partition)
}

// node has GPUs 0 to 33, of which 40 and 41 are also offered as two partitions each.
func node() map[string]device.Device {
	devices := map[string]device.Device{}
	add := func(b board) { devices[b.Name()] = b }
	for bus := range uint8(34) {
		add(board{kind: device.KindGPU, bus: bus})
	}
	for _, bus := range []uint8{40, 41} {
		add(board{kind: device.KindGPU, bus: bus})
		add(board{kind: device.KindMIG, bus: bus, partition: "a"})
		add(board{kind: device.KindMIG, bus: bus, partition: "b"})
	}
	add(board{kind: device.KindGPU, bus: oldBus})
	add(board{kind: device.KindGPU, bus: 42, sharing: &device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 4, ThreadPercentage: new(25)}})
	add(board{kind: device.KindGPU, bus: 43, sharing: &device.Sharing{Enforcement: device.Cooperative}})
	return devices
}

type resultOption func(*resourceapi.DeviceRequestAllocationResult)

func admin(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = new(true) }

func share(id types.UID) resultOption {
	return func(r *resourceapi.DeviceRequestAllocationResult) { r.ShareID = &id }
}

func from(driver, pool string) resultOption {
	return func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver, r.Pool = driver, pool }
}

func got(request, name string, options ...resultOption) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: ourDriver, Pool: ourPool, Device: name}
	for _, option := range options {
		option(&r)
	}
	return r
}

type allocationConfig = resourceapi.DeviceAllocationConfiguration

func opaque(source resourceapi.AllocationConfigSource, driver, raw string, requests ...string) allocationConfig {
	return allocationConfig{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)},
		}},
	}
}

func ofClass(raw string, requests ...string) allocationConfig {
	return opaque(resourceapi.AllocationConfigSourceClass, ourDriver, raw, requests...)
}

func ofClaim(raw string, requests ...string) allocationConfig {
	return opaque(resourceapi.AllocationConfigSourceClaim, ourDriver, raw, requests...)
}

// Configurations that are told apart by their time slice or their thread percentage.
func slicing(slice configapi.TimeSlice) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"` + string(slice) + `"}}}`
}

const (
	exclusive  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`
	migMPS     = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`
	misspelled = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategi":"MPS"}}`
	foreign    = `{"apiVersion":"example.com/v9","kind":"Whatever"}`
)

func claimOf(results []resourceapi.DeviceRequestAllocationResult, configs ...allocationConfig) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "team", "training", "11111111-2222-3333-4444-555555555555"
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results, Config: configs},
	}
	return claim
}
