package monitor_test

import (
	"testing"
	"testing/synctest"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/pci"
)

// What another source tells counts as if NVML had; a GPU that nobody knows does not.
func TestReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		at, nowhere := s.GPUs[1].PCI, pci.Address{Bus: 0xfe}
		w.set(at, needing(1))
		m.Reported(t.Context(), at, 79, -1)
		m.Reported(t.Context(), nowhere, 79, -1)
		synctest.Wait()
		if got := m.Verdict(at, nil); got.Severity() != health.Evict || got.Reason() != "XID79" {
			t.Errorf("%s, %s", got.Severity(), got.Reason())
		}
		if got := m.Verdict(nowhere, nil); len(got.Faults) > 0 || len(m.Patients()) != len(s.GPUs) {
			t.Errorf("a GPU that is not there has %+v", got.Faults)
		}
	})
}
