package metrics

import "github.com/prometheus/client_golang/prometheus"

func newResets() *prometheus.CounterVec {
	v := counterVec("gpu_resets_total", "Resets of idle GPUs that were ill, by result.", "result")
	for _, r := range []Result{Success, Failure} {
		v.WithLabelValues(string(r))
	}
	return v
}

// Reset counts a reset of a GPU.
func (m *Metrics) Reset(done bool) {
	result := Failure
	if done {
		result = Success
	}
	m.resets.WithLabelValues(string(result)).Inc()
}
