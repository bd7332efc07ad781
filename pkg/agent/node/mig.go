package node

import (
	"context"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/report"
)

// partitions tells whether this node offers partitions.
func (n *Node) partitions() bool { return n.Config.MIGDevices != config.MIGNone }

// scanner looks at the hardware and, where that matters, knows which partitions are ours.
func (n *Node) scanner(tree *sysfs.Tree) catalog.Scanner {
	plain := inventory.NewScanner(n.library, tree).Serving(n.Config.Selection())
	if !n.partitions() {
		return plain
	}
	return ledger.Marker{Scanner: plain, Ledger: n.migLedger}
}

// offers is what the admin decided about what this node offers.
func (n *Node) offers() offer.Settings {
	return offer.Settings{
		Pool: n.Config.NodeName, Vocabulary: device.Vocabulary(n.Config.SliceVocabulary),
		Lists: n.Config.ListAttributes, Partitions: n.partitions(), Shares: n.shares(),
		NotOnDemand: n.Config.MIGDevices == config.MIGStatic, HideForeign: !n.Config.MIGForeign,
	}
}

// handlers are the kinds of devices that this node offers.
func (n *Node) handlers(tree *sysfs.Tree) map[device.Kind]prepare.Handler {
	if !n.partitions() {
		return map[device.Kind]prepare.Handler{device.KindGPU: prepare.GPUHandler{}}
	}
	return map[device.Kind]prepare.Handler{
		device.KindGPU: migsteps.WholeHandler{Numbers: tree},
		device.KindMIG: migsteps.Handler{Numbers: tree},
	}
}

// executors do and undo the steps. They are there whatever the node offers now: claims that were
// prepared when it made partitions have to be unprepared.
func (n *Node) executors(ctx context.Context) map[string]prepare.Executor {
	n.stuck.Tell = func(ctx context.Context, current map[string]string) {
		n.Metrics.InstancesInUse(len(current))
		n.Reporter.Lasting(ctx, report.MIGInUse, current)
		go n.catalog.Rederive(context.WithoutCancel(ctx))
	}
	mode := migsteps.Mode{
		Hardware: n.library, Users: n.library, Ledger: n.migLedger, Patience: migsteps.DefaultPatience,
		// A GPU may have another minor number now. Errors show at the next regular look.
		Changed: func() { go func() { _ = n.catalog.Refresh(ctx) }() },
	}
	return map[string]prepare.Executor{
		migsteps.KindMode:     mode,
		migsteps.KindOff:      migsteps.Off{Mode: mode},
		migsteps.KindInstance: migsteps.Watched{Instance: n.migInstance(), Stuck: &n.stuck},
	}
}

func (n *Node) migInstance() migsteps.Instance {
	return migsteps.Instance{Hardware: n.library, Users: n.library, Ledger: n.migLedger, Patience: migsteps.DefaultPatience}
}
