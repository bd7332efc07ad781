package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestWork(t *testing.T) {
	m := New("v1")
	if got := testutil.CollectAndCount(m.work.phases); got != len(Phases()) {
		t.Errorf("%d of %d phases have series from the start", got, len(Phases()))
	}
	m.Steps("mps", "mig-instance")
	m.Step("mps", Do, time.Second, nil)
	m.Step("mps", Do, time.Second, errors.New("no"))
	m.Step("mig-instance", Undo, time.Second, nil)
	err := testutil.GatherAndCompare(m.Registry(), strings.NewReader(`
# HELP gpu_dra_step_failures_total Steps that could not be done or undone, by kind.
# TYPE gpu_dra_step_failures_total counter
gpu_dra_step_failures_total{deed="do",step="mig-instance"} 0
gpu_dra_step_failures_total{deed="do",step="mps"} 1
gpu_dra_step_failures_total{deed="undo",step="mig-instance"} 0
gpu_dra_step_failures_total{deed="undo",step="mps"} 0
`), "gpu_dra_step_failures_total")
	if err != nil {
		t.Error(err)
	}
	if got := testutil.CollectAndCount(m.work.steps); got != 2 {
		t.Errorf("%d series of steps, want that of mps done and that of an instance undone", got)
	}
	m.Phase(PhaseGPULock, 3*time.Second)
	m.PreparedKind("gpu", 2*time.Second)
	m.Reconciled(5 * time.Second)
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			sums[f.GetName()] += s.GetHistogram().GetSampleSum()
		}
	}
	for name, want := range map[string]float64{
		"gpu_dra_phase_duration_seconds": 3, "gpu_dra_prepare_duration_seconds": 2, "gpu_dra_reconcile_duration_seconds": 5,
		"gpu_dra_step_duration_seconds": 3,
	} {
		if sums[name] != want {
			t.Errorf("%s sums up %v s, want %v", name, sums[name], want)
		}
	}
}
