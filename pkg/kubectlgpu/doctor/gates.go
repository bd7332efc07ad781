package doctor

import (
	"context"
	"fmt"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
)

// gate is a feature gate of Kubernetes, and what is lost without it.
type gate struct {
	name, lost string
	severity   finding.Severity
}

// gates are those that the driver or its users need, the most important first. Those that are on by
// default in the newest release are meant: what nobody has to switch on is no finding.
func gates() []gate {
	return []gate{
		{"DynamicResourceAllocation", "no claim is served at all", finding.Error},
		{"DRAPartitionableDevices", "partitions of GPUs are not published (chart: migDevices)", finding.Warning},
		{"DRADeviceTaints", "a GPU that is ill is given out like the others, and DeviceTaintRules do nothing", finding.Warning},
		{"DRAPrioritizedList", "claims cannot list alternatives (firstAvailable)", finding.Warning},
		{"DRAAdminAccess", "nobody can look at GPUs that others use (adminAccess)", finding.Warning},
		{"DRAConsumableCapacity", "devices that are declared as shared are given out whole (chart: sharing)", finding.Warning},
		{"DRAExtendedResource", "pods that ask for nvidia.com/gpu without a claim wait for ever", finding.Warning},
		{"DRAResourceClaimDeviceStatus", "the health of devices is not in the status of claims (chart: rbac.claimStatus)", finding.Warning},
	}
}

// features checks the feature gates of the API server. One that it does not know is one that cannot be
// switched off any more, or not yet on: the release decides.
func features(_ context.Context, c Cluster, r *finding.Report) {
	for _, g := range gates() {
		on, known := c.State.Features[g.name]
		switch {
		case !known:
		case on:
			fine(r, "cluster", "gates", g.name+" is on")
		default:
			r.Add(finding.Finding{
				Subject: "cluster", Check: "gates", Severity: g.severity, Message: fmt.Sprintf("feature gate %s is off in the API server", g.name),
				Why: g.lost, Fix: fmt.Sprintf("switch %s on in the API server, the scheduler, the controller manager and the kubelets; the API server drops the fields of a feature that is off", g.name),
			})
		}
	}
}
