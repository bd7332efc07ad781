package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/pci"
)

// The errors of changing partitions that a caller decides on; edges wrap them.
var (
	// ErrInUse: something still uses the instance, or the GPU whose mode is to change.
	ErrInUse = errors.New("in use")
	// ErrNoRoom: the GPU has no room for the instance. NVML says so also of a placement that
	// is taken.
	ErrNoRoom = errors.New("no room")
	// ErrNoSuchGPU: the driver knows no GPU, or no instance, by that name.
	ErrNoSuchGPU = errors.New("not known to the driver")
	// ErrNeedsReset: the mode changes only with a reset of the GPU.
	ErrNeedsReset = errors.New("the GPU has to be reset first")
)

// GPUID names one physical GPU to those that change it: the UUID tells whether a board was
// replaced.
type GPUID struct {
	PCI  pci.Address
	UUID string
}

// Process is a program that uses a GPU.
type Process struct {
	// PID is the number in the namespace of the driver's processes, the host's as a rule.
	PID int
	// Instance is the GPU instance that it uses; -1 where it uses none.
	Instance int
}

// MIG is a GPU's partitioning state.
type MIG struct {
	// Capable is false where NVML answers that the board does not support MIG.
	Capable bool
	Enabled bool
	// PendingEnabled differs from Enabled while a mode change waits for a reset.
	PendingEnabled bool
	// Ours tells that this driver switched the mode on for claims. No scan knows: package
	// mig/ledger marks snapshots.
	Ours bool
	// Declared tells that this driver switched the mode on for a declared layout; marked too.
	Declared bool
	// Profiles are the sizes that the GPU can be cut into, sorted by ID; nil where they were not
	// asked for or could not be read. They are there whether the mode is on or off.
	Profiles []MIGProfile
	// Instances are the GPU instances that exist, sorted by placement; nil while the mode is off.
	Instances []MIGInstance
}

// MIGProfile is one kind of GPU instance, as NVML describes it.
type MIGProfile struct {
	// ID is NVML's: it creates an instance and tells what one is. It is neither an index nor
	// the same on all boards.
	ID int
	// Name is NVML's text without its "MIG " in front: "1g.10gb", "1g.24gb+me.all".
	Name string
	// Slices is the number of compute slices.
	Slices int
	// MaxInstances is how many the GPU can have at once.
	MaxInstances int
	// MemoryBytes is the memory of one instance.
	MemoryBytes uint64
	// The engines of one instance.
	Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
	// Placements are where an instance can be, sorted.
	Placements []MIGPlacement
}

// MIGPlacement is a range of a GPU's memory slices. How many there are is the board's matter:
// 4, 8 and 12 are known.
type MIGPlacement struct{ Start, Size int }

// End is the first memory slice behind the placement.
func (p MIGPlacement) End() int { return p.Start + p.Size }

// Overlaps tells whether both use the same memory slice.
func (p MIGPlacement) Overlaps(q MIGPlacement) bool { return p.Start < q.End() && q.Start < p.End() }

// Compare orders placements by start, then by size.
func (p MIGPlacement) Compare(q MIGPlacement) int {
	return cmp.Or(cmp.Compare(p.Start, q.Start), cmp.Compare(p.Size, q.Size))
}

// String gives "start:size", as nvidia-smi does.
func (p MIGPlacement) String() string { return fmt.Sprintf("%d:%d", p.Start, p.Size) }

// MIGInstance is one GPU instance.
type MIGInstance struct {
	// ID is NVML's, valid while the instance lives.
	ID        int
	ProfileID int
	Placement MIGPlacement
	// Ours tells that this driver made it for a claim; see MIG.Ours.
	Ours bool
	// Declared tells that this driver made it for a declared layout. To claims it is like those
	// that others made.
	Declared bool
	// Compute are its compute instances, sorted by ID.
	Compute []MIGCompute
}

// MIGCompute is one compute instance: what CUDA programs see as a device.
type MIGCompute struct {
	ID int
	// UUID is NVML's, "MIG-…". An instance that is made again at the same place has it again:
	// it never names one over time.
	UUID string
	// Slices is the number of the GPU instance's compute slices that it has; 0 when unknown.
	Slices int
}

// mig joins what was read of a GPU's partitioning.
func (a *assembly) mig(b Board) MIG {
	at := b.PCI.Value
	m := take(a, at, "migMode", b.MIG)
	if !m.Capable {
		return m
	}
	m.Profiles = slices.Clone(take(a, at, "migProfiles", b.MIGProfiles))
	slices.SortFunc(m.Profiles, func(x, y MIGProfile) int { return cmp.Compare(x.ID, y.ID) })
	m.Instances = slices.Clone(take(a, at, "migInstances", b.MIGInstances))
	slices.SortFunc(m.Instances, func(x, y MIGInstance) int { return x.Placement.Compare(y.Placement) })
	return m
}
