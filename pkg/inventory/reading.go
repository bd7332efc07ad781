package inventory

import (
	"context"
	"errors"

	"github.com/gpu-dra/driver/pkg/pci"
)

// The errors of an edge that a scan or its caller decides on; edges wrap them.
var (
	// ErrNotSupported: the board or the driver does not have that fact. It is not a problem.
	ErrNotSupported = errors.New("not supported")
	// ErrLost: the GPU is on no bus any more (fell off, was unplugged, needs a reset).
	ErrLost = errors.New("GPU is lost")
	// ErrHung: a call into the driver did not come back within its bound.
	ErrHung = errors.New("call into the driver hangs")
	// ErrNoDriver: there is no GPU driver that could be asked, so nothing uses a GPU.
	ErrNoDriver = errors.New("there is no GPU driver")
	// ErrTransient: the driver works, and answered a question about the node as a whole with an
	// error that may be gone the next time. It says nothing about the GPUs.
	ErrTransient = errors.New("the driver failed to answer")
	// ErrRestart: this process can never talk to the driver that is installed now; a fresh
	// process can.
	ErrRestart = errors.New("the process has to be started anew")
)

// Driver library and PCI bus, as a scan needs them.
type (
	// NVML reads the GPU driver's management library.
	NVML interface {
		// Read reads everything that a snapshot needs, in one go. It asks about each address
		// of onBus that the enumeration does not yield and puts the answer into
		// Reading.Refused. An error means that the driver does not answer at all; it says
		// what was looked for and where, and wraps ErrHung, ErrTransient or ErrRestart where they
		// apply.
		Read(ctx context.Context, onBus []pci.Address) (Reading, error)
	}
	// Bus reads what the kernel knows.
	Bus interface {
		// GPUs lists the NVIDIA display devices of the PCI bus, in any order.
		GPUs(ctx context.Context) ([]Function, error)
		// DriverModule is the version of the loaded NVIDIA kernel module, empty when none is.
		DriverModule(ctx context.Context) (string, error)
	}
)

// Fact is one answer of an edge: a value or the reason why there is none.
type Fact[T any] struct {
	Value T
	Err   error
}

// Known makes a fact that was read.
func Known[T any](value T) Fact[T] { return Fact[T]{Value: value} }

// Unknown makes a fact that could not be read.
func Unknown[T any](err error) Fact[T] { return Fact[T]{Err: err} }

// Reading is what NVML says, not yet judged.
type Reading struct {
	DriverVersion Fact[string]
	CUDA          Fact[Version]
	// Boards has one entry for each GPU that is served, in the order of the enumeration or of the bus.
	Boards []Board
	// Excluded are GPUs that are not served and were left alone.
	Excluded []pci.Address
	// Refused has NVML's answer for GPUs of the bus that no entry in Boards has the address of.
	Refused map[pci.Address]error
}

// Version is a major and a minor number.
type Version struct{ Major, Minor int }

// Board is one GPU that NVML knows.
type Board struct {
	Index int
	// Err ends the reading of this board: no handle, lost, or a call that hangs. Facts that
	// were read before it stand.
	Err error
	// Unjudged is why it cannot be told whether the GPU is served; nothing more was read of it.
	Unjudged error

	PCI   Fact[pci.Address]
	UUID  Fact[string]
	Minor Fact[int]

	ProductName       Fact[string]
	Brand             Fact[string]
	Architecture      Fact[string]
	Serial            Fact[string]
	AddressingMode    Fact[string]
	ComputeCapability Fact[Version]
	MemoryBytes       Fact[uint64]
	ECCEnabled        Fact[bool]
	// VGPUHost tells that the board is lent to virtual machines as vGPUs.
	VGPUHost Fact[bool]
	MIG      Fact[MIG]
	// MIGProfiles and MIGInstances are read of boards that can MIG, where they are asked for.
	MIGProfiles  Fact[[]MIGProfile]
	MIGInstances Fact[[]MIGInstance]
	Links        Fact[[]LinkReading]
	// Peers are the other boards whose NVLink P2P status is OK. With Err set, Value holds
	// those that were answered.
	Peers  Fact[[]pci.Address]
	Fabric Fact[FabricReading]
}

// LinkReading is what NVML says of one NVLink port. Remote, Peer and Version are read of
// active links only.
type LinkReading struct {
	Active Fact[bool]
	Remote Fact[Remote]
	// Peer is ErrNotSupported where NVML gives no address (switches, its sentinel
	// FFFFFFFF:FF:FF.0).
	Peer Fact[pci.Address]
	// Version is the NVLink generation.
	Version Fact[int]
}

// FabricReading is nvmlGpuFabricInfo as NVML gives it (NVML 13.4, versions 1 to 3).
type FabricReading struct {
	State FabricState
	// Status is the outcome of the registration; valid in state FabricCompleted only.
	Status      error
	ClusterUUID [16]byte
	CliqueID    uint32
	// HealthMask is 0 (nothing is known) before version 2 of the structure.
	HealthMask uint32
}

// Function is one NVIDIA display device (PCI class 0x0300 or 0x0302) of the bus.
type Function struct {
	PCI pci.Address
	// Device is the PCI device id, 0x2330; 0 when it cannot be read.
	Device uint16
	// Driver is the kernel driver that holds it, "nvidia" or "vfio-pci"; empty when none.
	Driver string
	// Physical is the physical function of an SR-IOV virtual function, else nil.
	Physical *pci.Address
	// NUMANode is ErrNotSupported where the kernel says -1.
	NUMANode Fact[int]
	// PCIeRoot is the root complex, "pci0000:16".
	PCIeRoot Fact[string]
}
