package report

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/pci"
)

type sent struct{ On, Type, Reason, Action, Note string }

type recorder struct {
	mu     sync.Mutex
	events []sent
	// paths are the field paths of all Events that had one.
	paths []string
}

func (r *recorder) Eventf(regarding, _ runtime.Object, eventtype, reason, action, note string, args ...any) {
	on := ""
	switch o := regarding.(type) {
	case *corev1.Node:
		on = "node " + o.Name
	case *corev1.ObjectReference:
		on = "node " + o.Name
		r.paths = append(r.paths, o.FieldPath)
	case *resourceapi.ResourceClaim:
		on = "claim " + o.Namespace + "/" + o.Name + " " + string(o.UID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, sent{on, eventtype, reason, action, fmt.Sprintf(note, args...)})
}

// take returns the Events since the last take.
func (r *recorder) take() []sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

type meter struct{ omitted, quarantined, undone, kept, removed, withheld int }

func (m *meter) Withheld(n int)    { m.withheld = n }
func (m *meter) Omitted(n int)     { m.omitted += n }
func (m *meter) Quarantined(n int) { m.quarantined += n }
func (m *meter) OrphanUndone()     { m.undone++ }
func (m *meter) OrphansKept(n int) { m.kept = n }
func (m *meter) LeftoverRemoved()  { m.removed++ }

func newReporter() (*Reporter, *recorder, *meter) {
	r, m := &recorder{}, &meter{}
	return New(r, m, "node-0", "node-uid"), r, m
}

func TestClaimFailedIsAnEventOnTheClaim(t *testing.T) {
	r, events, _ := newReporter()
	claim := claims.Ref{Namespace: "ns", Name: "c", UID: "u"}
	r.ClaimFailed(t.Context(), metrics.Prepare, claim, errors.New("100% full"))
	r.ClaimFailed(t.Context(), metrics.Unprepare, claim, errors.New("busy"))
	r.ClaimNoticed(t.Context(), claim, []string{"100% vain", "idle"})
	want := []sent{
		{"claim ns/c u", "Warning", "PrepareFailed", "Prepare", "100% full"},
		{"claim ns/c u", "Warning", "UnprepareFailed", "Unprepare", "busy"},
		{"claim ns/c u", "Normal", "NoEffect", "Prepare", "100% vain; idle"},
	}
	if diff := cmp.Diff(want, events.take()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestAConditionIsToldOnceAndAgainWhenItChangesOrReturns(t *testing.T) {
	r, events, _ := newReporter()
	at := pci.Address{Bus: 0x1a}
	sick := inventory.Snapshot{Driver: inventory.Driver{Present: true}, Unusable: []inventory.Unusable{{PCI: at, Reason: "lost"}}}
	well := inventory.Snapshot{Driver: inventory.Driver{Present: true}}
	steps := []struct {
		name     string
		snapshot inventory.Snapshot
		want     int
	}{
		{"first seen", sick, 1},
		{"still there", sick, 0},
		{"still there, again", sick, 0},
		{"gone", well, 0},
		{"back", sick, 1},
		{"another reason", inventory.Snapshot{Driver: well.Driver, Unusable: []inventory.Unusable{{PCI: at, Reason: "bound to vfio-pci"}}}, 1},
		{"driver gone", inventory.Snapshot{Driver: inventory.Driver{Missing: "no library"}}, 1},
		{"an unreadable fact", inventory.Snapshot{Driver: well.Driver, Problems: []inventory.Problem{{PCI: at, Fact: "serial", Err: errors.New("x")}}}, 1},
	}
	for _, s := range steps {
		r.Hardware(t.Context(), s.snapshot)
		if got := events.take(); len(got) != s.want {
			t.Errorf("%s: %d events, want %d: %v", s.name, len(got), s.want, got)
		}
	}
}

// What is left out may be an attribute, or all of a device.
func TestOmittedNamesWhatIsLeftOut(t *testing.T) {
	r, events, _ := newReporter()
	r.Omitted(t.Context(), []device.Omission{{Device: "d", Name: "productName", Value: "x", Reason: "too long"}})
	r.Omitted(t.Context(), []device.Omission{{Device: "e", Reason: "too early"}})
	var notes []string
	for _, e := range events.take() {
		notes = append(notes, e.Note)
	}
	want := []string{`Device d: productName "x" is not published: too long`, "Device e is not published: too early"}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestReasonsDoNotForgetEachOther(t *testing.T) {
	r, events, m := newReporter()
	r.Omitted(t.Context(), []device.Omission{{Device: "d", Name: "productName", Value: "x", Reason: "too long"}})
	r.SlicesRefused(t.Context(), errors.New("forbidden"))
	if got := len(events.take()); got != 2 {
		t.Fatalf("%d events, want 2", got)
	}
	// A scan without findings must not make the other conditions new again.
	r.Hardware(t.Context(), inventory.Snapshot{Driver: inventory.Driver{Present: true}})
	r.Omitted(t.Context(), []device.Omission{{Device: "d", Name: "productName", Value: "x", Reason: "too long"}})
	r.SlicesRefused(t.Context(), errors.New("forbidden"))
	if got := events.take(); len(got) != 0 {
		t.Errorf("told again: %v", got)
	}
	if m.omitted != 1 {
		t.Errorf("%d omissions counted, want 1", m.omitted)
	}
	r.SlicesAccepted(t.Context())
	r.SlicesRefused(t.Context(), errors.New("forbidden"))
	if got := len(events.take()); got != 1 {
		t.Errorf("%d events after the refusal came back, want 1", got)
	}
}

func TestAHangIsToldOnceAndEndsWithTheNextGoodScan(t *testing.T) {
	r, events, _ := newReporter()
	hang := errors.New("nvmlInit does not return")
	for range 3 {
		r.Hung(t.Context(), hang)
	}
	got := events.take()
	if len(got) != 1 || got[0].Reason != "GPUDriverHung" || !strings.Contains(got[0].Note, hang.Error()) {
		t.Errorf("events %v, want one GPUDriverHung", got)
	}
	r.Hardware(t.Context(), inventory.Snapshot{Driver: inventory.Driver{Present: true}})
	r.Hung(t.Context(), hang)
	if got := events.take(); len(got) != 1 {
		t.Errorf("events %v after a hang that came back, want one", got)
	}
}

func TestQuarantined(t *testing.T) {
	r, events, m := newReporter()
	r.Quarantined(t.Context(), "quarantine/u.json", errors.New("torn"))
	got := events.take()
	if len(got) != 1 || got[0].Reason != "RecordQuarantined" || !strings.Contains(got[0].Note, "quarantine/u.json") || m.quarantined != 1 {
		t.Errorf("events %v, counted %d", got, m.quarantined)
	}
}

func TestRebuilt(t *testing.T) {
	r, events, _ := newReporter()
	r.Rebuilt(t.Context(), claims.Ref{Namespace: "ns", Name: "a", UID: "ua"}, "its CDI spec")
	want := []sent{{"node node-0", "Warning", "RecordRebuilt", "Recover", "The record of claim ns/a (UID ua) was lost and is made anew from its CDI spec: its devices stay its own"}}
	if diff := cmp.Diff(want, events.take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestALongNoteIsCutToTheLimit(t *testing.T) {
	r, events, _ := newReporter()
	r.ClaimFailed(context.Background(), metrics.Prepare, claims.Ref{}, errors.New(strings.Repeat("x", 2000)))
	note := events.take()[0].Note
	if len(note) >= maxNote || !strings.HasSuffix(note, "...") {
		t.Errorf("note of %d bytes ends with %q", len(note), note[len(note)-5:])
	}
}

func TestEveryReasonIsDescribedOnce(t *testing.T) {
	described := map[Reason]int{}
	for _, d := range Descriptions() {
		described[d.Reason]++
		if d.Means == "" || d.Do == "" || !slices.Contains([]string{"Node", "ResourceClaim", "ResourceClaim, Pod"}, d.On) || d.Reason.action() == "" {
			t.Errorf("description of %s is not complete: %+v", d.Reason, d)
		}
	}
	for _, r := range []Reason{PrepareFailed, UnprepareFailed, ValueOmitted, GPUUnusable, FactUnreadable, DriverMissing, DriverHung, SlicesRefused, RecordQuarantined, RecordRebuilt, GPUSick, GPUWell, GPUError, DeviceSick} {
		if described[r] != 1 {
			t.Errorf("%s is described %d times", r, described[r])
		}
	}
}

func TestOrphans(t *testing.T) {
	r, events, m := newReporter()
	a := claims.Ref{Namespace: "ns", Name: "a", UID: "ua"}
	kept := map[claims.Ref]string{a: "in use by process 7"}
	r.OrphansKept(t.Context(), kept)
	r.OrphansKept(t.Context(), kept) // told once
	r.OrphanUndone(t.Context(), a, "it does not exist any more")
	r.OrphansKept(t.Context(), nil)
	r.OrphansKept(t.Context(), kept) // and again when it came back
	r.LeftoverRemoved(t.Context(), "CDI spec", "ub")
	want := []sent{
		{"node node-0", "Warning", "OrphanKept", "Reconcile", "Claim ns/a (UID ua) keeps its devices: in use by process 7"},
		{"node node-0", "Normal", "OrphanUndone", "Reconcile", "Claim ns/a (UID ua) was undone without the kubelet: it does not exist any more"},
		{"node node-0", "Warning", "OrphanKept", "Reconcile", "Claim ns/a (UID ua) keeps its devices: in use by process 7"},
		{"node node-0", "Normal", "LeftoverRemoved", "Reconcile", "Removed CDI spec ub: no claim's record accounts for it"},
	}
	if diff := cmp.Diff(want, events.take()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if m.undone != 1 || m.kept != 1 || m.removed != 1 {
		t.Errorf("counted %+v", *m)
	}
}

// Events of one reason are told apart by the recorder only when they are about different things:
// no condition may be lost behind another, nor behind what it was before.
func TestConditionsAreAboutDifferentThings(t *testing.T) {
	r, recorder, meter := newReporter()
	withheld := func(reason string) []device.Withheld {
		return []device.Withheld{
			{GPU: pci.Address{Bus: 1}, Partitions: 3, Reason: reason}, {GPU: pci.Address{Bus: 2}, Reason: reason},
		}
	}
	r.Withheld(t.Context(), withheld("a"))
	r.Withheld(t.Context(), withheld("a"))
	r.Withheld(t.Context(), withheld("b"))
	events := recorder.take()
	different := map[string]bool{}
	for _, path := range recorder.paths {
		different[path] = true
	}
	if len(events) != 4 || len(different) != 4 || meter.withheld != 3 {
		t.Errorf("%d Events about %d things, %d partitions: %+v", len(events), len(different), meter.withheld, events)
	}
	for _, e := range events {
		if e.Reason != string(MIGWithheld) || e.Action != "Publish" || e.On != "node node-0" {
			t.Errorf("Event %+v", e)
		}
	}
	r.Lasting(t.Context(), MIGLayoutFailed, map[string]string{"x": "no room"})
	if events := recorder.take(); len(events) != 1 || events[0].Note != "no room" || events[0].Action != "LayOut" {
		t.Errorf("Events %+v", events)
	}
}
