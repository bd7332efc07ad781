package device

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/pci"
)

// MIG is a partition of a GPU: one that exists, or one that is made when a claim gets it.
type MIG struct {
	parent   GPU
	geometry mig.Geometry
	part     mig.Partition
	// instance is what is at the partition's place now, of the partition's profile; nil for none.
	instance *inventory.MIGInstance
	// sharing is nil for a partition that is given out whole.
	sharing *Sharing
}

var _ Device = MIG{}

// MIGName is the name of a partition of the GPU at an address: "gpu-0000-1a-00-0-mig-1g-10gb-0".
func MIGName(at pci.Address, part mig.Partition) string { return GPUName(at) + "-mig-" + part.Label }

// Name gives "gpu-0000-1a-00-0-mig-1g-10gb-0": the GPU's address, the profile and the first
// memory slice. It is the same whether the partition exists or not, and whoever made it.
func (m MIG) Name() string { return MIGName(m.parent.hardware.PCI, m.part) }

// Kind gives KindMIG.
func (MIG) Kind() Kind { return KindMIG }

// Identity gives the parent's address and UUID, and profile and place. MIG UUIDs are no part of
// it: an instance that is made anew at the same place has the same again.
func (m MIG) Identity() Identity {
	id := m.parent.Identity()
	id.Partition = m.part.Key()
	return id
}

// Overlaps is true for the parent and for whatever uses one of the same memory slices.
func (m MIG) Overlaps(other Identity) bool {
	if other.PCI != m.parent.hardware.PCI {
		return false
	}
	_, at, err := mig.ParseKey(other.Partition)
	// The whole GPU has no partition. One that cannot be read may be anywhere.
	return err != nil || at.Overlaps(m.part.Placement)
}

// Parent gives what the inventory knows of the GPU.
func (m MIG) Parent() inventory.GPU { return m.parent.hardware }

// Partition gives profile and place.
func (m MIG) Partition() mig.Partition { return m.part }

// Instance gives the GPU instance that is there now, whoever made it; nil for none.
func (m MIG) Instance() *inventory.MIGInstance { return m.instance }

// Static tells that the partition was there without us: it is neither made for a claim nor
// removed after it.
func (m MIG) Static() bool { return m.instance != nil && !m.instance.Ours }

// UUID is NVML's, "MIG-…", of the instance that is there now; empty for none.
func (m MIG) UUID() string {
	if m.instance == nil || len(m.instance.Compute) == 0 {
		return ""
	}
	return m.instance.Compute[0].UUID
}

// Publish renders the partition. A UUID is published of static ones only: the others have none
// until a claim gets them.
func (m MIG) Publish(vocabulary Vocabulary) (resourceapi.Device, []Omission) {
	r := render(m.Name(), vocabulary)
	h, p := m.parent.hardware, m.part.Profile
	r.text("type", string(KindMIG))
	r.text("parentUUID", h.UUID)
	r.text("profile", p.Name)
	if m.Static() {
		r.text("uuid", m.instance.Compute[0].UUID)
	}
	r.product(h, m.parent.driver)
	r.place(h, m.parent.lists)
	r.number("migPlacementStart", m.part.Placement.Start)
	r.number("migPlacementSize", m.part.Placement.Size)
	r.bytes(capacityMemory, p.MemoryBytes)
	r.amount("multiprocessors", p.Multiprocessors)
	r.amount("copyEngines", p.CopyEngines)
	r.amount("decoders", p.Decoders)
	r.amount("encoders", p.Encoders)
	r.amount("jpegEngines", p.JPEGEngines)
	r.amount("ofaEngines", p.OFAEngines)
	r.share(m.sharing, p.MemoryBytes)
	r.device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{m.geometry.Consumes(m.part)}
	return r.device, r.omissions
}
