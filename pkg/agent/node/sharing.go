package node

import (
	"context"
	"maps"

	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/sharing/timeslicing"
)

// works are the ways to prepare a device, and to undo that.
type works struct {
	*ground.Ground
	limits     *memlimit.Sharing
	timeSlices timeslicing.Executor
	// stuck are instances of ended claims that something uses.
	stuck migsteps.Stuck
}

// taints are those of devices that cannot be prepared yet.
func (w *works) taints() []offer.Tainter {
	return []offer.Tainter{w.stuck.Taint(w.Config.DriverName)}
}

// build makes what keeps state of its own.
func (w *works) build() error {
	w.timeSlices = timeslicing.Executor{
		Setter: timeslicing.Tool{Root: w.Config.DriverRoot.Container},
		Users:  timeslicing.NewUsers(w.StateDir(timeSlicesDir), w.Boot, w.HasRecord),
	}
	return w.buildLimits()
}

// handlers prepare each kind of device, with the ways of sharing behind what prepares it alone.
func (w *works) handlers() map[device.Kind]prepare.Handler {
	return w.withMPS(w.shared(w.plainHandlers()))
}

// executors do and undo all steps.
func (w *works) executors(ctx context.Context) map[string]prepare.Executor {
	return merged(w.migExecutors(ctx), map[string]prepare.Executor{
		timeslicing.Kind: w.timeSlices, memlimit.Kind: w.limits.Executor,
	}, w.mpsExecutors())
}

// shared puts the ways of sharing behind what prepares each kind of device.
func (w *works) shared(handlers map[device.Kind]prepare.Handler) map[device.Kind]prepare.Handler {
	for kind, handler := range handlers {
		handlers[kind] = prepare.Chain{handler, shares.Handler{}}
	}
	handlers[device.KindGPU] = prepare.Chain{handlers[device.KindGPU], timeslicing.Handler{}, w.limits.Handler}
	return handlers
}

// merged puts sets of executors together.
func merged(sets ...map[string]prepare.Executor) map[string]prepare.Executor {
	all := map[string]prepare.Executor{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}
