package monitor_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
)

// An error of an instance is placed where that is; of one that has ended it is nobody's, and where
// that cannot be asked it is the GPU's.
func TestErrorsOfInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		instance := inventory.MIGInstance{ID: 7, ProfileID: 19, Placement: inventory.MIGPlacement{Start: 3, Size: 1}}
		s.GPUs[0].MIG = inventory.MIG{Capable: true, Enabled: true, Instances: []inventory.MIGInstance{instance}}
		w.mig = s.GPUs[0].MIG
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		at, place := s.GPUs[0].PCI, health.PlaceOf(instance)
		report := func(instance int) {
			w.events <- vitals.Event{GPU: idOf(s.GPUs[0]), XID: 94, Instance: instance}
			synctest.Wait()
		}
		report(9)
		if got := m.Verdict(at, &place); len(got.Faults) > 0 {
			t.Errorf("of an instance that ended: %v", got.Faults)
		}
		report(7)
		if m.Verdict(at, &place).Severity() != health.Avoid || m.Verdict(at, nil).Severity() != health.Ignore {
			t.Error("it is not where it belongs")
		}
		// What counts for the whole GPU needs no place.
		w.events <- vitals.Event{GPU: idOf(s.GPUs[0]), XID: 95, Instance: 9}
		synctest.Wait()
		if m.Verdict(at, nil).Severity() != health.Evict {
			t.Error("an error of the GPU ended with the instance that it struck")
		}
		if diff := cmp.Diff([]int{94, 94, 95}, w.noticed); diff != "" {
			t.Error(diff)
		}
		w.migErr = inventory.ErrHung
		report(7)
		if !slices.ContainsFunc(m.Verdict(at, nil).Faults, func(f health.Fault) bool { return f.Code == "94" }) {
			t.Error("an error that cannot be placed is lost")
		}
	})
}

// An error of an instance that was made since the last look at the hardware stays, whatever that
// look and the one under way say, and ends with the instance.
func TestAnErrorOfANewInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		s.GPUs[0].MIG = inventory.MIG{Capable: true, Enabled: true}
		instance := inventory.MIGInstance{ID: 7, ProfileID: 19, Placement: inventory.MIGPlacement{Start: 3, Size: 1}}
		w.mig = inventory.MIG{Capable: true, Enabled: true, Instances: []inventory.MIGInstance{instance}}
		w.set(s.GPUs[0].PCI, needing(2))
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		place := health.PlaceOf(instance)
		ill := func(when string, want bool) {
			t.Helper()
			faults := m.Verdict(s.GPUs[0].PCI, &place).Faults
			if got := slices.ContainsFunc(faults, func(f health.Fault) bool { return f.Kind == health.XID }); got != want {
				t.Errorf("%s: %v", when, faults)
			}
		}
		w.events <- vitals.Event{GPU: idOf(s.GPUs[0]), XID: 94, Instance: 7}
		time.Sleep(2 * interval)
		synctest.Wait()
		ill("after readings", true)
		m.Scanned(t.Context(), s)
		ill("after a look that began before it was made", true)
		with := s
		with.GPUs = slices.Clone(s.GPUs)
		with.GPUs[0].MIG = w.mig
		m.Scanned(t.Context(), with)
		ill("after a look that saw it", true)
		m.Scanned(t.Context(), s)
		ill("after its end", false)
	})
}

// What comes between two times that changes are told is kept at the end, too.
func TestWhatComesLastIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s, dir := newWard(), inventorytest.T4(), t.TempDir()
		end := running(t, monitorOf(t, w, dir, "boot"), s)
		for _, g := range s.GPUs[:2] {
			w.set(g.PCI, needing(2))
			w.events <- vitals.Event{GPU: idOf(g), XID: 79, Instance: -1}
			synctest.Wait()
		}
		end()
		next := monitorOf(t, w, dir, "boot")
		next.Lead(t.Context())
		for _, g := range s.GPUs[:2] {
			if next.Verdict(g.PCI, nil).Severity() != health.Evict {
				t.Errorf("%s: %v", g.PCI, next.Verdict(g.PCI, nil).Faults)
			}
		}
	})
}
