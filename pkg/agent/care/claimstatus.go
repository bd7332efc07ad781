package care

import (
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health/claimstatus"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
)

// newClaimStatus makes what writes the condition of devices into claims; nil where that is off.
func (c *Care) newClaimStatus() *claimstatus.Writer {
	if !c.Config.ClaimStatus {
		return nil
	}
	return claimstatus.New(claimstatus.Config{
		Driver: c.Config.DriverName, Pool: c.Config.NodeName, Records: c.Journal, Judge: c.monitor.Verdict, Reporter: c.Reporter,
		Devices: func() (map[string]device.Device, bool) { return c.allDevices(), c.Catalog.View().Looked },
		In:      func(namespace string) claimstatus.Claims { return c.Lookups.ResourceV1().ResourceClaims(namespace) },
	})
}

// Hinting has the writer of conditions learn of each call.
func (c *Care) Hinting(p kubeletplugin.Preparer) kubeletplugin.Preparer {
	if c.claimStatus == nil {
		return p
	}
	return claimstatus.Hints{Preparer: p, Hint: c.claimStatus.Hint}
}
