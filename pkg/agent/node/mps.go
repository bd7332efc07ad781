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

func (n *Node) mpsLayout() mps.Layout { return mps.Layout(n.stateDir(mps.DirName)) }

func (n *Node) mpsClient() mps.Client {
	return mps.Client{Layout: n.mpsLayout(), Patience: mpsPatience}
}

// withMPS puts sharing by MPS behind what prepares each kind of device.
func (n *Node) withMPS(handlers map[device.Kind]prepare.Handler) map[device.Kind]prepare.Handler {
	for kind, h := range handlers {
		handlers[kind] = prepare.Chain{h, mpssteps.Handler{Layout: n.mpsLayout()}}
	}
	return handlers
}

// mpsExecutors do and undo the step. They are there also where MPS is switched off: claims that
// were prepared before have to be unprepared.
func (n *Node) mpsExecutors() map[string]prepare.Executor {
	return map[string]prepare.Executor{mpssteps.Kind: n.mpsStep()}
}

func (n *Node) mpsStep() mpssteps.Step {
	return mpssteps.Step{Hardware: n.library, Daemons: n.mpsClient(), Layout: n.mpsLayout(), Known: n.hasRecord}
}

// watchMPS tells of the control daemons of a node that has some.
func (n *Node) watchMPS(ctx context.Context) {
	if n.Config.MPS {
		watch := watch.Watch{Daemons: mps.Client{Layout: n.mpsLayout(), Patience: mpsPatience}, Reporter: n.Reporter, Meter: n.Metrics}
		watch.Run(ctx, n.Config.RescanInterval)
	}
}
