package inventory

import (
	"reflect"
	"slices"

	"github.com/gpu-dra/driver/pkg/pci"
)

// Same tells whether both snapshots describe the same hardware in the same state. It ignores
// what nothing is built on: NVML's index and the texts of errors. It does compare Minor, since
// the device nodes of CDI specs depend on it.
func (s Snapshot) Same(t Snapshot) bool {
	s.Driver.Err, t.Driver.Err = nil, nil
	return s.Driver == t.Driver &&
		slices.EqualFunc(s.GPUs, t.GPUs, GPU.Same) &&
		slices.Equal(s.Unusable, t.Unusable) &&
		slices.Equal(s.Excluded, t.Excluded) &&
		slices.EqualFunc(s.Problems, t.Problems, func(a, b Problem) bool { return a.PCI == b.PCI && a.Fact == b.Fact })
}

// Same tells whether both values describe the same GPU in the same state; Index is ignored.
func (g GPU) Same(h GPU) bool {
	g.Index, h.Index = 0, 0
	return reflect.DeepEqual(g, h)
}

// ChangeKind is what became of a GPU between two snapshots.
type ChangeKind string

// The kinds of changes.
const (
	// Appeared: usable now, not so before.
	Appeared ChangeKind = "appeared"
	// Left: usable before, and not on this node any more.
	Left ChangeKind = "left"
	// Failed: on the bus, but unusable now or for another reason than before.
	Failed ChangeKind = "failed"
	// Changed: usable in both, in another state.
	Changed ChangeKind = "changed"
	// Excluded: left to others by the admin's selection, and not so before.
	Excluded ChangeKind = "excluded"
)

// Change is one difference between two snapshots.
type Change struct {
	PCI  pci.Address
	Kind ChangeKind
	// Detail says, for people, what changed: the reason of a failure, the names of fields
	// with their values before and after. It has at most 200 bytes.
	Detail string
}

// Diff tells what happened to the GPUs between two snapshots, sorted by address. It is empty
// when the GPUs are equal in the sense of Same; the driver's state is not part of it.
func Diff(before, after Snapshot) []Change {
	old, now := before.byAddress(), after.byAddress()
	oldReasons, reasons := before.reasons(), after.reasons()
	var changes []Change
	for at, g := range now {
		h, ok := old[at]
		switch {
		case !ok:
			changes = append(changes, Change{PCI: at, Kind: Appeared, Detail: g.ProductName})
		case !g.Same(h):
			changes = append(changes, Change{PCI: at, Kind: Changed, Detail: differences(h, g)})
		}
	}
	for at, reason := range reasons {
		if oldReasons[at] != reason {
			changes = append(changes, Change{PCI: at, Kind: Failed, Detail: reason})
		}
	}
	for _, at := range after.Excluded {
		if !slices.Contains(before.Excluded, at) {
			changes = append(changes, Change{PCI: at, Kind: Excluded, Detail: "the settings leave it to others"})
		}
	}
	for at, g := range old {
		if _, ok := now[at]; !ok && reasons[at] == "" && !slices.Contains(after.Excluded, at) {
			changes = append(changes, Change{PCI: at, Kind: Left, Detail: g.UUID})
		}
	}
	for i := range changes {
		changes[i].Detail = cut(changes[i].Detail, maxDetail)
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.PCI.Compare(b.PCI) })
	return changes
}

func (s Snapshot) byAddress() map[pci.Address]GPU {
	m := make(map[pci.Address]GPU, len(s.GPUs))
	for _, g := range s.GPUs {
		m[g.PCI] = g
	}
	return m
}

func (s Snapshot) reasons() map[pci.Address]string {
	m := make(map[pci.Address]string, len(s.Unusable))
	for _, u := range s.Unusable {
		m[u.PCI] = u.Reason
	}
	return m
}
