// Package simstate is the state of a simulated GPU node: one file of fixed layout
// that every process on the node maps and shares.
//
// It is written by the Go side (creating a node, injecting faults) and read and
// written by the simulated libnvidia-ml.so.1. The Go structs below are the single
// definition; the C header is generated from them and asserts every size and offset.
//
// The package knows nothing about YAML, directories or NVML semantics.
package simstate

import "sync/atomic"

// Sizes of the tables. They bound what a node file may ask for.
const (
	// MaxGPUs is the number of GPU slots.
	MaxGPUs = 64
	// MaxLinks is NVML_NVLINK_MAX_LINKS of NVML 13.4.
	MaxLinks = 36
	// MaxProfiles bounds the GPU instance profiles of one board.
	MaxProfiles = 24
	// MaxPlacements bounds the placements of one profile.
	MaxPlacements = 16
	// MaxGPUInstances is the number of GPU instance ids of one board (0 to 14) and one spare.
	MaxGPUInstances = 16
	// MaxComputeInstances is the number of compute instance ids of one GPU instance.
	MaxComputeInstances = 8
	// MaxFaults is the number of call faults that can be armed at the same time.
	MaxFaults = 32
	// MaxEvents is the capacity of the event ring.
	MaxEvents = 256
	// MaxProcesses bounds the clients recorded per GPU.
	MaxProcesses = 32
	// MaxMemoryLimits bounds the cgroups with a memory limit per GPU.
	MaxMemoryLimits = 32
	// CPUWords holds 64 CPUs a word.
	CPUWords = 16
	// NodeWords holds 64 NUMA nodes a word.
	NodeWords = 2
)

// Identity of the file format. LayoutVersion changes whenever a struct below does.
const (
	Magic         = 0x314d4953555047 // "GPUSIM1" read as a little-endian number
	LayoutVersion = 3
	// NoInstance marks "not attributable to an instance", as NVML does.
	NoInstance = 0xFFFFFFFF
)

// Features a board can lack. A set bit makes the matching calls answer NOT_SUPPORTED.
const (
	FeatureMemory uint64 = 1 << iota
	FeatureSerial
	FeatureModuleID
	FeatureBoardPartNumber
	FeatureECC
	FeaturePersistence
	FeatureComputeMode
	FeatureAddressingMode
	FeatureNUMA
	FeatureCPUAffinity
	FeatureVirtualization
	FeatureTopology
	FeatureArchitecture
	FeatureBrand
	FeatureComputeCapability
	FeatureUUID
	FeatureName
	FeatureMinor
	FeatureTemperature
	FeatureEvents
	FeatureRecoveryAction
	FeatureFabric
	FeatureTimeSlice
	FeatureMIGComputeMode
	FeatureMemoryLimits
)

// Values of Link.Remote, equal to nvmlIntNvLinkDeviceType_t.
const (
	RemoteGPU     = 0
	RemoteSwitch  = 2
	RemoteUnknown = 0xFF
)

// Node is the whole file.
type Node struct {
	Magic         uint64
	LayoutVersion uint32
	Size          uint32
	// InstanceID is drawn when the file is written, to tell it from its predecessor.
	InstanceID uint64
	// Generation counts mutations; caches compare it.
	Generation uint64
	GPUCount   uint32
	// CUDAVersion is 1000*major + 10*minor.
	CUDAVersion   uint32
	DriverVersion [80]byte
	NVMLVersion   [80]byte
	DriverBranch  [80]byte
	NodeName      [64]byte
	// PeerMaxLevel is the farthest PCIe level at which peer access over PCIe works.
	PeerMaxLevel uint32
	// FaultCount is the number of armed entries in Faults: zero is the fast path.
	FaultCount uint32
	// FaultEpoch changes whenever Faults does, so that a delayed call notices.
	FaultEpoch uint32
	// EventSeq is the number of events ever written, modulo 2^32, and the futex that waiters sleep on.
	EventSeq uint32
	// CapsMajor is the device major of nvidia-caps, DeviceMajor that of the GPUs.
	CapsMajor   uint32
	DeviceMajor uint32
	// CallLatencyUsec delays every call, to look like a driver.
	CallLatencyUsec uint32
	Reserved        [13]uint32
	Faults          [MaxFaults]Fault
	Events          [MaxEvents]Event
	// Level is the nvmlGpuTopologyLevel_t of each pair, in slots.
	Level [MaxGPUs]LevelRow
	GPUs  [MaxGPUs]GPU
}

