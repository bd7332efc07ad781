package layout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
)

// Plan is what has to be done to one GPU, in this order: remove, switch the mode, make.
type Plan struct {
	// Remove are instances that this driver made, for an earlier layout or for claims.
	Remove []inventory.MIGInstance
	// Switch tells that the MIG mode has to be switched to Mode.
	Switch, Mode bool
	// Make are the partitions to make. One whose GPU instance is there already lacks its compute
	// instance.
	Make []mig.Partition
}

// Done tells that there is nothing to do.
func (p Plan) Done() bool { return len(p.Remove) == 0 && !p.Switch && len(p.Make) == 0 }

// Disturbs tells that the plan can only be carried out while nothing uses the GPU. Instances that
// are only made beside others disturb nobody.
func (p Plan) Disturbs() bool { return len(p.Remove) > 0 || p.Switch }

// Plan says what has to be done to a GPU, whose instances are marked, so that it is as declared.
// What others made counts where it is part of the layout, and is never removed. The same GPU
// gives the same plan, and of all ways to place the instances one that leaves room for the
// largest profile. Errors: *ProfileError, *FitError, *ForeignError, *ModeError and
// Layout.Refused.
func (l Layout) Plan(gpu inventory.GPU) (Plan, error) {
	if l.Refused != nil {
		return Plan{}, l.Refused
	}
	geometry, can := mig.NewGeometry(gpu)
	t := task{layout: l, gpu: gpu, geometry: geometry}
	if !l.Enabled {
		return t.off(can)
	}
	if !can {
		return Plan{}, &ProfileError{Config: l.Config, Profile: counted(l.Profiles), GPU: gpu.PCI, Product: gpu.ProductName}
	}
	if err := t.resolve(); err != nil {
		return Plan{}, err
	}
	return t.on()
}

// Undo says what has to be done to a GPU so that nothing is left of an earlier layout.
func Undo(gpu inventory.GPU) Plan {
	var p Plan
	others := false
	for _, i := range gpu.MIG.Instances {
		if i.Declared {
			p.Remove = append(p.Remove, i)
		}
		others = others || !i.Declared
	}
	p.Switch = gpu.MIG.Declared && gpu.MIG.Enabled && !others && mig.SwitchesAtOnce(gpu)
	return p
}

// task is the planning of one GPU.
type task struct {
	layout   Layout
	gpu      inventory.GPU
	geometry mig.Geometry
	// wanted are the profiles to be there, each as often as it is declared, large ones first.
	wanted []inventory.MIGProfile
	// foreign are instances of others that are part of the layout.
	foreign []mig.Partition
}

// off plans a GPU that is to be whole.
func (t *task) off(can bool) (Plan, error) {
	p := Plan{}
	for _, i := range t.gpu.MIG.Instances {
		if !i.Declared && !i.Ours {
			return Plan{}, t.inTheWay()
		}
		p.Remove = append(p.Remove, i)
	}
	p.Switch = can && t.gpu.MIG.Enabled
	if p.Switch && !mig.SwitchesAtOnce(t.gpu) {
		return Plan{}, t.needsReset(false)
	}
	return p, nil
}

func (t *task) needsReset(wanted bool) error {
	return &ModeError{Config: t.layout.Config, GPU: t.gpu.PCI, Product: t.gpu.ProductName, Wanted: wanted}
}

// resolve finds the declared profiles among those that the GPU has.
func (t *task) resolve() error {
	byName := map[string]inventory.MIGProfile{}
	for _, part := range t.geometry.Partitions(nil) {
		byName[part.Profile.Name] = part.Profile
	}
	for _, name := range slices.Sorted(maps.Keys(t.layout.Profiles)) {
		profile, ok := byName[name]
		if !ok {
			return &ProfileError{Config: t.layout.Config, Profile: name, GPU: t.gpu.PCI, Product: t.gpu.ProductName, Has: t.has()}
		}
		// More than there can be need not be listed.
		for range min(t.layout.Profiles[name], profile.MaxInstances+1) {
			t.wanted = append(t.wanted, profile)
		}
	}
	slices.SortStableFunc(t.wanted, func(a, b inventory.MIGProfile) int {
		return cmp.Or(cmp.Compare(b.Placements[0].Size, a.Placements[0].Size), cmp.Compare(b.Slices, a.Slices), cmp.Compare(a.ID, b.ID))
	})
	return nil
}

