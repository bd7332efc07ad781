package gpusim

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

const mib = 1 << 20

// migPrefix is what NVML puts before the name of a profile.
const migPrefix = "MIG "

// supportedEvents are the event types that boards offer: ECC, XID, clock, retirement,
// poison, unavailability and recovery action.
const supportedEvents = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000

// Compile turns a resolved node into the initial shared state.
func Compile(node *nodefile.Node) (*simstate.Node, error) {
	out := &simstate.Node{
		GPUCount:        uint32(len(node.GPUs)),
		CUDAVersion:     node.CUDA,
		PeerMaxLevel:    uint32(node.PeerMaxLevel),
		CapsMajor:       node.Majors.Caps,
		DeviceMajor:     node.Majors.GPU,
		CallLatencyUsec: node.CallLatencyMicros,
	}
	t := &text{}
	t.set("name", out.NodeName[:], node.Name)
	t.set("driver.version", out.DriverVersion[:], node.Driver.Version)
	t.set("driver.nvml", out.NVMLVersion[:], node.Driver.NVML)
	t.set("driver.branch", out.DriverBranch[:], node.Driver.Branch)
	for i := range node.GPUs {
		for j := range node.GPUs {
			out.Level[i].To[j] = uint8(nodefile.Distance(&node.GPUs[i], &node.GPUs[j]))
		}
		if err := compileGPU(t, &out.GPUs[i], &node.GPUs[i]); err != nil {
			return nil, fmt.Errorf("GPU %s: %w", node.GPUs[i].PCI, err)
		}
	}
	return out, t.err
}

// text fills fixed fields and keeps the first error.
type text struct{ err error }

func (t *text) set(name string, field []byte, value string) {
	if err := simstate.SetString(field, value); err != nil && t.err == nil {
		t.err = fmt.Errorf("%s: %w", name, err)
	}
}

func compileGPU(t *text, out *simstate.GPU, in *nodefile.ResolvedGPU) error {
	board := &in.Board
	t.set("uuid", out.UUID[:], in.UUID)
	t.set("product", out.Name[:], board.Product)
	t.set("serial", out.Serial[:], in.Serial)
	t.set("partNumber", out.BoardPartNumber[:], board.PartNumber)
	t.set("vbios", out.VBIOS[:], board.VBIOS)
	if err := compileBoard(out, board); err != nil {
		return err
	}
	out.Minor, out.ModuleID = in.Minor, in.Module
	out.PCIDomain, out.PCIBus, out.PCIDevice = in.PCI.Domain, in.PCI.Bus, in.PCI.Device
	out.NUMANode, out.MemoryNUMANode = int32(in.NUMA), int32(in.MemoryNUMA)
	if in.NUMA >= 0 {
		out.NodeAffinity[in.NUMA/64] |= 1 << (in.NUMA % 64)
	}
	for _, cpu := range in.CPUs {
		out.CPUAffinity[cpu/64] |= 1 << (cpu % 64)
	}
	if in.Lost {
		out.Lost = 1
	}
	compileLinks(out, in)
	compileFabric(out, in)
	compilePartition(t, out, in)
	return nil
}

func compileBoard(out *simstate.GPU, board *nodefile.Board) error {
	for _, name := range board.Unsupported {
		bit, ok := simstate.FeatureNames()[name]
		if !ok {
			return fmt.Errorf("unsupported: unknown feature %q", name)
		}
		out.NotSupported |= bit
	}
	if !board.ECC {
		out.NotSupported |= simstate.FeatureECC
	}
	var err error
	if out.PCIDeviceID, err = nodefile.ParseID(board.PCIDevice); err != nil {
		return err
	}
	if out.PCISubsystemID, err = nodefile.ParseID(board.PCISubsystem); err != nil {
		return err
	}
	if _, err := fmt.Sscanf(board.ComputeCapability, "%d.%d", &out.ComputeMajor, &out.ComputeMinor); err != nil {
		return fmt.Errorf("computeCapability %q: %w", board.ComputeCapability, err)
	}
	out.Brand = nodefile.Brands()[board.Brand]
	out.Architecture = nodefile.Architectures()[board.Architecture]
	out.AddressingMode = nodefile.AddressingModes()[board.Addressing]
	out.Virtualization = board.Virtualization
	out.ECCCurrent, out.ECCPending, out.PersistenceMode = 1, 1, 1
	out.MemoryTotal, out.MemoryReserved = board.MemoryMiB*mib, board.ReservedMiB*mib
	out.BAR1Total = board.BAR1MiB * mib
	out.Telemetry = simstate.Telemetry{TemperatureC: 34, PowerMilliwatt: board.PowerLimitWatts * 100, PowerLimitMW: board.PowerLimitWatts * 1000}
	out.SupportedEvents = supportedEvents
	compileMIG(out, board.MIG)
	return nil
}

