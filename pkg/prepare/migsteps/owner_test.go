package migsteps_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

func TestOwnerRemovesWhatALostRecordLeft(t *testing.T) {
	b := newBoard(t, "hgx-h100-8")
	b.gpu.MIG.Enabled = true
	place := inventory.MIGPlacement{Start: 4, Size: 2}
	foreign := inventory.MIGInstance{ID: 1, ProfileID: 19, Placement: inventory.MIGPlacement{Start: 0, Size: 1}}
	b.gpu.MIG.Instances = []inventory.MIGInstance{foreign, {ID: 5, ProfileID: 14, Placement: place}}
	l := ledger.New(t.TempDir(), "boot")
	if err := l.Add(b.id(), ledger.Instance{Profile: 14, Start: 4, Size: 2}); err != nil {
		t.Fatal(err)
	}
	var told []int
	o := migsteps.Owner{Instance: migsteps.Watched{
		Instance: migsteps.Instance{Hardware: b, Users: b, Ledger: l},
		Stuck:    &migsteps.Stuck{Tell: func(_ context.Context, current map[string]string) { told = append(told, len(current)) }},
	}}
	things, err := o.Things(t.Context())
	if err != nil || len(things) != 1 || things[0].GPU != b.gpu.PCI || things[0].Claim != "" {
		t.Fatalf("%+v, %v", things, err)
	}
	// Without a driver and with a program that has it open it stays, and so does what is known of it.
	b.busy["DestroyGPUInstance"] = 1
	b.fail["MIG"] = []error{inventory.ErrNoDriver}
	if err := o.Remove(t.Context(), things[0]); !errors.Is(err, reconcile.ErrLater) {
		t.Errorf("without a GPU driver: %v", err)
	}
	if err := o.Remove(t.Context(), things[0]); err == nil {
		t.Error("removed while in use")
	}
	for range 2 {
		if err := o.Remove(t.Context(), things[0]); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]int{1, 0}, told); diff != "" {
		t.Errorf("told of so many that are in use (-want +got):\n%s", diff)
	}
	if left := b.gpu.MIG.Instances; len(left) != 1 || left[0].ID != foreign.ID || !l.Empty() {
		t.Errorf("left %+v, ledger empty %t", left, l.Empty())
	}
}

