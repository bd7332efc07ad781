package layout

import (
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Difference is a GPU that is not as declared.
type Difference struct {
	GPU pci.Address
	// Want and Have are for people: "2 x 1g.10gb, 1 x 4g.40gb", "MIG mode off".
	Want, Have string
	// Problem is why it cannot become as declared; nil where it can.
	Problem error
}

// String gives one line.
func (d Difference) String() string {
	text := fmt.Sprintf("GPU %s: want %s, have %s", d.GPU, d.Want, d.Have)
	if d.Problem != nil {
		text += fmt.Sprintf(" (%v)", d.Problem)
	}
	return text
}

// Compare lists the GPUs that are not as declared, by address. It does not matter who made an
// instance, nor where on the GPU it is.
func (l Layouts) Compare(s inventory.Snapshot) []Difference {
	var out []Difference
	for _, g := range s.GPUs {
		wanted, declared := l[g.PCI]
		if !declared {
			continue
		}
		have := Of(g)
		if wanted.Refused == nil && wanted.same(have) {
			continue
		}
		_, err := wanted.Plan(g)
		out = append(out, Difference{GPU: g.PCI, Want: wanted.String(), Have: have.String(), Problem: err})
	}
	return out
}

// Of is the layout that a GPU has now. Instances without a name, and ones that are not one
// whole, count as "unknown" and differ from every declaration.
func Of(gpu inventory.GPU) Layout {
	l := Layout{Enabled: gpu.MIG.Enabled, Profiles: map[string]int{}}
	geometry, _ := mig.NewGeometry(gpu)
	for _, i := range gpu.MIG.Instances {
		part := geometry.PartitionOf(i)
		name := part.Profile.Name
		if part.Label == "" || !whole(i, part) {
			name = unknown
		}
		l.Profiles[name]++
	}
	return l
}

const unknown = "unknown"

// Export writes the layout that a node has now as a file with one configuration of that name.
// GPUs that are alike share an entry; those that cannot be partitioned are left out.
func Export(config string, s inventory.Snapshot) ([]byte, error) {
	type entry struct {
		layout  Layout
		numbers []int
	}
	var entries []entry
	numbers := numbersOf(s)
	for _, g := range s.GPUs {
		if _, can := mig.NewGeometry(g); !can {
			continue
		}
		have := Of(g)
		if n := have.Profiles[unknown]; n > 0 {
			return nil, fmt.Errorf("GPU %s has %d instances that are not one compute instance each, or of a profile without a name: no layout says that", g.PCI, n)
		}
		i := slices.IndexFunc(entries, func(e entry) bool { return e.layout.same(have) })
		if i < 0 {
			i, entries = len(entries), append(entries, entry{layout: have})
		}
		entries[i].numbers = append(entries[i].numbers, numbers[g.PCI])
	}
	if len(entries) == 0 {
		return nil, errors.New("no GPU of this node can be partitioned")
	}
	d := document{Version: version, Configs: map[string][]rule{}}
	for _, e := range entries {
		on := devices{all: len(entries) == 1, numbers: e.numbers}
		r := rule{Devices: &on, Enabled: &e.layout.Enabled}
		if e.layout.Enabled {
			r.Profiles = e.layout.Profiles
		}
		d.Configs[config] = append(d.Configs[config], r)
	}
	data, err := yaml.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("write MIG layout %q: %w", config, err)
	}
	return data, nil
}
