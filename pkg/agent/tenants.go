package agent

import (
	"context"
	"net/http"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/metrics/hardware"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/probes"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

// buildTenants makes what tells outsiders of devices and of who has them.
func (a *Agent) buildTenants() {
	a.tenants = &tenancy.Register{Records: a.journal, Devices: a.allDevices}
	a.hardware = hardware.New(hardware.Config{
		// The monitor is made with the collector behind it.
		Leads:    func() bool { return a.health.Leads() },
		Patients: func() []hardware.Patient { return patientsOf(a.health) },
		Judge:    func(at pci.Address, p *health.Place) health.Verdict { return a.health.Verdict(at, p) },
		Devices:  a.allDevices,
		Domain:   func(at pci.Address) string { return a.catalog.View().Assignment.GPUs[at].Domain },
		Tenants:  a.tenants.Tenants,
	})
	a.metrics.Registry().MustRegister(a.hardware)
}

func patientsOf(m *monitor.Monitor) []hardware.Patient {
	var out []hardware.Patient
	for _, p := range m.Patients() {
		out = append(out, hardware.Patient(p))
	}
	return out
}

// web is what the HTTP port answers.
func (a *Agent) web(checks probes.Checks) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", probes.Handler(a.metrics.Registry(), checks))
	mux.Handle(tenancy.Path, a.tenants.Handler(a.config.DriverName, a.config.NodeName))
	return mux
}

// serveTenants answers exporters of this node, which do not know the pod's address.
func (a *Agent) serveTenants(ctx context.Context) {
	probes.ServeSocket(ctx, a.stateDir(tenantsSocket), a.tenants.Handler(a.config.DriverName, a.config.NodeName))
}
