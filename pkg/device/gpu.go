package device

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

// GPU is a whole physical GPU.
type GPU struct {
	hardware inventory.GPU
	driver   inventory.Driver
	nvlink   topology.Placement
	lists    bool
	// cut is how a GPU that can be partitioned is offered.
	cut Cut
	// counters are all counters of a GPU that has partitions, nil for others.
	counters *resourceapi.DeviceCounterConsumption
	// sharing is nil for a whole GPU.
	sharing *Sharing
}

var _ Device = GPU{}

// Option changes how devices are made.
type Option func(*GPU)

// WithLists publishes attributes that are lists, and numaNode as one. Only for clusters whose
// API server and scheduler have DRAListTypeAttributes: others refuse the whole slice.
func WithLists() Option { return func(g *GPU) { g.lists = true } }

// FromSnapshot makes the devices of a snapshot, in its order. The assignment must be of the
// same snapshot. A GPU in MIG mode is no device: nothing but its partitions can be used.
func FromSnapshot(s inventory.Snapshot, a topology.Assignment, options ...Option) []Device {
	var out []Device
	for _, hardware := range s.GPUs {
		if hardware.MIG.Enabled {
			continue
		}
		g := GPU{hardware: hardware, driver: s.Driver, nvlink: a.GPUs[hardware.PCI]}
		for _, o := range options {
			o(&g)
		}
		out = append(out, g)
	}
	return out
}

// GPUName is the name of the whole GPU at an address: "gpu-0000-1a-00-0".
func GPUName(at pci.Address) string { return "gpu-" + at.Label() }

// Name gives "gpu-0000-1a-00-0".
func (g GPU) Name() string { return GPUName(g.hardware.PCI) }

// Kind gives KindGPU.
func (GPU) Kind() Kind { return KindGPU }

// Identity gives the address and the UUID.
func (g GPU) Identity() Identity {
	return Identity{PCI: g.hardware.PCI, GPUUUID: g.hardware.UUID}
}

// Overlaps is true for everything on the same board.
func (g GPU) Overlaps(other Identity) bool { return g.hardware.PCI == other.PCI }

// Hardware gives what the inventory knows of the GPU.
func (g GPU) Hardware() inventory.GPU { return g.hardware }

// UUID is NVML's, "GPU-…": what CUDA_VISIBLE_DEVICES and NVML calls take.
func (g GPU) UUID() string { return g.hardware.UUID }

// ComputeCapability is the CUDA compute capability; zero where the driver does not tell.
func (g GPU) ComputeCapability() (major, minor int) {
	return g.hardware.ComputeMajor, g.hardware.ComputeMinor
}

// Minor is the number of the device node now. It may be another one after the next scan.
func (g GPU) Minor() int { return g.hardware.Minor }

// Node is the path of the device node relative to the device root: "nvidia0".
func (g GPU) Node() string { return fmt.Sprintf("nvidia%d", g.hardware.Minor) }

// Publish renders the GPU. Index and minor number are never published: they change.
func (g GPU) Publish(vocabulary Vocabulary) (resourceapi.Device, []Omission) {
	r := render(g.Name(), vocabulary)
	h := g.hardware
	r.text("type", string(KindGPU))
	r.text("uuid", h.UUID)
	r.product(h, g.driver)
	r.text("serial", h.Serial)
	r.flag("eccEnabled", h.ECCEnabled)
	r.place(h, g.lists)
	g.publishNVLink(r)
	r.bytes(capacityMemory, h.MemoryBytes)
	r.share(g.sharing, h.MemoryBytes)
	if g.counters != nil {
		r.device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{*g.counters}
	}
	return r.device, r.omissions
}

func (g GPU) publishNVLink(r *rendering) {
	if g.nvlink.Domain != "" {
		r.text("nvlinkDomain", g.nvlink.Domain)
		r.number("nvlinkDomainSize", g.nvlink.Size)
	}
	if g.nvlink.Links > 0 {
		r.number("nvlinkLinks", g.nvlink.Links)
		if g.nvlink.BandwidthMBps > 0 {
			r.number("nvlinkBandwidth", g.nvlink.BandwidthMBps)
		}
		if g.hardware.NVLink.Version > 0 {
			r.number("nvlinkVersion", g.hardware.NVLink.Version)
		}
	}
	if g.lists {
		r.texts("nvlinkCliques", g.nvlink.Cliques)
		if n := g.nvlink.CliquesOmitted; n > 0 && r.published("nvlinkCliques") {
			r.omit("nvlinkCliques", "", fmt.Sprintf("%d more NVLink cliques than the %d that are published", n, topology.MaxCliques))
		}
	}
	if g.nvlink.ClusterUUID != "" {
		r.text("fabricClusterUUID", g.nvlink.ClusterUUID)
		r.number("fabricCliqueID", int(g.nvlink.CliqueID))
	}
}

// product publishes what a GPU and its partitions have in common.
func (r *rendering) product(h inventory.GPU, driver inventory.Driver) {
	r.text("productName", h.ProductName)
	r.text("brand", h.Brand)
	r.text("architecture", h.Architecture)
	r.text("addressingMode", h.AddressingMode)
	if h.ComputeMajor > 0 {
		r.version("cudaComputeCapability", fmt.Sprintf("%d.%d", h.ComputeMajor, h.ComputeMinor))
	}
	r.version("driverVersion", driver.Version)
	if driver.CUDAMajor > 0 {
		r.version("cudaDriverVersion", fmt.Sprintf("%d.%d", driver.CUDAMajor, driver.CUDAMinor))
	}
}

// place publishes where a GPU and its partitions sit.
func (r *rendering) place(h inventory.GPU, lists bool) {
	r.text(AttributePCIBusID, h.PCI.String())
	r.text(AttributePCIeRoot, h.PCIeRoot)
	switch {
	case h.NUMANode == nil || *h.NUMANode < 0:
	case lists:
		r.numbers(AttributeNUMANode, int64(*h.NUMANode))
	default:
		r.number(AttributeNUMANode, *h.NUMANode)
	}
}
