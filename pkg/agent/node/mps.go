package node

import (
	"context"
	"time"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/mpssteps"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/watch"
)

// mpsPatience is how long a claim waits for the supervisor of MPS control daemons, which starts
// in a second or two where its pod runs.
const mpsPatience = 10 * time.Second

func (w *works) mpsLayout() mps.Layout { return mps.Layout(w.StateDir(mps.DirName)) }

func (w *works) mpsClient() mps.Client {
	return mps.Client{Layout: w.mpsLayout(), Patience: mpsPatience}
}

// withMPS puts sharing by MPS behind what prepares each kind of device.
func (w *works) withMPS(handlers map[device.Kind]prepare.Handler) map[device.Kind]prepare.Handler {
	for kind, h := range handlers {
		handlers[kind] = prepare.Chain{h, mpssteps.Handler{Layout: w.mpsLayout()}}
	}
	return handlers
}

// mpsExecutors do and undo the step. They are there also where MPS is switched off: claims that
// were prepared before have to be unprepared.
func (w *works) mpsExecutors() map[string]prepare.Executor {
	return map[string]prepare.Executor{mpssteps.Kind: w.mpsStep()}
}

func (w *works) mpsStep() mpssteps.Step {
	return mpssteps.Step{Hardware: w.Library, Daemons: w.mpsClient(), Layout: w.mpsLayout(), Known: w.HasRecord}
}

// watchMPS tells of the control daemons of a node that has some.
func (w *works) watchMPS(ctx context.Context) {
	if w.Config.MPS {
		watch := watch.Watch{Daemons: mps.Client{Layout: w.mpsLayout(), Patience: mpsPatience}, Reporter: w.Reporter, Meter: w.Metrics}
		watch.Run(ctx, w.Config.RescanInterval)
	}
}
