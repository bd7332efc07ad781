// Package inventory turns the hardware of one node into a Snapshot: an immutable value that
// everything above works on. It is for the publisher, for preparing claims and for the command
// line. It must not know Kubernetes, claims or how devices are published; NVML and sysfs stay
// behind the interfaces that this package states and its sub-packages implement.
package inventory

import (
	"slices"

	"github.com/gpu-dra/driver/pkg/pci"
)

// Snapshot is what one scan found. It is never changed after the scan; slices are sorted by
// PCI address so that equal hardware gives equal snapshots.
type Snapshot struct {
	Driver Driver
	GPUs   []GPU
	// Unusable lists NVIDIA display devices of the PCI bus that cannot be handed out, each
	// with its reason (lost, held by another kernel driver, NVML answers with an error).
	Unusable []Unusable
	// Excluded are the GPUs that the admin's selection leaves to others.
	Excluded []pci.Address
	// Problems lists what could not be read of GPUs that are otherwise usable, sorted by
	// address and fact. Facts of the node as a whole come first, with the zero Address.
	Problems []Problem
}

// Addresses are those of all GPUs that the snapshot knows of, usable or not, in order.
func (s Snapshot) Addresses() []pci.Address {
	at := slices.Clone(s.Excluded)
	for _, g := range s.GPUs {
		at = append(at, g.PCI)
	}
	for _, u := range s.Unusable {
		at = append(at, u.PCI)
	}
	slices.SortFunc(at, pci.Address.Compare)
	return slices.Compact(at)
}

// Driver is the state of the GPU driver.
type Driver struct {
	// Present tells that the library was loaded and answers.
	Present bool
	// Missing says, for people, what stands in the way when Present is false: what was looked
	// for and where, and whether the PCI bus shows GPUs.
	Missing string
	// Err is the cause of Missing. errors.Is tells ErrHung, ErrTransient and
	// ErrRestart apart; Same ignores it.
	Err error
	// Version is the driver's own text, "580.95.05".
	Version string
	// CUDAMajor and CUDAMinor are the newest CUDA version the driver supports; 0 when unknown.
	CUDAMajor, CUDAMinor int
}

// GPU is one physical GPU with a working NVML handle. Text fields are empty and pointers nil
// where the board or the driver does not say.
type GPU struct {
	PCI  pci.Address
	UUID string
	// Minor is the number in /dev/nvidia<minor>. It may change with every reboot, driver
	// reload or MIG mode change: valid for this snapshot only, never stored, never published.
	Minor int
	// Index is NVML's enumeration index, as unstable as Minor.
	Index int

	ProductName    string
	Brand          string
	Architecture   string
	Serial         string
	AddressingMode string
	// ComputeCapability is the CUDA compute capability; both 0 when unknown.
	ComputeMajor, ComputeMinor int
	// PCIDevice is the PCI device id of the board, 0x2330; 0 when unknown.
	PCIDevice uint16
	// MemoryBytes is the physical device memory; 0 where the board has none of its own.
	MemoryBytes uint64
	ECCEnabled  *bool

	MIG    MIG
	NVLink NVLink
	Fabric Fabric

	// NUMANode is the kernel's node of the PCI device; nil when the kernel says none.
	NUMANode *int
	// PCIeRoot is the root complex in the form of resource.kubernetes.io/pcieRoot.
	PCIeRoot string
}

// NVLink is a GPU's link state.
type NVLink struct {
	// Version is the NVLink generation of the active links; 0 without links.
	Version int
	// Links are the links that the board has, in NVML's order.
	Links []Link
	// Peers are the GPUs of this node that NVML says can be reached over NVLink
	// (P2P status of the NVLINK capability is OK), sorted.
	Peers []pci.Address
	// PeersKnown tells that NVML answered that question for every other GPU of the snapshot,
	// so that one missing in Peers is out of reach. When false, links decide for those.
	PeersKnown bool
}

// Link is one NVLink port.
type Link struct {
	Active bool
	Remote Remote
	// Peer is the GPU at the other end; the zero Address unless Remote is RemoteGPU.
	Peer pci.Address
	// BandwidthMBps is the bandwidth in one direction in MB/s (10^6 bytes); 0 when unknown.
	BandwidthMBps int
}

// Remote is what a link ends at.
type Remote string

// The kinds of link ends that NVML tells apart.
const (
	RemoteUnknown Remote = ""
	RemoteGPU     Remote = "gpu"
	RemoteSwitch  Remote = "switch"
	RemoteNPU     Remote = "npu"
)

// FabricState is the state of a GPU's registration with an NVLink fabric.
type FabricState string

// The states of nvmlGpuFabricState_t.
const (
	FabricNotSupported FabricState = ""
	FabricNotStarted   FabricState = "not-started"
	FabricInProgress   FabricState = "in-progress"
	FabricCompleted    FabricState = "completed"
	// FabricUnknown is our own: the driver has the call but answers with an error.
	FabricUnknown FabricState = "unknown"
)

// Fabric is a GPU's place in an NVLink fabric.
type Fabric struct {
	State FabricState
	// Healthy is false when the registration completed with an error status, the health mask
	// reports a fault (see judgeFabric), or the state could not be read.
	Healthy bool
	// Reason says, for people, why Healthy is false.
	Reason string
	// ClusterUUID is empty where NVML reports all zeros, as single-node systems do.
	ClusterUUID string
	CliqueID    uint32
}

// Unusable is a GPU on the bus that cannot be handed out.
type Unusable struct {
	PCI    pci.Address
	Reason string
	// Cause tells a GPU that fails from one that is withheld on purpose.
	Cause Cause
}

// Cause is in what way a GPU fails.
type Cause string

// The causes.
const (
	// CauseWithheld: it does not fail; it is somebody else's, or cannot be judged.
	CauseWithheld Cause = ""
	// CauseLost: NVML says that it is lost.
	CauseLost Cause = "lost"
	// CauseHung: calls about it do not return.
	CauseHung Cause = "hung"
	// CauseRefused: the driver has it and answers with errors, or does not name it.
	CauseRefused Cause = "refused"
)

// Problem is one fact of a usable GPU that could not be read.
type Problem struct {
	PCI pci.Address
	// Fact names what is missing, "serial".
	Fact string
	Err  error
}
