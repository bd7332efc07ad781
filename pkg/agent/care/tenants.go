package care

import (
	"context"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/metrics/hardware"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/probes"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

// buildTenants makes what tells outsiders of devices and of who has them.
func (c *Care) buildTenants() {
	c.Tenants = &tenancy.Register{Records: c.Journal, Devices: c.allDevices}
	c.hardware = hardware.New(hardware.Config{
		// The monitor is made with the collector behind it.
		Leads:    func() bool { return c.monitor.Leads() },
		Patients: func() []hardware.Patient { return patientsOf(c.monitor) },
		Judge:    func(at pci.Address, p *health.Place) health.Verdict { return c.monitor.Verdict(at, p) },
		Devices:  c.allDevices,
		Domain:   func(at pci.Address) string { return c.Catalog.View().Assignment.GPUs[at].Domain },
		Tenants:  c.Tenants.Tenants,
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
func (c *Care) serveTenants(ctx context.Context) {
	probes.ServeSocket(ctx, c.StateDir(TenantsSocket), c.Tenants.Handler(c.Config.DriverName, c.Config.NodeName))
}
