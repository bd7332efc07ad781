package agent

import (
	"errors"
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/sharing/timeslicing"
)

// sharing are the ways of sharing that this node has.
func (a *Agent) sharing() claims.Sharing { return claims.Sharing{TimeSlicing: true, MPS: a.config.MPS} }

// shared puts the ways of sharing behind what prepares each kind of device.
func (a *Agent) shared(handlers map[device.Kind]prepare.Handler) map[device.Kind]prepare.Handler {
	for kind, handler := range handlers {
		handlers[kind] = prepare.Chain{handler, shares.Handler{}}
	}
	handlers[device.KindGPU] = prepare.Chain{handlers[device.KindGPU], timeslicing.Handler{}, a.limits.Handler}
	return handlers
}

// shares are the devices that this node declares as shared. The configuration was validated.
func (a *Agent) shares() []shares.Declaration {
	declared, _ := a.config.Shares()
	return declared
}

// shareExecutors do and undo the steps of sharing.
func (a *Agent) shareExecutors(boot string) map[string]prepare.Executor {
	a.timeSlices = timeslicing.Executor{
		Setter: timeslicing.Tool{Root: a.config.DriverRoot.Container},
		Users:  timeslicing.NewUsers(a.stateDir(timeSlicesDir), boot, a.hasRecord),
	}
	return map[string]prepare.Executor{timeslicing.Kind: a.timeSlices, memlimit.Kind: a.limits.Executor}
}

// hasRecord tells whether a claim has a record. One that cannot be read is one.
func (a *Agent) hasRecord(claim types.UID) bool {
	_, err := a.journal.Load(claim)
	return !errors.Is(err, journal.ErrNotFound)
}

// merged puts sets of executors together.
func merged(sets ...map[string]prepare.Executor) map[string]prepare.Executor {
	all := map[string]prepare.Executor{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}
