package prepare

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// by maps devices by their names.
func by(boards ...board) map[string]device.Device {
	m := map[string]device.Device{}
	for _, b := range boards {
		m[b.Name()] = b
	}
	return m
}

func TestRenew(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	whole, part := board{bus: 1, uuid: "G1", minor: 1}, board{bus: 2, uuid: "G2", minor: 2, partition: "1g"}
	prepareOK(t, e, plan("u1", whole))
	prepareOK(t, e, plan("u2", part))
	before := n.spec(t, "u2")
	renew := func(want int, devices map[string]device.Device) {
		t.Helper()
		renewed, err := e.Renew(t.Context(), devices)
		must(t, err)
		if len(renewed) != want {
			t.Errorf("renewed %v, want %d", renewed, want)
		}
	}
	renew(0, by(whole, part))
	// The minors are permuted.
	whole.minor, part.minor = 7, 8
	renew(2, by(whole, part))
	renew(0, by(whole, part))
	if s := n.spec(t, "u1"); !strings.Contains(s, "nvidia7") || strings.Contains(s, "nvidia1\"") {
		t.Errorf("spec of the whole GPU: %s", s)
	}
	if s := n.spec(t, "u2"); strings.ReplaceAll(before, "nvidia2", "nvidia8") != strings.ReplaceAll(s, `"minor":8`, `"minor":2`) {
		t.Errorf("spec of the partition:\n%s\nwas:\n%s", s, before)
	}
	// A GPU that is gone, or swapped, is not renewed: its claim's next prepare says so.
	part.uuid, part.minor = "other", 9
	renew(0, by(part))
	// Nor is a claim from before a reboot, or one that is half prepared.
	whole.minor = 9
	n.boot++
	e = n.start(t)
	renew(0, by(whole))
	unprepareOK(t, e, "u1")
	unprepareOK(t, e, "u2")
	n.clean(t)
}

func TestRenewSaysWhatIsMissing(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	one, two := board{bus: 1, uuid: "G1", minor: 1}, board{bus: 2, uuid: "G2", minor: 2}
	prepareOK(t, e, plan("u1", one))
	prepareOK(t, e, plan("u2", two))
	one.minor, two.minor = 3, 4
	delete(n.nodes, "nvidia3")
	renewed, err := e.Renew(t.Context(), by(one, two))
	if err == nil || !strings.Contains(err.Error(), "nvidia3") || len(renewed) != 1 {
		t.Errorf("renewed %v, error %v", renewed, err)
	}
}

func TestUnprepareIf(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	b := board{bus: 1, uuid: "G1", minor: 1, partition: "1g"}
	prepareOK(t, e, plan("u", b))
	ask := func(answer bool) func(context.Context, *journal.Record) bool {
		return func(_ context.Context, r *journal.Record) bool {
			if r.UID != "u" || r.State != journal.StatePrepared {
				t.Errorf("asked about %+v", r)
			}
			return answer
		}
	}
	if undone, err := e.UnprepareIf(t.Context(), "u", ask(false)); undone || err != nil {
		t.Errorf("undone %t, %v", undone, err)
	}
	prepareOK(t, e, plan("u", b))
	if undone, err := e.UnprepareIf(t.Context(), "u", ask(true)); !undone || err != nil {
		t.Errorf("undone %t, %v", undone, err)
	}
	n.clean(t)
	for _, uid := range []string{"u", "unknown"} {
		if undone, err := e.UnprepareIf(t.Context(), claims.Ref{UID: "u"}.UID, func(context.Context, *journal.Record) bool {
			t.Error("asked without a record")
			return true
		}); undone || err != nil {
			t.Errorf("%s: undone %t, %v", uid, undone, err)
		}
	}
	if _, err := e.UnprepareIf(t.Context(), "../x", nil); err == nil {
		t.Error("a UID that is a path was taken")
	}
	n.clean(t)
}

func TestWorkUnderTheLocks(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, plan("u", board{bus: 1, uuid: "G1", minor: 1}))
	ran := 0
	work := func(context.Context) error { ran++; return nil }
	must(t, e.WithoutRecord(t.Context(), "u", work))
	if ran != 0 {
		t.Error("ran though there is a record")
	}
	must(t, e.WithoutRecord(t.Context(), "v", work))
	must(t, e.OnGPU(t.Context(), pci.Address{Bus: 1}, func(_ context.Context, records []*journal.Record) error {
		ran++
		if len(records) != 1 || records[0].UID != "u" {
			t.Errorf("records %v", records)
		}
		return nil
	}))
	if ran != 2 {
		t.Errorf("ran %d times, want 2", ran)
	}
	if e.WithoutRecord(t.Context(), "../x", work) == nil {
		t.Error("a UID that is a path was taken")
	}
	unprepareOK(t, e, "u")
	n.clean(t)
}

// What a claim was given of a shared device is known without the claim.
func TestPlanOfARecordKnowsTheShare(t *testing.T) {
	share := types.UID("share")
	wanted := plan("a", gpu(1))
	wanted.Devices[0].ShareID, wanted.Devices[0].MemoryBytes = &share, 5<<30
	n := newNode(t)
	e := n.start(t)
	record, err := e.newRecord(wanted)
	must(t, err)
	have, ok := planOf(record, by(gpu(1)))
	if !ok || len(have.Devices) != 1 || *have.Devices[0].ShareID != share || have.Devices[0].MemoryBytes != 5<<30 || have.Devices[0].Claim.UID != "a" {
		t.Errorf("plan %+v", have)
	}
}
