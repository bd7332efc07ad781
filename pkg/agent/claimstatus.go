package agent

import (
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health/claimstatus"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
)

// newClaimStatus makes what writes the condition of devices into claims; nil where that is off.
func (a *Agent) newClaimStatus() *claimstatus.Writer {
	if !a.config.ClaimStatus {
		return nil
	}
	return claimstatus.New(claimstatus.Config{
		Driver: a.config.DriverName, Pool: a.config.NodeName, Records: a.journal, Judge: a.health.Verdict, Reporter: a.reporter,
		Devices: func() (map[string]device.Device, bool) { return a.allDevices(), a.catalog.View().Looked },
		In:      func(namespace string) claimstatus.Claims { return a.lookups.ResourceV1().ResourceClaims(namespace) },
	})
}

// hinting has the writer of conditions learn of each call.
func hinting(w *claimstatus.Writer, p kubeletplugin.Preparer) kubeletplugin.Preparer {
	if w == nil {
		return p
	}
	return claimstatus.Hints{Preparer: p, Hint: w.Hint}
}
