package agent

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

func (a *Agent) mpsLayout() mps.Layout { return mps.Layout(a.stateDir(mps.DirName)) }

func (a *Agent) mpsClient() mps.Client {
	return mps.Client{Layout: a.mpsLayout(), Patience: mpsPatience}
}

// withMPS puts sharing by MPS behind what prepares each kind of device.
func (a *Agent) withMPS(handlers map[device.Kind]prepare.Handler) map[device.Kind]prepare.Handler {
	for kind, h := range handlers {
		handlers[kind] = prepare.Chain{h, mpssteps.Handler{Layout: a.mpsLayout()}}
	}
	return handlers
}

// mpsExecutors do and undo the step. They are there also where MPS is switched off: claims that
// were prepared before have to be unprepared.
func (a *Agent) mpsExecutors() map[string]prepare.Executor {
	return map[string]prepare.Executor{mpssteps.Kind: a.mpsStep()}
}

func (a *Agent) mpsStep() mpssteps.Step {
	return mpssteps.Step{Hardware: a.library, Daemons: a.mpsClient(), Layout: a.mpsLayout(), Known: a.hasRecord}
}

// watchMPS tells of the control daemons of a node that has some.
func (a *Agent) watchMPS(ctx context.Context) {
	if a.config.MPS {
		watch := watch.Watch{Daemons: mps.Client{Layout: a.mpsLayout(), Patience: mpsPatience}, Reporter: a.reporter, Meter: a.metrics}
		watch.Run(ctx, a.config.RescanInterval)
	}
}