// LevelRow is one row of the PCIe distance matrix.
type LevelRow struct {
	To [MaxGPUs]uint8
}

// Fault makes a call fail or slow. Slots with Armed == 0 are free.
type Fault struct {
	Function [64]byte
	Armed    uint32
	// GPU is a slot, or -1 for every GPU and for calls without a device.
	GPU int32
	// Code is the nvmlReturn_t to give, 0 to only delay.
	Code uint32
	// After calls pass unharmed before the fault begins.
	After uint32
	// Remaining counts down; -1 never ends.
	Remaining int64
	// DelayUsec is slept before the answer; all ones hangs until the fault is cleared.
	DelayUsec uint64
}

// Event is one entry of the ring that event sets read.
type Event struct {
	Type              uint64
	Data              uint64
	GPU               uint32
	GPUInstanceID     uint32
	ComputeInstanceID uint32
	Reserved          uint32
	TimestampUsec     uint64
}

// GPU is one board. The slot order is PCI address order.
type GPU struct {
	UUID            [64]byte
	Name            [96]byte
	Serial          [32]byte
	BoardPartNumber [80]byte
	VBIOS           [32]byte
	// NotSupported is a set of Feature bits.
	NotSupported uint64

	Minor           uint32
	PCIDomain       uint32
	PCIBus          uint32
	PCIDevice       uint32
	PCIDeviceID     uint32
	PCISubsystemID  uint32
	ModuleID        uint32
	Brand           uint32
	Architecture    uint32
	ComputeMajor    uint32
	ComputeMinor    uint32
	NUMANode        int32
	MemoryNUMANode  int32
	AddressingMode  uint32
	Virtualization  uint32
	ECCCurrent      uint32
	ECCPending      uint32
	PersistenceMode uint32
	ComputeMode     uint32
	TimeSlice       uint32
	Lost            uint32
	// Absent is 1 for a slot whose board left the machine.
	Absent            uint32
	RecoveryAction    uint32
	MemoryTotal       uint64
	MemoryReserved    uint64
	MemoryUsed        uint64
	BAR1Total         uint64
	CPUAffinity       [CPUWords]uint64
	NodeAffinity      [NodeWords]uint64
	Telemetry         Telemetry
	Health            Health
	LinkCount         uint32
	LinkVersion       uint32
	LinkSpeedMBps     uint32
	LinkReserved      uint32
	Links             [MaxLinks]Link
	Fabric            Fabric
	MIG               MIG
	ProcessCount      uint32
	MemoryLimitCount  uint32
	Processes         [MaxProcesses]Process
	MemoryLimits      [MaxMemoryLimits]MemoryLimit
	SupportedEvents   uint64
	ReservedForFuture [8]uint64
}

// Telemetry holds what changes without meaning for allocation.
type Telemetry struct {
	TemperatureC      int32
	PowerMilliwatt    uint32
	PowerLimitMW      uint32
	GPUUtilization    uint32
	MemoryUtilization uint32
	Reserved          uint32
}

// Health holds error counters.
type Health struct {
	ECCCorrectedVolatile    uint64
	ECCUncorrectedVolatile  uint64
	ECCCorrectedAggregate   uint64
	ECCUncorrectedAggregate uint64
	RemappedCorrectable     uint32
	RemappedUncorrectable   uint32
	RemapPending            uint32
	RemapFailed             uint32
	RetiredPagesPending     uint32
	Reserved                uint32
}

