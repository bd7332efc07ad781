package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestEverySeriesExistsBeforeItsFirstEvent(t *testing.T) {
	m := New("v1")
	for name, want := range map[string]int{
		namespace + "_call_failures_total":   2 * len(Reasons()),
		namespace + "_call_duration_seconds": 4,
		namespace + "_calls_in_flight":       2,
		namespace + "_build_info":            1,
	} {
		got, err := testutil.GatherAndCount(m.Registry(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s has %d series, want %d", name, got, want)
		}
	}
}

func TestCallCountsTheOutcome(t *testing.T) {
	m := New("v1")
	done := m.Call(Prepare)
	if got := testutil.ToFloat64(m.inFlight.WithLabelValues("prepare")); got != 1 {
		t.Errorf("in flight during the call: %v, want 1", got)
	}
	done(Failure, ReasonHeld)
	m.Call(Prepare)(Success, ReasonOther)
	if got := testutil.ToFloat64(m.inFlight.WithLabelValues("prepare")); got != 0 {
		t.Errorf("in flight after the calls: %v, want 0", got)
	}
	if got := testutil.ToFloat64(m.failures.WithLabelValues("prepare", "held")); got != 1 {
		t.Errorf("failures for held: %v, want 1", got)
	}
	m.CallFailed(Prepare, time.Second, ReasonAPI)
	if got := testutil.ToFloat64(m.failures.WithLabelValues("prepare", "api")); got != 1 {
		t.Errorf("failures for api: %v, want 1", got)
	}
	if got := testutil.ToFloat64(m.inFlight.WithLabelValues("prepare")); got != 0 {
		t.Errorf("in flight after a call that never began: %v, want 0", got)
	}
	if got := testutil.ToFloat64(m.failures.WithLabelValues("prepare", "other")); got != 0 {
		t.Errorf("a success counted as a failure: %v", got)
	}
}

func TestGauges(t *testing.T) {
	m := New("v1")
	m.CountClaims(func() (int, error) { return 3, nil })
	m.Scan(time.Second, true, 2)
	m.Registered(true)
	m.Publishing(true)
	m.Devices(map[string]int{"gpu": 8, "mig": 4})
	m.Devices(map[string]int{"gpu": 7})
	m.Omitted(2)
	m.Quarantined(1)
	m.Published(time.Second, Failure)
	if got := testutil.ToFloat64(m.lastPublish); got != 0 {
		t.Errorf("a refused publication moved the time of the last good one to %v", got)
	}
	m.Published(time.Second, Success)
	if got := testutil.ToFloat64(m.lastPublish); got == 0 {
		t.Error("the last publication has no time")
	}
	want := `
# HELP gpu_dra_devices Devices in this node's published pool, by type.
# TYPE gpu_dra_devices gauge
gpu_dra_devices{type="gpu"} 7
# HELP gpu_dra_gpu_driver_up 1 while the GPU driver's library answers.
# TYPE gpu_dra_gpu_driver_up gauge
gpu_dra_gpu_driver_up 1
# HELP gpu_dra_kubelet_registered 1 while the kubelet has accepted the registration.
# TYPE gpu_dra_kubelet_registered gauge
gpu_dra_kubelet_registered 1
# HELP gpu_dra_omitted_values_total Attributes and capacities that could not be published within the API's limits.
# TYPE gpu_dra_omitted_values_total counter
gpu_dra_omitted_values_total 2
# HELP gpu_dra_prepared_claims Claims that have a record on this node; NaN when that cannot be read.
# TYPE gpu_dra_prepared_claims gauge
gpu_dra_prepared_claims 3
# HELP gpu_dra_publishing 1 in the instance that publishes this node's slices.
# TYPE gpu_dra_publishing gauge
gpu_dra_publishing 1
# HELP gpu_dra_quarantined_records_total Claim records that could not be read and were set aside.
# TYPE gpu_dra_quarantined_records_total counter
gpu_dra_quarantined_records_total 1
# HELP gpu_dra_unusable_gpus GPUs on the PCI bus that cannot be handed out (lost, no driver, NVML error).
# TYPE gpu_dra_unusable_gpus gauge
gpu_dra_unusable_gpus 2
`
	err := testutil.GatherAndCompare(m.Registry(), strings.NewReader(want), "gpu_dra_devices", "gpu_dra_gpu_driver_up",
		"gpu_dra_kubelet_registered", "gpu_dra_omitted_values_total", "gpu_dra_prepared_claims", "gpu_dra_publishing",
		"gpu_dra_quarantined_records_total", "gpu_dra_unusable_gpus")
	if err != nil {
		t.Error(err)
	}
}

func TestNamesFollowTheConventions(t *testing.T) {
	m := New("v1")
	m.Devices(map[string]int{"gpu": 1})
	m.Step("mps", Do, time.Second, nil)
	m.PreparedKind("gpu", time.Second)
	problems, err := testutil.GatherAndLint(m.Registry())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, namespace) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
