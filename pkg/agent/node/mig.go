package node

import (
	"context"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/report"
)

// plainHandlers are the kinds of devices that this node offers.
func (w *works) plainHandlers() map[device.Kind]prepare.Handler {
	if !w.Partitions() {
		return map[device.Kind]prepare.Handler{device.KindGPU: prepare.GPUHandler{}}
	}
	return map[device.Kind]prepare.Handler{
		device.KindGPU: migsteps.WholeHandler{Numbers: w.Tree},
		device.KindMIG: migsteps.Handler{Numbers: w.Tree},
	}
}

// migExecutors do and undo the steps. They are there whatever the node offers now: claims that were
// prepared when it made partitions have to be unprepared.
func (w *works) migExecutors(ctx context.Context) map[string]prepare.Executor {
	w.stuck.Tell = func(ctx context.Context, current map[string]string) {
		w.Metrics.InstancesInUse(len(current))
		w.Reporter.Lasting(ctx, report.MIGInUse, current)
		go w.Catalog.Rederive(context.WithoutCancel(ctx))
	}
	mode := w.migMode(ctx)
	return map[string]prepare.Executor{
		migsteps.KindMode:     mode,
		migsteps.KindOff:      migsteps.Off{Mode: mode},
		migsteps.KindInstance: migsteps.Watched{Instance: w.migInstance(), Stuck: &w.stuck},
	}
}

func (w *works) migMode(ctx context.Context) migsteps.Mode {
	return migsteps.Mode{
		Hardware: w.Library, Users: w.Library, Ledger: w.Ledger, Patience: migsteps.DefaultPatience,
		// A GPU may have another minor number now. Errors show at the next regular look.
		Changed: func() { go func() { _ = w.Catalog.Refresh(ctx) }() },
	}
}

func (w *works) migInstance() migsteps.Instance {
	return migsteps.Instance{Hardware: w.Library, Users: w.Library, Ledger: w.Ledger, Patience: migsteps.DefaultPatience}
}
