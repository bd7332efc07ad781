package device

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/pci"
)

// Enforcement says who keeps the sharers of a device to their part of its memory. It is
// published as the attribute "sharingEnforcement".
type Enforcement string

// The kinds of enforcement.
const (
	// EnforcedByMPS: one control daemon for the device, with one limit for all its clients.
	EnforcedByMPS Enforcement = "mps"
	// EnforcedByDriver: the GPU driver limits the memory of the container that has the share (NVML
	// of CUDA 13.4, by cgroup). Whole GPUs only.
	EnforcedByDriver Enforcement = "driver"
	// Cooperative: containers are told their limit, and nothing holds them to it.
	Cooperative Enforcement = "cooperative"
	// NotEnforced: sharers take turns, and each can take all memory.
	NotEnforced Enforcement = "none"
)

// Sharing says how a device is shared by several claims. It is the node's decision, not a claim's.
type Sharing struct {
	Enforcement Enforcement
	// Replicas is the number of shares; 0 leaves it to the memory that claims ask for.
	Replicas int
	// ThreadPercentage is what each client of an MPS daemon may use of the threads; nil is all.
	ThreadPercentage *int
}

// The names of a shared device's capacities.
const (
	capacityMemory = "memory"
	capacityShares = "shares"
)

// mebibyte is the unit in which memory is shared out: what control daemons and published
// policies count in.
const mebibyte = 1 << 20

// PartBytes is what one of the replicas has of that much memory, in whole MiB; all of it where
// no number of replicas is given.
func (s Sharing) PartBytes(memory uint64) uint64 {
	return memory / uint64(max(1, s.Replicas)) / mebibyte * mebibyte
}

// sharable is a device that the node may declare as shared.
type sharable interface {
	Device
	// MemoryBytes is the device's own memory; 0 where it has none.
	MemoryBytes() uint64
	shared(*Sharing) Device
}

// Share declares devices as shared: those for which of gives something. A device for which a
// declared way cannot work is left out and reported, since as a whole device it would be given
// out as something that the node's admin did not mean.
func Share(devices []Device, of func(Device) *Sharing) ([]Device, []Omission) {
	var out []Device
	var omissions []Omission
	for _, d := range devices {
		s, can := d.(sharable)
		how := of(d)
		switch {
		case how == nil:
			out = append(out, d)
		case !can:
			omissions = append(omissions, Omission{Device: d.Name(), Reason: "it is declared as shared, and devices of this kind cannot be"})
		case s.MemoryBytes() < mebibyte*uint64(max(1, how.Replicas)) && how.Enforcement != NotEnforced:
			omissions = append(omissions, Omission{
				Device: d.Name(), Name: capacityMemory,
				Reason: "it is declared as shared with limits of memory, and the driver does not tell how much it has of its own: declare it with enforcement none",
			})
		case how.Enforcement == EnforcedByMPS && beforeVolta(d):
			omissions = append(omissions, Omission{
				Device: d.Name(), Reason: "it is declared as shared by MPS, and daemons of GPUs before compute capability 7.0 know no limits: declare it with enforcement none",
			})
		case how.Enforcement == EnforcedByDriver && d.Kind() != KindGPU:
			omissions = append(omissions, Omission{
				Device: d.Name(), Reason: "it is declared as shared with limits by the GPU driver, which knows none for partitions: declare it with enforcement mps, cooperative or none",
			})
		default:
			out = append(out, s.shared(how))
		}
	}
	return out, omissions
}

// WithoutLimits leaves out the devices whose sharers the GPU driver should hold to their part and
// cannot: why gives the reason for a GPU, "" where it can.
func WithoutLimits(devices []Device, why func(pci.Address) string) ([]Device, []Omission) {
	var out []Device
	var omissions []Omission
	for _, d := range devices {
		if how := SharingOf(d); how != nil && how.Enforcement == EnforcedByDriver {
			if reason := why(d.Identity().PCI); reason != "" {
				omissions = append(omissions, Omission{
					Device: d.Name(), Reason: "it is declared as shared with enforcement driver: " + reason + ": declare it with another enforcement",
				})
				continue
			}
		}
		out = append(out, d)
	}
	return out, omissions
}

// WithholdShares leaves out the devices that are given out in shares and exclude other devices,
// and says so once for each GPU, which can have dozens of them. Its other devices stay.
func WithholdShares(devices []Device, why string) ([]Device, []Omission) {
	var out []Device
	var omissions []Omission
	told := map[pci.Address]bool{}
	for _, d := range devices {
		if SharingOf(d) == nil || !excludes(d) {
			out = append(out, d)
			continue
		}
		if at := d.Identity().PCI; !told[at] {
			told[at] = true
			omissions = append(omissions, Omission{Device: d.Name(), Reason: "like all that is shared of its GPU: " + why})
		}
	}
	return out, omissions
}

