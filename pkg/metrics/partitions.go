package metrics

import "github.com/prometheus/client_golang/prometheus"

// LayoutState is how far a GPU is with its declared MIG layout.
type LayoutState string

// The states.
const (
	LayoutApplied LayoutState = "applied"
	LayoutPending LayoutState = "pending"
	LayoutFailed  LayoutState = "failed"
)

// LayoutStates lists every state.
func LayoutStates() []LayoutState {
	return []LayoutState{LayoutApplied, LayoutPending, LayoutFailed}
}

// partitions are the metrics about MIG.
type partitions struct {
	withheld prometheus.Gauge
	inUse    prometheus.Gauge
	layouts  *prometheus.GaugeVec
}

func newPartitions() partitions {
	return partitions{
		withheld: gauge("mig_withheld_partitions",
			"Partitions that GPUs of this node could have and do not offer now: others' instances have their place, or a declared layout is to be applied."),
		inUse:   gauge("mig_instances_in_use", "Instances that could not be removed after their claim ended, because something still uses them."),
		layouts: gaugeVec("mig_layout_gpus", "GPUs of this node with a declared MIG layout, by state.", "state"),
	}
}

func (p partitions) register(registry *prometheus.Registry) {
	for _, state := range LayoutStates() {
		p.layouts.WithLabelValues(string(state))
	}
	registry.MustRegister(p.withheld, p.inUse, p.layouts)
}

// Withheld sets how many partitions are not offered now.
func (m *Metrics) Withheld(n int) { m.mig.withheld.Set(float64(n)) }

// InstancesInUse sets how many instances could not be removed yet.
func (m *Metrics) InstancesInUse(n int) { m.mig.inUse.Set(float64(n)) }

// Layouts sets the number of GPUs with a declared layout by state.
func (m *Metrics) Layouts(byState map[LayoutState]int) {
	for _, state := range LayoutStates() {
		m.mig.layouts.WithLabelValues(string(state)).Set(float64(byState[state]))
	}
}
