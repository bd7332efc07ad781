// Package metrics holds what the driver counts and times, for its HTTP endpoint and for the
// reference page that is generated from the same definitions. The registry is its own: nothing
// is registered globally. Labels are bounded sets: claims, pods and UUIDs are labels of the info
// series in package hardware alone, which there are of this node's devices only.
// The package must not know how claims are prepared or slices published: it is told.
package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// namespace prefixes every metric of the driver.
const namespace = "gpu_dra"

// Operation is a call of the kubelet.
type Operation string

// The operations.
const (
	Prepare   Operation = "prepare"
	Unprepare Operation = "unprepare"
)

// Result of an operation or a publication.
type Result string

// The results.
const (
	Success Result = "success"
	Failure Result = "failure"
)

// Reason groups failures; the set is closed so that its series stay few.
type Reason string

// The reasons a claim could not be prepared or unprepared.
const (
	ReasonNotAllocated  Reason = "not_allocated"
	ReasonUnknownDevice Reason = "unknown_device"
	ReasonConfig        Reason = "config"
	ReasonHeld          Reason = "held"
	ReasonSwapped       Reason = "hardware_swapped"
	ReasonHardware      Reason = "hardware"
	ReasonCDI           Reason = "cdi"
	ReasonJournal       Reason = "journal"
	ReasonLock          Reason = "lock"
	ReasonTimeout       Reason = "timeout"
	ReasonAPI           Reason = "api"
	ReasonOther         Reason = "other"
)

// Reasons lists every reason, so that all series exist from the start.
func Reasons() []Reason {
	return []Reason{
		ReasonNotAllocated, ReasonUnknownDevice, ReasonConfig, ReasonHeld, ReasonSwapped,
		ReasonHardware, ReasonCDI, ReasonJournal, ReasonLock, ReasonTimeout, ReasonAPI, ReasonOther,
	}
}

// Metrics is the driver's set of metrics in a registry of its own.
type Metrics struct {
	registry *prometheus.Registry

	duration     *prometheus.HistogramVec
	inFlight     *prometheus.GaugeVec
	failures     *prometheus.CounterVec
	devices      *prometheus.GaugeVec
	unusable     prometheus.Gauge
	published    *prometheus.HistogramVec
	lastPublish  prometheus.Gauge
	omitted      prometheus.Counter
	quarantined  prometheus.Counter
	scanDuration prometheus.Histogram
	driverUp     prometheus.Gauge
	registered   prometheus.Gauge
	leader       prometheus.Gauge
	mps          mps
	undone       prometheus.Counter
	kept         prometheus.Gauge
	leftovers    prometheus.Counter
	mig          partitions
	work         work
	resets       *prometheus.CounterVec
}

// callBuckets resolve a prepare of a millisecond as well as one that waits for hardware; the
// kubelet gives up at 45 s. The kubelet's own histogram starts at 100 ms.
func callBuckets() []float64 {
	return []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 4, 8, 16, 32, 45}
}

// New makes the metrics and all series whose labels are known beforehand. version labels
// build_info.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		duration: histogramVec("call_duration_seconds",
			"Time to prepare or unprepare one claim, waiting for locks included.",
			callBuckets(), "operation", "result"),
		inFlight: gaugeVec("calls_in_flight", "Claims being prepared or unprepared now.", "operation"),
		failures: counterVec("call_failures_total", "Claims that could not be prepared or unprepared, by reason.",
			"operation", "reason"),
		devices: gaugeVec("devices", "Devices in this node's published pool, by type.", "type"),
		unusable: gauge("unusable_gpus",
			"GPUs on the PCI bus that cannot be handed out (lost, no driver, NVML error)."),
		published: histogramVec("publish_duration_seconds",
			"Time from a change of the desired slices until the API server holds them.",
			[]float64{.01, .05, .1, .25, .5, 1, 2, 4, 8, 16, 32}, "result"),
		lastPublish: gauge("last_publish_timestamp_seconds",
			"When the API server was last seen to hold the desired slices, as Unix time."),
		omitted: counter("omitted_values_total",
			"Attributes and capacities that could not be published within the API's limits."),
		quarantined: counter("quarantined_records_total", "Claim records that could not be read and were set aside."),
		scanDuration: histogram("scan_duration_seconds", "Time of one scan of the node's GPUs.",
			[]float64{.001, .01, .1, .5, 1, 5, 10, 30}),
		driverUp:   gauge("gpu_driver_up", "1 while the GPU driver's library answers."),
		registered: gauge("kubelet_registered", "1 while the kubelet has accepted the registration."),
		leader:     gauge("publishing", "1 in the instance that publishes this node's slices."),
		undone:     counter("orphans_undone_total", "Claims that were gone and were undone without the kubelet."),
		kept:       gauge("orphans_kept", "Claims that are gone and keep devices: in use, or a step cannot be undone."),
		leftovers:  counter("leftovers_removed_total", "Files and partitions removed because no claim's record accounted for them."),
		mig:        newPartitions(),
		resets:     newResets(),
	}
	m.mps, m.work = newMPS(), newWork()
	m.registry.MustRegister(m.mps.collectors()...)
	m.registry.MustRegister(m.work.collectors()...)
	m.mig.register(m.registry)
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info",
		Help: "Always 1; the label is the version.",
	}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, m.duration, m.inFlight, m.failures, m.devices, m.unusable,
		m.published, m.lastPublish, m.omitted, m.quarantined, m.scanDuration, m.driverUp, m.registered, m.leader,
		m.undone, m.kept, m.leftovers, m.resets,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.initialise()
	return m
}

