package node

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
func (n *Node) buildTenants() {
	n.tenants = &tenancy.Register{Records: n.journal, Devices: n.allDevices}
	n.hardware = hardware.New(hardware.Config{
		// The monitor is made with the collector behind it.
		Leads:    func() bool { return n.health.Leads() },
		Patients: func() []hardware.Patient { return patientsOf(n.health) },
		Judge:    func(at pci.Address, p *health.Place) health.Verdict { return n.health.Verdict(at, p) },
		Devices:  n.allDevices,
		Domain:   func(at pci.Address) string { return n.catalog.View().Assignment.GPUs[at].Domain },
		Tenants:  n.tenants.Tenants,
	})
	n.Metrics.Registry().MustRegister(n.hardware)
}

func patientsOf(m *monitor.Monitor) []hardware.Patient {
	var out []hardware.Patient
	for _, p := range m.Patients() {
		out = append(out, hardware.Patient(p))
	}
	return out
}

// Web is what the HTTP port answers.
func (n *Node) Web(checks probes.Checks) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", probes.Handler(n.Metrics.Registry(), checks))
	mux.Handle(tenancy.Path, n.tenants.Handler(n.Config.DriverName, n.Config.NodeName))
	return mux
}

// serveTenants answers exporters of this node, which do not know the pod's address.
func (n *Node) serveTenants(ctx context.Context) {
	probes.ServeSocket(ctx, n.stateDir(tenantsSocket), n.tenants.Handler(n.Config.DriverName, n.Config.NodeName))
}