// excludes tells whether who has the device keeps others from being given out: whether it
// consumes from counters.
func excludes(d Device) bool {
	switch d := d.(type) {
	case MIG:
		return true
	case GPU:
		return d.counters != nil
	default:
		return false
	}
}

// beforeVolta tells whether the device is surely too old for limits of MPS clients.
func beforeVolta(d Device) bool {
	g, ok := d.(GPU)
	const volta = 7
	return ok && g.hardware.ComputeMajor > 0 && g.hardware.ComputeMajor < volta
}

// SharingOf gives how a device is shared; nil for a whole one.
func SharingOf(d Device) *Sharing {
	if s, ok := d.(interface{ Sharing() *Sharing }); ok {
		return s.Sharing()
	}
	return nil
}

// MemoryOf gives how much memory of its own a device has; 0 where that is not known.
func MemoryOf(d Device) uint64 {
	if s, ok := d.(sharable); ok {
		return s.MemoryBytes()
	}
	return 0
}

// Sharing is nil for a whole GPU.
func (g GPU) Sharing() *Sharing { return g.sharing }

// MemoryBytes is the physical memory.
func (g GPU) MemoryBytes() uint64 { return g.hardware.MemoryBytes }

func (g GPU) shared(s *Sharing) Device {
	g.sharing = s
	return g
}

// Sharing is nil for a partition that is given out whole.
func (m MIG) Sharing() *Sharing { return m.sharing }

// MemoryBytes is the partition's memory.
func (m MIG) MemoryBytes() uint64 { return m.part.Profile.MemoryBytes }

func (m MIG) shared(s *Sharing) Device {
	m.sharing = s
	return m
}

// share publishes what a shared device has more than a whole one: that it can be allocated
// several times, how it is divided, and who enforces that.
func (r *rendering) share(s *Sharing, memory uint64) {
	if s == nil {
		return
	}
	r.device.AllowMultipleAllocations = ptr.To(true)
	r.text("sharingEnforcement", string(s.Enforcement))
	if s.Replicas > 0 {
		r.capacity(capacityShares, resource.NewQuantity(int64(s.Replicas), resource.DecimalSI))
		policy := between(1, int64(s.Replicas), 1, 1, resource.DecimalSI)
		if s.Enforcement == EnforcedByMPS {
			// The daemon has one limit for all its clients, so nobody can have two parts.
			policy = only(1, resource.DecimalSI)
		}
		r.policy(capacityShares, policy)
	}
	r.policy(capacityMemory, s.memoryPolicy(memory))
	for name, c := range r.device.Capacity {
		if c.RequestPolicy == nil && c.Value.Sign() > 0 {
			// Of what has no policy, the first share would take all.
			r.policy(name, between(0, c.Value.Value(), 1, 0, c.Value.Format))
		}
	}
}

// memoryPolicy says which amounts of memory a claim can have, and which it has if it asks for none.
func (s Sharing) memoryPolicy(memory uint64) *resourceapi.CapacityRequestPolicy {
	part, whole := int64(s.PartBytes(memory)), int64(Sharing{}.PartBytes(memory))
	switch s.Enforcement {
	case EnforcedByMPS:
		return only(part, resource.BinarySI)
	case Cooperative, EnforcedByDriver:
		return between(mebibyte, whole, mebibyte, part, resource.BinarySI)
	}
	// Nobody's memory is counted, unless a claim wants its own to be.
	return between(0, whole, mebibyte, 0, resource.BinarySI)
}

// only is a policy of one value.
func only(value int64, format resource.Format) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{
		Default: resource.NewQuantity(value, format), ValidValues: []resource.Quantity{*resource.NewQuantity(value, format)},
	}
}

// between is a policy of a range.
func between(least, most, step, fallback int64, format resource.Format) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{
		Default: resource.NewQuantity(fallback, format),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{
			Min: resource.NewQuantity(least, format), Max: resource.NewQuantity(most, format), Step: resource.NewQuantity(step, format),
		},
	}
}

// policy gives a capacity that is published its policy.
func (r *rendering) policy(name resourceapi.QualifiedName, policy *resourceapi.CapacityRequestPolicy) {
	if c, ok := r.device.Capacity[name]; ok {
		c.RequestPolicy = policy
		r.device.Capacity[name] = c
	}
}
