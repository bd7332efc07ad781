package mig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Geometry is what one GPU can be cut into. It is immutable.
type Geometry struct {
	at       pci.Address
	units    int
	profiles []inventory.MIGProfile
	labels   map[int]string
	totals   map[string]int64
	// limited are the profiles that only a counter of their own holds to their number.
	limited map[int]string
	// scarce are the engine counters that partitions side by side could use up.
	scarce map[string]bool
}

// NewGeometry works out the geometry of a GPU; false where NVML reports nothing to cut it into.
// Profiles without a name, a placement or a compute slice of their own are passed over, and so
// are those of compute instances ("1c.2g.10gb"): a partition has all of its GPU instance.
func NewGeometry(gpu inventory.GPU) (Geometry, bool) {
	g := Geometry{
		at: gpu.PCI, labels: map[int]string{}, totals: map[string]int64{}, limited: map[int]string{}, scarce: map[string]bool{},
	}
	for _, p := range gpu.MIG.Profiles {
		if _, twice := g.labels[p.ID]; twice || !usable(p) {
			continue
		}
		g.labels[p.ID] = g.label(p)
		g.profiles = append(g.profiles, p)
		for _, at := range p.Placements {
			g.units = max(g.units, at.End())
		}
	}
	slices.SortStableFunc(g.profiles, func(a, b inventory.MIGProfile) int {
		return cmp.Or(cmp.Compare(a.MemoryBytes, b.MemoryBytes), cmp.Compare(a.Slices, b.Slices), cmp.Compare(a.ID, b.ID))
	})
	g.total()
	return g, len(g.profiles) > 0
}

func usable(p inventory.MIGProfile) bool {
	first, _, _ := strings.Cut(p.Name, ".")
	partial := strings.HasSuffix(first, "c") && strings.Trim(first, "0123456789") == "c"
	placed := slices.ContainsFunc(p.Placements, func(at inventory.MIGPlacement) bool { return at.Start >= 0 && at.Size > 0 })
	return p.Name != "" && !partial && p.Slices > 0 && p.MaxInstances > 0 && placed
}

// total sums up what the GPU has to give.
func (g *Geometry) total() {
	for _, p := range g.profiles {
		for name, amount := range engines(p) {
			g.totals[name] = max(g.totals[name], amount*int64(min(p.MaxInstances, maxCount)))
		}
	}
	for name, total := range g.totals {
		g.scarce[name] = g.most(name) > total
	}
	for i := range g.units {
		g.totals[sliceCounter(i)] = 1
	}
	for _, p := range g.profiles {
		if g.reach(p) > p.MaxInstances {
			name := "instances-of-" + g.labels[p.ID]
			g.limited[p.ID], g.totals[name] = name, int64(p.MaxInstances)
		}
	}
}

// most is the largest amount of an engine that partitions side by side have together, whatever
// number of instances NVML allows.
func (g *Geometry) most(engine string) int64 {
	best := make([]int64, g.units+1)
	amounts := make([]int64, len(g.profiles))
	for i, p := range g.profiles {
		amounts[i] = engines(p)[engine]
	}
	for end := 1; end <= g.units; end++ {
		best[end] = best[end-1]
		for i, p := range g.profiles {
			for _, at := range p.Placements {
				if at.Start >= 0 && at.Size > 0 && at.End() == end {
					best[end] = max(best[end], best[at.Start]+amounts[i])
				}
			}
		}
	}
	return best[g.units]
}

// reach is how many instances of a profile slices and engines allow.
func (g *Geometry) reach(p inventory.MIGProfile) int {
	count, end := 0, 0
	for _, at := range slices.SortedFunc(slices.Values(p.Placements), func(a, b inventory.MIGPlacement) int { return cmp.Compare(a.End(), b.End()) }) {
		if at.Start >= end {
			count, end = count+1, at.End()
		}
	}
	for name, amount := range engines(p) {
		count = min(count, int(g.totals[name]/amount))
	}
	return count
}

// The counters that are not memory slices, as NVIDIA's driver names them.
const (
	counterSMs      = "multiprocessors"
	counterCopy     = "copy-engines"
	counterDecoders = "decoders"
	counterEncoders = "encoders"
	counterJPEG     = "jpeg-engines"
	counterOFA      = "ofa-engines"
	counterMemory   = "memory"
)

