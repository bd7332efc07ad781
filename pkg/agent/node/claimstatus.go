package node

import (
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health/claimstatus"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
)

// newClaimStatus makes what writes the condition of devices into claims; nil where that is off.
func (n *Node) newClaimStatus() *claimstatus.Writer {
	if !n.Config.ClaimStatus {
		return nil
	}
	return claimstatus.New(claimstatus.Config{
		Driver: n.Config.DriverName, Pool: n.Config.NodeName, Records: n.journal, Judge: n.health.Verdict, Reporter: n.Reporter,
		Devices: func() (map[string]device.Device, bool) { return n.allDevices(), n.catalog.View().Looked },
		In:      func(namespace string) claimstatus.Claims { return n.Lookups.ResourceV1().ResourceClaims(namespace) },
	})
}

// hinting has the writer of conditions learn of each call.
func hinting(w *claimstatus.Writer, p kubeletplugin.Preparer) kubeletplugin.Preparer {
	if w == nil {
		return p
	}
	return claimstatus.Hints{Preparer: p, Hint: w.Hint}
}