// Link is one NVLink of a board.
type Link struct {
	Active uint32
	// Remote is RemoteGPU or RemoteSwitch.
	Remote uint32
	// PeerGPU is the slot of the other end of a direct link, -1 otherwise.
	PeerGPU int32
	// Plane numbers the switch plane of a switch link (from 1), 0 otherwise.
	Plane uint32
	// ReplayErrors, RecoveryErrors and CRCErrors are the link's error counters.
	ReplayErrors   uint64
	RecoveryErrors uint64
	CRCErrors      uint64
}

// Fabric is the registration of a GPU with the NVLink fabric.
type Fabric struct {
	// Supported is 0 where the call answers NOT_SUPPORTED.
	Supported     uint32
	State         uint32
	Status        uint32
	CliqueID      uint32
	HealthMask    uint32
	HealthSummary uint32
	ClusterUUID   [16]byte
	// Required is 1 where switch links carry nothing before registration is complete.
	Required uint32
	Reserved uint32
}

// MIG is the partitioning of one board.
type MIG struct {
	// Capable is 0 on boards whose MIG calls answer NOT_SUPPORTED.
	Capable uint32
	// NeedsReset is 1 where a mode change stays pending until a reset.
	NeedsReset   uint32
	CurrentMode  uint32
	PendingMode  uint32
	MemoryUnits  uint32
	MaxInstances uint32
	ProfileCount uint32
	// Dirty is 1 while a change is under way: whoever finds it set repairs the capability files.
	Dirty uint32
	// Epoch counts instances ever created: a handle to a predecessor of the same id is stale.
	Epoch     uint32
	Reserved  uint32
	Profiles  [MaxProfiles]Profile
	Instances [MaxGPUInstances]GPUInstance
}

// Profile is one GPU instance profile of a board.
type Profile struct {
	Name [48]byte
	// EnumID is NVML_GPU_INSTANCE_PROFILE_*, ProfileID the id that the board reports.
	EnumID          uint32
	ProfileID       uint32
	SliceCount      uint32
	InstanceCount   uint32
	Multiprocessors uint32
	CopyEngines     uint32
	Decoders        uint32
	Encoders        uint32
	JPEG            uint32
	OFA             uint32
	Capabilities    uint32
	Size            uint32
	PlacementCount  uint32
	Reserved        uint32
	MemoryMiB       uint64
	PlacementStart  [MaxPlacements]uint32
}

// GPUInstance is one GPU instance id; the index is the id. Used is written last when an
// instance comes and first when it goes, so that no reader and no crash sees half of one.
type GPUInstance struct {
	Used uint32
	// ProfileIndex is a place in MIG.Profiles.
	ProfileIndex uint32
	Start        uint32
	Size         uint32
	Epoch        uint32
	Reserved     uint32
	// ComputeInstances are indexed by their id.
	ComputeInstances [MaxComputeInstances]ComputeInstance
}

// End makes the id free again, with its compute instances.
func (g *GPUInstance) End() {
	for id := range g.ComputeInstances {
		atomic.StoreUint32(&g.ComputeInstances[id].Used, 0)
	}
	atomic.StoreUint32(&g.Used, 0)
}

// ComputeInstance is one compute instance id, written as GPUInstance is.
type ComputeInstance struct {
	Used uint32
	// Profile is NVML_COMPUTE_INSTANCE_PROFILE_*, which is also the id that boards report.
	Profile     uint32
	Start       uint32
	Size        uint32
	Epoch       uint32
	ComputeMode uint32
	// UUID is the MIG device's, there from the start: it depends on the ids alone.
	UUID [64]byte
}

// Process is a client of a GPU; outside of instances both ids are NoInstance.
type Process struct {
	PID               uint32
	GPUInstanceID     uint32
	ComputeInstanceID uint32
	Kind              uint32
	UsedMemory        uint64
}

// MemoryLimit is a limit of one cgroup on one GPU.
type MemoryLimit struct {
	Cgroup [256]byte
	// Soft and Hard are bytes.
	Soft uint64
	Hard uint64
	// Inode is that of the cgroup's directory, 0 in an entry that is free.
	Inode uint64
}