func sliceCounter(i int) string { return "memory-slice-" + strconv.Itoa(i) }

// Bounds beyond which figures are nonsense, so that no product of two overflows.
const (
	maxAmount = 1 << 50
	maxCount  = 1 << 12
)

// engines are the amounts of one instance, without those that are 0.
func engines(p inventory.MIGProfile) map[string]int64 {
	all := map[string]int64{
		counterSMs: int64(p.Multiprocessors), counterCopy: int64(p.CopyEngines), counterDecoders: int64(p.Decoders),
		counterEncoders: int64(p.Encoders), counterJPEG: int64(p.JPEGEngines), counterOFA: int64(p.OFAEngines),
		counterMemory: int64(min(p.MemoryBytes, maxAmount)),
	}
	for name, amount := range all {
		all[name] = min(amount, maxAmount)
	}
	maps.DeleteFunc(all, func(_ string, amount int64) bool { return amount <= 0 })
	return all
}

// Units is the number of memory slices.
func (g Geometry) Units() int { return g.units }

// CounterSetName is the name of the counter set of the GPU at an address.
func CounterSetName(at pci.Address) string { return "gpu-" + at.Label() }

// CounterSet is all that the GPU has to give. It depends on the board and its driver alone, so
// it stays the same whatever partitions come and go.
func (g Geometry) CounterSet() resourceapi.CounterSet {
	return resourceapi.CounterSet{Name: CounterSetName(g.at), Counters: counters(g.totals)}
}

// Whole is what the whole GPU consumes: everything.
func (g Geometry) Whole() resourceapi.DeviceCounterConsumption {
	return resourceapi.DeviceCounterConsumption{CounterSet: CounterSetName(g.at), Counters: counters(g.totals)}
}

// Consumes is what a partition of this GPU consumes: its memory slices, and of the engines those
// that could run out.
func (g Geometry) Consumes(p Partition) resourceapi.DeviceCounterConsumption {
	amounts := g.amounts(p)
	maps.DeleteFunc(amounts, func(name string, _ int64) bool {
		scarce, engine := g.scarce[name]
		return engine && !scarce
	})
	return resourceapi.DeviceCounterConsumption{CounterSet: CounterSetName(g.at), Counters: counters(amounts)}
}

// amounts are all that a partition takes.
func (g Geometry) amounts(p Partition) map[string]int64 {
	amounts := engines(p.Profile)
	for i := p.Placement.Start; i < p.Placement.End(); i++ {
		amounts[sliceCounter(i)] = 1
	}
	if name, ok := g.limited[p.Profile.ID]; ok {
		amounts[name] = 1
	}
	return amounts
}

func counters(amounts map[string]int64) map[string]resourceapi.Counter {
	out := make(map[string]resourceapi.Counter, len(amounts))
	for name, amount := range amounts {
		format := resource.DecimalSI
		if name == counterMemory {
			format = resource.BinarySI
		}
		out[name] = resourceapi.Counter{Value: *resource.NewQuantity(amount, format)}
	}
	return out
}

// Profile finds a profile by NVML's id.
func (g Geometry) Profile(id int) (inventory.MIGProfile, bool) {
	i := slices.IndexFunc(g.profiles, func(p inventory.MIGProfile) bool { return p.ID == id })
	if i < 0 {
		return inventory.MIGProfile{}, false
	}
	return g.profiles[i], true
}

// label makes a profile's name part of a device's name, which has lower case letters, digits
// and dashes: "1g.10gb" is "1g-10gb". What a profile adds and leaves out is told in words, since
// "1g.24gb+me" and "1g.24gb-me" are not the same.
func (g Geometry) label(p inventory.MIGProfile) string {
	text := strings.NewReplacer(".", "-", "+", "-with-", "-", "-without-", "_", "-").Replace(strings.ToLower(p.Name))
	text = strings.Map(func(r rune) rune {
		if r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, text)
	text = strings.Trim(text, "-")
	if taken := slices.Contains(slices.Collect(maps.Values(g.labels)), text); taken || text == "" || len(text) > maxLabel {
		// The id tells profiles apart where the name does not.
		text = fmt.Sprintf("profile-%d", p.ID)
	}
	return text
}

// maxLabel leaves room in the 63 bytes of a device's name for the GPU's address and the start.
const maxLabel = 32
