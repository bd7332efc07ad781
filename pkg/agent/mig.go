package agent

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
func (a *Agent) partitions() bool { return a.config.MIGDevices != config.MIGNone }

// scanner looks at the hardware and, where that matters, knows which partitions are ours.
func (a *Agent) scanner(tree *sysfs.Tree) catalog.Scanner {
	plain := inventory.NewScanner(a.library, tree).Serving(a.config.Selection())
	if !a.partitions() {
		return plain
	}
	return ledger.Marker{Scanner: plain, Ledger: a.migLedger}
}

// offers is what the admin decided about what this node offers.
func (a *Agent) offers() offer.Settings {
	return offer.Settings{
		Pool: a.config.NodeName, Vocabulary: device.Vocabulary(a.config.SliceVocabulary),
		Lists: a.config.ListAttributes, Partitions: a.partitions(), Shares: a.shares(),
		NotOnDemand: a.config.MIGDevices == config.MIGStatic, HideForeign: !a.config.MIGForeign,
	}
}

// handlers are the kinds of devices that this node offers.
func (a *Agent) handlers(tree *sysfs.Tree) map[device.Kind]prepare.Handler {
	if !a.partitions() {
		return map[device.Kind]prepare.Handler{device.KindGPU: prepare.GPUHandler{}}
	}
	return map[device.Kind]prepare.Handler{
		device.KindGPU: migsteps.WholeHandler{Numbers: tree},
		device.KindMIG: migsteps.Handler{Numbers: tree},
	}
}

// executors do and undo the steps. They are there whatever the node offers now: claims that were
// prepared when it made partitions have to be unprepared.
func (a *Agent) executors(ctx context.Context) map[string]prepare.Executor {
	mode := migsteps.Mode{
		Hardware: a.library, Users: a.library, Ledger: a.migLedger, Patience: migsteps.DefaultPatience,
		// A GPU may have another minor number now. Errors show at the next regular look.
		Changed: func() { go func() { _ = a.catalog.Refresh(ctx) }() },
	}
	return map[string]prepare.Executor{
		migsteps.KindMode: mode,
		migsteps.KindOff:  migsteps.Off{Mode: mode},
		migsteps.KindInstance: migsteps.Watched{
			Instance: a.migInstance(),
			Stuck: &migsteps.Stuck{Tell: func(ctx context.Context, current map[string]string) {
				a.metrics.InstancesInUse(len(current))
				a.reporter.Lasting(ctx, report.MIGInUse, current)
			}},
		},
	}
}

func (a *Agent) migInstance() migsteps.Instance {
	return migsteps.Instance{Hardware: a.library, Users: a.library, Ledger: a.migLedger, Patience: migsteps.DefaultPatience}
}
