package layout

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Layout is what one GPU is declared to be.
type Layout struct {
	// Config is the name of the configuration, for messages.
	Config string
	// Enabled is the MIG mode.
	Enabled bool
	// Profiles are the names of profiles with the number of instances of each.
	Profiles map[string]int
	// Refused is why nothing can be made of the declaration; nil as a rule.
	Refused error
}

// String gives "off", or the profiles as "2 x 1g.10gb, 1 x 4g.40gb".
func (l Layout) String() string {
	if !l.Enabled {
		return "MIG mode off"
	}
	return counted(l.Profiles)
}

func counted(profiles map[string]int) string {
	if len(profiles) == 0 {
		return "no instances"
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		parts = append(parts, fmt.Sprintf("%d x %s", profiles[name], name))
	}
	return strings.Join(parts, ", ")
}

// same tells whether both say the same of a GPU.
func (l Layout) same(other Layout) bool {
	return l.Enabled == other.Enabled && maps.Equal(l.Profiles, other.Profiles)
}

// UnknownConfigError tells that a configuration is named that the file does not have.
type UnknownConfigError struct {
	Config string
	// Known are those that it has.
	Known []string
}

func (e *UnknownConfigError) Error() string {
	return fmt.Sprintf("there is no MIG layout %q: the file has %s", e.Config, strings.Join(e.Known, ", "))
}

// Layouts are the layouts of a node's GPUs by address. A GPU that is not in it has none.
type Layouts map[pci.Address]Layout

// Select finds the layout of each GPU by the configuration of that name; *UnknownConfigError
// where there is none. Entries for "all" pass over GPUs that cannot be partitioned; where two
// entries say different things of a GPU its layout is Refused.
func (f File) Select(config string, s inventory.Snapshot) (Layouts, error) {
	rules, ok := f.configs[config]
	if !ok {
		return nil, &UnknownConfigError{Config: config, Known: f.Names()}
	}
	layouts := Layouts{}
	numbers := numbersOf(s)
	for _, g := range s.GPUs {
		first := -1
		for i, r := range rules {
			if !r.matches(numbers[g.PCI], uint32(g.PCIDevice)<<16|vendorNVIDIA) {
				continue
			}
			if _, can := mig.NewGeometry(g); r.Devices.all && !can {
				continue
			}
			l := Layout{Config: config, Enabled: *r.Enabled, Profiles: r.Profiles}
			switch before, twice := layouts[g.PCI]; {
			case !twice:
				layouts[g.PCI], first = l, i
			case !before.same(l):
				before.Refused = fmt.Errorf("MIG layout %q says different things of GPU %s: entry %d %q, entry %d %q", config, g.PCI, first, before, i, l)
				layouts[g.PCI] = before
			}
		}
	}
	return layouts, nil
}

const vendorNVIDIA = 0x10de

// numbersOf counts the node's GPUs by address, lost and excluded ones too.
func numbersOf(s inventory.Snapshot) map[pci.Address]int {
	numbers := map[pci.Address]int{}
	for i, a := range s.Addresses() {
		numbers[a] = i
	}
	return numbers
}
