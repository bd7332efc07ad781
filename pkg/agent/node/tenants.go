package node

import (
	"context"
	"net/http"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
	"github.com/gpu-dra/driver/pkg/metrics/hardware"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/probes"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

// buildTenants makes what tells outsiders of devices and of who has them.
func (c *care) buildTenants() {
	c.tenants = &tenancy.Register{Records: c.journal, Devices: c.allDevices}
	c.hardware = hardware.New(hardware.Config{
		// The monitor is made with the collector behind it.
		Leads:    func() bool { return c.monitor.Leads() },
		Patients: func() []hardware.Patient { return patientsOf(c.monitor) },
		Judge:    func(at pci.Address, p *health.Place) health.Verdict { return c.monitor.Verdict(at, p) },
		Devices:  c.allDevices,
		Domain:   func(at pci.Address) string { return c.catalog.View().Assignment.GPUs[at].Domain },
		Tenants:  c.tenants.Tenants,
	})
	c.Metrics.Registry().MustRegister(c.hardware)
}

func patientsOf(m *monitor.Monitor) []hardware.Patient {
	var out []hardware.Patient
	for _, p := range m.Patients() {
		out = append(out, hardware.Patient(p))
	}
	return out
}

// serveTenants answers exporters of this node, which do not know the pod's address.
func (c *care) serveTenants(ctx context.Context) {
	probes.ServeSocket(ctx, c.stateDir(tenantsSocket), c.tenants.Handler(c.Config.DriverName, c.Config.NodeName))
}

// Web is what the HTTP port answers.
func (n *Node) Web(checks probes.Checks) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", probes.Handler(n.Metrics.Registry(), checks))
	mux.Handle(tenancy.Path, n.care.tenants.Handler(n.Config.DriverName, n.Config.NodeName))
	return mux
}

// Health is what tells the kubelet how well devices are.
func (n *Node) Health() kubeletplugin.HealthSource { return n.care }
