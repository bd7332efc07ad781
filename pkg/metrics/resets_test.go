package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestResets(t *testing.T) {
	m := New("v1")
	m.Reset(true)
	m.Reset(false)
	m.Reset(false)
	for result, want := range map[Result]float64{Success: 1, Failure: 2} {
		if got := testutil.ToFloat64(m.resets.WithLabelValues(string(result))); got != want {
			t.Errorf("%s: %v, want %v", result, got, want)
		}
	}
}