// initialise creates every series of a closed label set, so that a rate over a first failure
// is not lost.
func (m *Metrics) initialise() {
	for _, op := range []Operation{Prepare, Unprepare} {
		m.inFlight.WithLabelValues(string(op))
		for _, r := range []Result{Success, Failure} {
			m.duration.WithLabelValues(string(op), string(r))
		}
		for _, r := range Reasons() {
			m.failures.WithLabelValues(string(op), string(r))
		}
	}
	for _, r := range []Result{Success, Failure} {
		m.published.WithLabelValues(string(r))
	}
}

// Registry is what the HTTP endpoint serves.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Call counts one claim's operation as in flight until the returned function is called with
// its outcome; reason is read only for a Failure.
func (m *Metrics) Call(op Operation) func(Result, Reason) {
	begin := time.Now()
	m.inFlight.WithLabelValues(string(op)).Inc()
	return func(result Result, reason Reason) {
		m.inFlight.WithLabelValues(string(op)).Dec()
		if result == Failure {
			m.CallFailed(op, time.Since(begin), reason)
			return
		}
		m.duration.WithLabelValues(string(op), string(result)).Observe(time.Since(begin).Seconds())
	}
}

// CallFailed counts one claim's operation that has failed already, for calls that end before
// the claim is known.
func (m *Metrics) CallFailed(op Operation, took time.Duration, reason Reason) {
	m.duration.WithLabelValues(string(op), string(Failure)).Observe(took.Seconds())
	m.failures.WithLabelValues(string(op), string(reason)).Inc()
}

// CountClaims has count asked, at each scrape, for the number of claims with a record. Several
// processes share the records, so none of them can keep the number.
func (m *Metrics) CountClaims(count func() (int, error)) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "prepared_claims", Help: "Claims that have a record on this node; NaN when that cannot be read.",
	}, func() float64 {
		n, err := count()
		if err != nil {
			return math.NaN()
		}
		return float64(n)
	}))
}

// Scan records a scan of the hardware: how long it took, whether the driver answered and how
// many GPUs cannot be handed out.
func (m *Metrics) Scan(took time.Duration, driverUp bool, unusable int) {
	m.scanDuration.Observe(took.Seconds())
	m.driverUp.Set(boolValue(driverUp))
	m.unusable.Set(float64(unusable))
}

// Devices sets the number of devices in the pool by type; types that are not given are gone.
func (m *Metrics) Devices(byType map[string]int) {
	m.devices.Reset()
	for t, n := range byType {
		m.devices.WithLabelValues(t).Set(float64(n))
	}
}

// Published records that the API server holds the desired slices, or that it refused them.
func (m *Metrics) Published(took time.Duration, result Result) {
	m.published.WithLabelValues(string(result)).Observe(took.Seconds())
	if result == Success {
		m.lastPublish.SetToCurrentTime()
	}
}

// Omitted counts values that were left out of the slices.
func (m *Metrics) Omitted(n int) { m.omitted.Add(float64(n)) }

// Quarantined counts records that were set aside.
func (m *Metrics) Quarantined(n int) { m.quarantined.Add(float64(n)) }

// OrphanUndone counts a claim that was undone without the kubelet.
func (m *Metrics) OrphanUndone() { m.undone.Inc() }

// OrphansKept sets the number of claims that are gone and keep devices.
func (m *Metrics) OrphansKept(n int) { m.kept.Set(float64(n)) }

// LeftoverRemoved counts a thing that no record accounted for.
func (m *Metrics) LeftoverRemoved() { m.leftovers.Inc() }

// Registered tells whether the kubelet has accepted this instance.
func (m *Metrics) Registered(yes bool) { m.registered.Set(boolValue(yes)) }

// Publishing tells whether this instance publishes.
func (m *Metrics) Publishing(yes bool) { m.leader.Set(boolValue(yes)) }

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}

func gaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
}

func histogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
}
