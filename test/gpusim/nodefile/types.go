// Package nodefile reads descriptions of simulated GPU nodes: YAML, decoded strictly and
// validated with the path of every wrong field, plus presets of real machines.
//
// It turns a description into a resolved Node, for the code that lays nodes out. It
// touches no file system but its own embedded data and knows no state file and no NVML.
package nodefile

import "encoding/json"

// APIVersion is the only version of the node file format.
const APIVersion = "gpusim/v1"

// File is a node file as written.
type File struct {
	APIVersion  string `json:"apiVersion"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Seed makes UUIDs and serials; nodes of one cluster need different seeds. Empty means Name.
	Seed   string `json:"seed,omitempty"`
	Driver Driver `json:"driver"`
	// PeerMaxLevel is the farthest PCIe level with peer access over PCIe: PIX, PXB, PHB, NODE or SYS.
	PeerMaxLevel string `json:"peerMaxLevel,omitempty"`
	// Majors are the device numbers of the nodes in /dev.
	Majors Majors `json:"majors,omitempty"`
	// Board is the board of every GPU that names none.
	Board string `json:"board,omitempty"`
	// Boards defines boards of this node, usually by extending a built-in one.
	Boards map[string]json.RawMessage `json:"boards,omitempty"`
	GPUs   []GPU                      `json:"gpus"`
	NVLink NVLink                     `json:"nvlink,omitempty"`
	Fabric *Fabric                    `json:"fabric,omitempty"`
	// MIG is that of every GPU whose board has it and that says nothing itself.
	MIG *MIG `json:"mig,omitempty"`
	// Missing names optional parts to leave out of the root, see package rootfs.
	Missing []string `json:"missing,omitempty"`
	// CallLatencyMicros delays every NVML call.
	CallLatencyMicros uint32 `json:"callLatencyMicros,omitempty"`
}

// Driver names the driver's versions.
type Driver struct {
	Version string `json:"version"`
	// NVML defaults to the major CUDA version, a dot, and Version.
	NVML string `json:"nvml,omitempty"`
	CUDA string `json:"cuda"`
	// Lacks names functions of nvml.h that this version does not have yet. Those of memory
	// limits come with CUDA 13.4 and need not be named.
	Lacks  []string `json:"lacks,omitempty"`
	Branch string   `json:"branch,omitempty"`
}

// Majors are device major numbers. Zero means the number that real machines show.
type Majors struct {
	// GPU is the major of nvidia0 and nvidiactl. A harmless one, such as 1 for memory
	// devices, lets a container open the node where no GPU exists.
	GPU  uint32 `json:"gpu,omitempty"`
	UVM  uint32 `json:"uvm,omitempty"`
	Caps uint32 `json:"caps,omitempty"`
}

// GPU is one board in its slot.
type GPU struct {
	Board string `json:"board,omitempty"`
	// Override changes single fields of the board.
	Override json.RawMessage `json:"override,omitempty"`
	// PCI is the address, as 0000:1b:00.0.
	PCI string `json:"pci"`
	// Root is the PCIe root complex, as pci0000:15; Bridges are the addresses from there to the GPU.
	Root    string   `json:"root"`
	Bridges []string `json:"bridges,omitempty"`
	// NUMA is the NUMA node, -1 for none.
	NUMA *int   `json:"numa,omitempty"`
	CPUs string `json:"cpus,omitempty"`
	// MemoryNUMA is the NUMA node that the GPU's own memory is (Grace).
	MemoryNUMA *int `json:"memoryNUMA,omitempty"`
	// Minor defaults to the position in PCI order.
	Minor  *uint32 `json:"minor,omitempty"`
	Module *uint32 `json:"module,omitempty"`
	UUID   string  `json:"uuid,omitempty"`
	Serial string  `json:"serial,omitempty"`
	// Lost starts the GPU as fallen off the bus.
	Lost bool `json:"lost,omitempty"`
	// IOMMUGroup defaults to one group for each GPU.
	IOMMUGroup *int    `json:"iommuGroup,omitempty"`
	Fabric     *Fabric `json:"fabric,omitempty"`
	// MIG is how the GPU is partitioned at boot; without it, as the node says.
	MIG *MIG `json:"mig,omitempty"`
}

// MIG is how GPUs are partitioned at boot.
type MIG struct {
	Enabled bool `json:"enabled"`
	// Instances are made in this order, each with one compute instance that fills it.
	Instances []MIGInstance `json:"instances,omitempty"`
}

// MIGInstance is one instance to make.
type MIGInstance struct {
	// Profile is a name such as 1g.10gb.
	Profile string `json:"profile"`
	// Start is the first memory unit; without it the driver chooses.
	Start *uint32 `json:"start,omitempty"`
}

// NVLink says how links run. GPUs are named by their position in gpus.
type NVLink struct {
	// Switches are planes of NVSwitches: all links of each GPU go there.
	Switches [][]int `json:"switches,omitempty"`
	// Direct are groups whose members have links to each other, pair by pair.
	Direct []DirectLinks `json:"direct,omitempty"`
}

// DirectLinks connects each pair of GPUs by a number of links.
type DirectLinks struct {
	GPUs  []int  `json:"gpus"`
	Links uint32 `json:"links"`
}

// Fabric is the registration of GPUs with the NVLink fabric.
type Fabric struct {
	// State is notSupported, notStarted, inProgress or completed.
	State string `json:"state"`
	// Status is an nvmlReturn_t, 0 for success.
	Status uint32 `json:"status,omitempty"`
	// ClusterUUID is all zero on a single machine.
	ClusterUUID string  `json:"clusterUUID,omitempty"`
	Clique      uint32  `json:"clique,omitempty"`
	HealthMask  *uint32 `json:"healthMask,omitempty"`
}

// Board describes a product.
type Board struct {
	// Extends names the board whose fields this one starts from.
	Extends           string `json:"extends,omitempty"`
	Product           string `json:"product"`
	Brand             string `json:"brand"`
	Architecture      string `json:"architecture"`
	ComputeCapability string `json:"computeCapability"`
	MemoryMiB         uint64 `json:"memoryMiB"`
	ReservedMiB       uint64 `json:"reservedMiB"`
	BAR1MiB           uint64 `json:"bar1MiB,omitempty"`
	// PCIDevice and PCISubsystem are ids of device and vendor, as 0x233010de.
	PCIDevice    string `json:"pciDevice"`
	PCISubsystem string `json:"pciSubsystem"`
	// PCIClass is 0x030200 for boards without a display.
	PCIClass        string       `json:"pciClass,omitempty"`
	PartNumber      string       `json:"partNumber,omitempty"`
	VBIOS           string       `json:"vbios,omitempty"`
	ECC             bool         `json:"ecc"`
	Addressing      string       `json:"addressing"`
	Virtualization  uint32       `json:"virtualization,omitempty"`
	PowerLimitWatts uint32       `json:"powerLimitWatts,omitempty"`
	NVLink          *BoardNVLink `json:"nvlink,omitempty"`
	// Fabric says that the board registers with the NVLink fabric.
	Fabric bool      `json:"fabric,omitempty"`
	MIG    *BoardMIG `json:"mig,omitempty"`
	// Unsupported names calls that answer NOT_SUPPORTED, see simstate.FeatureNames.
	Unsupported []string `json:"unsupported,omitempty"`
}

// BoardNVLink are the links of a board.
type BoardNVLink struct {
	Version   uint32 `json:"version"`
	Links     uint32 `json:"links"`
	SpeedMBps uint32 `json:"speedMBps"`
}

// BoardMIG is how a board can be partitioned.
type BoardMIG struct {
	NeedsReset bool `json:"needsReset"`
	// Units is the number of memory slices that placements count in.
	Units        uint32       `json:"units"`
	MaxInstances uint32       `json:"maxInstances"`
	Profiles     []MIGProfile `json:"profiles"`
}

// MIGProfile is one GPU instance profile.
type MIGProfile struct {
	Name string `json:"name"`
	// Enum is NVML_GPU_INSTANCE_PROFILE_*, ID what the board reports.
	Enum      uint32 `json:"enum"`
	ID        uint32 `json:"id"`
	Slices    uint32 `json:"slices"`
	Max       uint32 `json:"max"`
	MemoryMiB uint64 `json:"memoryMiB"`
	SM        uint32 `json:"sm"`
	CE        uint32 `json:"ce"`
	DEC       uint32 `json:"dec"`
	ENC       uint32 `json:"enc,omitempty"`
	JPG       uint32 `json:"jpg"`
	OFA       uint32 `json:"ofa"`
	GFX       bool   `json:"gfx,omitempty"`
	// Size and Starts are the placements in memory units.
	Size   uint32   `json:"size"`
	Starts []uint32 `json:"starts"`
}
