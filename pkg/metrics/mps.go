package metrics

import "github.com/prometheus/client_golang/prometheus"

// mps are the metrics of MPS control daemons.
type mps struct {
	daemons    *prometheus.GaugeVec
	restarts   prometheus.Counter
	supervisor prometheus.Gauge
}

func newMPS() mps {
	m := mps{
		daemons:    gaugeVec("mps_daemons", "MPS control daemons that claims use, by state: ready or down.", "state"),
		restarts:   counter("mps_daemon_restarts_total", "MPS control daemons that ended although claims use them, and were started again."),
		supervisor: gauge("mps_supervisor_up", "1 while the supervisor of MPS control daemons answers; 0 also where MPS is switched off."),
	}
	m.daemons.WithLabelValues("ready")
	m.daemons.WithLabelValues("down")
	return m
}

func (m mps) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.daemons, m.restarts, m.supervisor}
}

// MPSDaemons sets how many control daemons serve and how many should and do not.
func (m *Metrics) MPSDaemons(ready, down int) {
	m.mps.daemons.WithLabelValues("ready").Set(float64(ready))
	m.mps.daemons.WithLabelValues("down").Set(float64(down))
}

// MPSRestarted counts a control daemon that was started again.
func (m *Metrics) MPSRestarted() { m.mps.restarts.Inc() }

// MPSSupervisor sets whether the supervisor of control daemons answers.
func (m *Metrics) MPSSupervisor(up bool) { m.mps.supervisor.Set(boolValue(up)) }