// has lists what the GPU can have of each profile.
func (t *task) has() []string {
	counts := map[string]int{}
	for _, part := range t.geometry.Partitions(nil) {
		counts[part.Profile.Name] = part.Profile.MaxInstances
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%d x %s", counts[name], name))
	}
	return out
}

// on plans a GPU that is to have instances.
func (t *task) on() (Plan, error) {
	if !t.gpu.MIG.Enabled && (t.gpu.MIG.PendingEnabled || !mig.SwitchesAtOnce(t.gpu)) {
		return Plan{}, t.needsReset(true)
	}
	rest := slices.Clone(t.wanted)
	var own []inventory.MIGInstance
	for _, i := range t.gpu.MIG.Instances {
		switch part := t.geometry.PartitionOf(i); {
		case i.Declared || i.Ours:
			own = append(own, i)
		case whole(i, part) && take(&rest, part):
			t.foreign = append(t.foreign, part)
		default:
			return Plan{}, t.inTheWay()
		}
	}
	plan, ok := t.around(own, rest, true)
	if !ok || plan.Disturbs() {
		// Something has to go anyway: the best places, whatever there was before.
		plan, ok = t.around(own, rest, false)
	}
	if !ok {
		return Plan{}, t.noRoom(rest)
	}
	plan.Switch, plan.Mode = !t.gpu.MIG.Enabled, true
	return plan, nil
}

// around plans beside what others made. With keep, what an earlier layout left of the wanted
// profiles stays where it is; without, only what is at the best places stays.
func (t *task) around(own []inventory.MIGInstance, rest []inventory.MIGProfile, keep bool) (Plan, bool) {
	left := slices.Clone(rest)
	fixed := slices.Clone(t.foreign)
	if keep {
		for _, i := range own {
			if part := t.geometry.PartitionOf(i); i.Declared && take(&left, part) {
				fixed = append(fixed, part)
			}
		}
	}
	placed, ok := place(t.geometry, left, fixed)
	if !ok {
		return Plan{}, false
	}
	var p Plan
	wanted := slices.Concat(fixed[len(t.foreign):], placed)
	for _, i := range own {
		part := t.geometry.PartitionOf(i)
		at := slices.IndexFunc(wanted, func(w mig.Partition) bool { return i.Declared && w.Key() == part.Key() })
		switch {
		case at < 0:
			p.Remove = append(p.Remove, i)
		case whole(i, part):
			wanted = slices.Delete(wanted, at, at+1)
		}
	}
	p.Make = wanted
	return p, true
}

// take removes the partition's profile from a list once; false where it is not in it.
func take(from *[]inventory.MIGProfile, part mig.Partition) bool {
	i := slices.IndexFunc(*from, func(p inventory.MIGProfile) bool { return part.Label != "" && p.ID == part.Profile.ID })
	if i >= 0 {
		*from = slices.Delete(*from, i, i+1)
	}
	return i >= 0
}

// whole tells whether an instance has one compute instance that spans it.
func whole(i inventory.MIGInstance, part mig.Partition) bool {
	return len(i.Compute) == 1 && (i.Compute[0].Slices == 0 || i.Compute[0].Slices == part.Profile.Slices)
}

func (t *task) inTheWay() error {
	var by []inventory.MIGInstance
	for _, i := range t.gpu.MIG.Instances {
		if !i.Declared && !i.Ours {
			by = append(by, i)
		}
	}
	return &ForeignError{Config: t.layout.Config, Wanted: t.layout.String(), GPU: t.gpu.PCI, By: by}
}

// noRoom finds out whose fault it is that the rest fits nowhere.
func (t *task) noRoom(rest []inventory.MIGProfile) error {
	if len(t.foreign) > 0 {
		if _, alone := place(t.geometry, t.wanted, nil); alone {
			return t.inTheWay()
		}
		rest = t.wanted
	}
	e := &FitError{Config: t.layout.Config, Wanted: t.layout.String(), GPU: t.gpu.PCI, Product: t.gpu.ProductName, Has: t.has()}
	for n := range rest {
		if _, ok := place(t.geometry, rest[:n+1], nil); !ok {
			e.Profile = rest[n].Name
			for _, p := range rest[:n] {
				if p.ID == rest[n].ID {
					e.Fits++
				}
			}
			break
		}
	}
	return e
}