func TestOwnerKnowsWhatAccountsForAPartition(t *testing.T) {
	gpu := pci.Address{Bus: 1}
	thing := reconcile.Thing{ID: "0000:01:00.0/GPU-1/14/4+2", GPU: gpu}
	for name, c := range map[string]struct {
		device journal.Device
		want   bool
	}{
		"its place":               {journal.Device{PCI: gpu, Kind: "mig", Partition: "2g.20gb:4+2"}, true},
		"an overlapping place":    {journal.Device{PCI: gpu, Kind: "mig", Partition: "4g.40gb:4+4"}, true},
		"another place":           {journal.Device{PCI: gpu, Kind: "mig", Partition: "2g.20gb:2+2"}, false},
		"another GPU":             {journal.Device{PCI: pci.Address{Bus: 2}, Kind: "mig", Partition: "2g.20gb:4+2"}, false},
		"admin access":            {journal.Device{PCI: gpu, Kind: "mig", Partition: "2g.20gb:4+2", AdminAccess: true}, false},
		"a partition not known":   {journal.Device{PCI: gpu, Kind: "mig"}, true},
		"the whole GPU":           {journal.Device{PCI: gpu, Kind: "gpu"}, false},
		"an unreadable partition": {journal.Device{PCI: gpu, Kind: "mig", Partition: "x"}, false},
	} {
		if got := (migsteps.Owner{}).Accounts(&journal.Record{Devices: []journal.Device{c.device}}, thing); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	for _, id := range []string{"", "a/b", "a/GPU-1/x/0+1", "a/GPU-1/1/0", "a/GPU-1/1/0+1/c"} {
		odd := reconcile.Thing{ID: id, GPU: gpu}
		if !(migsteps.Owner{}).Accounts(&journal.Record{}, odd) || (migsteps.Owner{}).Remove(t.Context(), odd) == nil {
			t.Errorf("%q is taken for a partition", id)
		}
	}
}

// Who installs a driver waits for pods to end: their claims are undone without one, and what is
// in the ledger is seen to when the driver is back.
func TestUndoWithoutADriver(t *testing.T) {
	b := newBoard(t, "hgx-h100-8")
	l := ledger.New(t.TempDir(), "boot")
	instance := migsteps.Instance{Hardware: b, Users: b, Ledger: l}
	mode := migsteps.Mode{Hardware: b, Users: b, Ledger: l, Changed: func() {}}
	if err := l.Add(b.id(), ledger.Instance{Profile: 14, Start: 4, Size: 2}); err != nil {
		t.Fatal(err)
	}
	if err := l.SetMode(b.id(), true); err != nil {
		t.Fatal(err)
	}
	b.fail["MIG"] = []error{inventory.ErrNoDriver, inventory.ErrNoDriver}
	params := []byte(`{"pci":"` + b.gpu.PCI.String() + `","gpuUUID":"` + b.gpu.UUID + `","profile":14,"start":4,"size":2}`)
	if err := instance.Undo(t.Context(), params, nil); err != nil {
		t.Error(err)
	}
	if err := mode.Undo(t.Context(), params, nil); err != nil {
		t.Error(err)
	}
	if e, err := l.Read(b.id()); err != nil || !e.Mode || len(e.Instances) != 1 {
		t.Errorf("the ledger has %+v, %v", e, err)
	}
}

// A mode that was switched on for claims goes off when no claim has a partition of the GPU, not
// while somebody uses it, and not where somebody else has partitions there.
func TestModeOwner(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	mode := r.mode()
	mode.Patience = 0
	o := migsteps.ModeOwner{Mode: mode}
	things := func(want int) []reconcile.Thing {
		t.Helper()
		got, err := o.Things(t.Context())
		if err != nil || len(got) != want {
			t.Fatalf("%+v, %v, want %d", got, err, want)
		}
		return got
	}
	things(0)
	r.gpu.MIG.Enabled = true
	must(t, r.ledger.SetMode(r.id(), true))
	place := ledger.Instance{Profile: 14, Start: 4, Size: 2}
	must(t, r.ledger.Add(r.id(), place))
	things(0)
	must(t, r.ledger.Remove(r.id(), place))
	thing := things(1)[0]
	for name, c := range map[string]struct {
		device journal.Device
		want   bool
	}{
		"a partition":    {journal.Device{PCI: r.gpu.PCI, Kind: "mig"}, true},
		"the whole":      {journal.Device{PCI: r.gpu.PCI, Kind: "gpu"}, false},
		"admin access":   {journal.Device{PCI: r.gpu.PCI, Kind: "mig", AdminAccess: true}, false},
		"of another GPU": {journal.Device{PCI: pci.Address{Bus: 77}, Kind: "mig"}, false},
	} {
		if got := o.Accounts(&journal.Record{Devices: []journal.Device{c.device}}, thing); got != c.want {
			t.Errorf("%s accounts for the mode: %t", name, got)
		}
	}
	later := func(why string) {
		t.Helper()
		if err := o.Remove(t.Context(), thing); !errors.Is(err, reconcile.ErrLater) || !r.gpu.MIG.Enabled {
			t.Errorf("%s: %v, mode %t", why, err, r.gpu.MIG.Enabled)
		}
	}
	r.fail["MIG"] = []error{inventory.ErrNoDriver}
	later("without a driver")
	r.gpu.MIG.Instances = []inventory.MIGInstance{{ID: 1, ProfileID: 19}}
	later("a foreign partition")
	r.gpu.MIG.Instances = nil
	r.busy["SetMIGMode"] = 1
	later("in use")
	r.fail["MIG"] = []error{errors.New("no answer")}
	if err := o.Remove(t.Context(), thing); err == nil || errors.Is(err, reconcile.ErrLater) {
		t.Errorf("an error of the driver: %v", err)
	}
	for range 2 {
		must(t, o.Remove(t.Context(), thing))
	}
	if r.gpu.MIG.Enabled || !r.ledger.Empty() {
		t.Errorf("mode %t, ledger empty %t", r.gpu.MIG.Enabled, r.ledger.Empty())
	}
	things(0)
}
