package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Phase is a part of preparing or unpreparing a claim.
type Phase string

// The phases. Steps have a metric of their own.
const (
	PhaseClaimLock    Phase = "claim_lock"
	PhaseGPULock      Phase = "gpu_lock"
	PhaseJournalRead  Phase = "journal_read"
	PhaseJournalWrite Phase = "journal_write"
	PhaseBaseSpec     Phase = "base_spec"
	PhaseClaimSpec    Phase = "claim_spec"
)

// Phases lists every phase.
func Phases() []Phase {
	return []Phase{PhaseClaimLock, PhaseGPULock, PhaseJournalRead, PhaseJournalWrite, PhaseBaseSpec, PhaseClaimSpec}
}

// Deed tells whether a step was done or undone.
type Deed string

// The deeds.
const (
	Do   Deed = "do"
	Undo Deed = "undo"
)

// work are the metrics about what calls and the reconciler spend their time on.
type work struct {
	phases       *prometheus.HistogramVec
	steps        *prometheus.HistogramVec
	stepFailures *prometheus.CounterVec
	kinds        *prometheus.HistogramVec
	reconcile    prometheus.Histogram
}

func newWork() work {
	w := work{
		phases: histogramVec("phase_duration_seconds",
			"Time of one phase of a prepare, an unprepare or the reconciler's work: a wait for a lock, a record, a CDI spec.",
			[]float64{.0001, .0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 4, 16, 45}, "phase"),
		steps: histogramVec("step_duration_seconds",
			"Time to do or to undo one step of a claim, failures included, by the step's kind: a MIG instance, an MPS daemon, a time slice.",
			[]float64{.001, .004, .016, .064, .256, 1, 2, 4, 8, 16, 32, 45}, "step", "deed"),
		stepFailures: counterVec("step_failures_total", "Steps that could not be done or undone, by kind.", "step", "deed"),
		kinds: histogramVec("prepare_duration_seconds",
			"Time to prepare one claim, successes only, by the kind of its devices: gpu, mig, or mixed.", callBuckets(), "kind"),
		reconcile: histogram("reconcile_duration_seconds", "Time of one pass of the reconciler over all claims and leftovers.",
			[]float64{.001, .01, .1, .5, 1, 5, 10, 30, 60}),
	}
	for _, p := range Phases() {
		w.phases.WithLabelValues(string(p))
	}
	return w
}

func (w work) collectors() []prometheus.Collector {
	return []prometheus.Collector{w.phases, w.steps, w.stepFailures, w.kinds, w.reconcile}
}

// Phase records how long a phase took.
func (m *Metrics) Phase(phase Phase, took time.Duration) {
	m.work.phases.WithLabelValues(string(phase)).Observe(took.Seconds())
}

// Steps makes the series of every kind of step, so that a first failure is one more than none.
func (m *Metrics) Steps(kinds ...string) {
	for _, kind := range kinds {
		m.work.stepFailures.WithLabelValues(kind, string(Do))
		m.work.stepFailures.WithLabelValues(kind, string(Undo))
	}
}

// Step records how long a step took, and whether it failed. The kinds of steps are a closed set.
func (m *Metrics) Step(step string, deed Deed, took time.Duration, err error) {
	m.work.steps.WithLabelValues(step, string(deed)).Observe(took.Seconds())
	if err != nil {
		m.work.stepFailures.WithLabelValues(step, string(deed)).Inc()
	}
}

// PreparedKind records how long it took to prepare a claim with devices of that kind.
func (m *Metrics) PreparedKind(kind string, took time.Duration) {
	m.work.kinds.WithLabelValues(kind).Observe(took.Seconds())
}

// Reconciled records how long a pass of the reconciler took.
func (m *Metrics) Reconciled(took time.Duration) { m.work.reconcile.Observe(took.Seconds()) }