func compileMIG(out *simstate.GPU, in *nodefile.BoardMIG) {
	if in == nil {
		return
	}
	out.MIG = simstate.MIG{Capable: 1, MemoryUnits: in.Units, MaxInstances: in.MaxInstances, ProfileCount: uint32(len(in.Profiles))}
	if in.NeedsReset {
		out.MIG.NeedsReset = 1
	}
	for i, p := range in.Profiles {
		profile := &out.MIG.Profiles[i]
		*profile = simstate.Profile{
			EnumID: p.Enum, ProfileID: p.ID, SliceCount: p.Slices, InstanceCount: p.Max, Multiprocessors: p.SM,
			CopyEngines: p.CE, Decoders: p.DEC, Encoders: p.ENC, JPEG: p.JPG, OFA: p.OFA,
			Size: p.Size, PlacementCount: uint32(len(p.Starts)), MemoryMiB: p.MemoryMiB,
		}
		copy(profile.Name[:len(profile.Name)-1], migPrefix+p.Name)
		copy(profile.PlacementStart[:], p.Starts)
		if p.GFX {
			profile.Capabilities |= 0x2 // NVML_GPU_INSTANCE_PROFILE_CAPS_GFX
		}
	}
}

// compilePartition sets the mode; the library makes the instances of the node file later.
func compilePartition(t *text, out *simstate.GPU, in *nodefile.ResolvedGPU) {
	if in.Board.MIG == nil {
		return
	}
	if in.MIG.Enabled {
		out.MIG.CurrentMode, out.MIG.PendingMode = 1, 1
	}
	for gi := range out.MIG.Instances {
		for ci := range out.MIG.Instances[gi].ComputeInstances {
			t.set("MIG UUID", out.MIG.Instances[gi].ComputeInstances[ci].UUID[:], MIGUUID(in.UUID, gi, ci))
		}
	}
}

// MIGUUID is the UUID of a MIG device. It depends on the ids alone, as on real boards, where
// all of them are of version 5: an instance that is made anew has that of its predecessor.
func MIGUUID(gpuUUID string, gpuInstance, computeInstance int) string {
	name := fmt.Sprintf("%s/%d/%d", gpuUUID, gpuInstance, computeInstance)
	return "MIG-" + uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String()
}

func compileLinks(out *simstate.GPU, in *nodefile.ResolvedGPU) {
	if in.Board.NVLink == nil {
		return
	}
	out.LinkCount, out.LinkVersion, out.LinkSpeedMBps = in.Board.NVLink.Links, in.Board.NVLink.Version, in.Board.NVLink.SpeedMBps
	for i, link := range in.Links {
		switch {
		case link.Plane != 0:
			out.Links[i] = simstate.Link{Active: 1, Remote: simstate.RemoteSwitch, PeerGPU: -1, Plane: link.Plane}
		case link.Peer >= 0:
			out.Links[i] = simstate.Link{Active: 1, Remote: simstate.RemoteGPU, PeerGPU: int32(link.Peer)}
		default:
			out.Links[i] = simstate.Link{Remote: simstate.RemoteUnknown, PeerGPU: -1}
		}
	}
}

func compileFabric(out *simstate.GPU, in *nodefile.ResolvedGPU) {
	if in.Fabric == nil {
		return
	}
	f := in.Fabric
	out.Fabric = simstate.Fabric{Supported: 1, State: f.State, Status: f.Status, CliqueID: f.Clique, HealthMask: f.HealthMask, ClusterUUID: f.ClusterUUID}
	if f.Required {
		out.Fabric.Required = 1
	}
	if f.HealthMask != 0 {
		out.Fabric.HealthSummary = 1 // NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
	}
}
