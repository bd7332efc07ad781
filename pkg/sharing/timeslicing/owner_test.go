package timeslicing

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// record is that of a claim with the wish's step.
func record(t *testing.T, w wish) *journal.Record {
	t.Helper()
	steps, err := Handler{}.Steps(w.device())
	ok(t, err)
	return &journal.Record{UID: w.claim, Devices: []journal.Device{{Name: w.gpu.Name(), Steps: steps}}}
}

// An interval whose claim has lost its record is put back, and no other.
func TestOwner(t *testing.T) {
	m := newMachine(t)
	lost, lives := wish{claim: "a", gpu: 1, interval: "Long"}, wish{claim: "b", share: "s", gpu: 2, interval: "Short"}
	owner := Owner{Executor: m.executor()}
	if things, err := owner.Things(t.Context()); err != nil || things != nil {
		t.Fatalf("before anything: %v, %v", things, err)
	}
	ok(t, m.prepare(t, lost))
	ok(t, m.prepare(t, lives))
	delete(m.known, "a")
	gpu := func(w wish) string { return w.gpu.Identity().PCI.Label() }
	ok(t, os.WriteFile(filepath.Join(m.dir, gpu(lost), "torn"), nil, 0o600))

	things, err := owner.Things(t.Context())
	ok(t, err)
	want := []reconcile.Thing{
		{ID: gpu(lost) + "/a", GPU: lost.gpu.Identity().PCI}, {ID: gpu(lives) + "/b_s", GPU: lives.gpu.Identity().PCI},
	}
	if diff := cmp.Diff(want, things); diff != "" {
		t.Fatalf("things (-want +got):\n%s", diff)
	}
	for i, w := range []wish{lost, lives} {
		for j, thing := range things {
			if owner.Accounts(record(t, w), thing) != (i == j) {
				t.Errorf("the record of %s accounts for %s: %t", w.claim, thing.ID, i != j)
			}
		}
	}
	if owner.Accounts(&journal.Record{Devices: []journal.Device{{Steps: []journal.Step{{Kind: "mig-mode"}}}}}, things[0]) {
		t.Error("another step accounts for it")
	}
	// Records that were rebuilt have no steps.
	share := lives.share
	for name, c := range map[string]struct {
		claim  types.UID
		device journal.Device
		want   bool
	}{
		"rebuilt":       {"b", journal.Device{PCI: things[1].GPU, ShareID: &share}, true},
		"another share": {"b", journal.Device{PCI: things[1].GPU}, false},
		"another claim": {"a", journal.Device{PCI: things[1].GPU, ShareID: &share}, false},
		"another GPU":   {"b", journal.Device{PCI: things[0].GPU, ShareID: &share}, false},
		"other steps":   {"b", journal.Device{PCI: things[1].GPU, ShareID: &share, Steps: []journal.Step{{Kind: "mig-mode"}}}, false},
	} {
		if got := owner.Accounts(&journal.Record{UID: c.claim, Devices: []journal.Device{c.device}}, things[1]); got != c.want {
			t.Errorf("%s: accounts for it: %t", name, got)
		}
	}
	m.took()
	ok(t, owner.Remove(t.Context(), things[0]))
	ok(t, owner.Remove(t.Context(), things[0]))
	m.expect(t, "removed", "GPU-1 Default")
	if have := m.interval(2); have != "Short" {
		t.Errorf("the other GPU has %s", have)
	}
	left, err := owner.Things(t.Context())
	ok(t, err)
	if diff := cmp.Diff(want[1:], left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
