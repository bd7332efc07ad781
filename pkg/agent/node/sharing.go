package node

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
func (n *Node) sharing() claims.Sharing { return claims.Sharing{TimeSlicing: true, MPS: n.Config.MPS} }

// shared puts the ways of sharing behind what prepares each kind of device.
func (n *Node) shared(handlers map[device.Kind]prepare.Handler) map[device.Kind]prepare.Handler {
	for kind, handler := range handlers {
		handlers[kind] = prepare.Chain{handler, shares.Handler{}}
	}
	handlers[device.KindGPU] = prepare.Chain{handlers[device.KindGPU], timeslicing.Handler{}, n.limits.Handler}
	return handlers
}

// shares are the devices that this node declares as shared. The configuration was validated.
func (n *Node) shares() []shares.Declaration {
	declared, _ := n.Config.Shares()
	return declared
}

// shareExecutors do and undo the steps of sharing.
func (n *Node) shareExecutors(boot string) map[string]prepare.Executor {
	n.timeSlices = timeslicing.Executor{
		Setter: timeslicing.Tool{Root: n.Config.DriverRoot.Container},
		Users:  timeslicing.NewUsers(n.stateDir(timeSlicesDir), boot, n.hasRecord),
	}
	return map[string]prepare.Executor{timeslicing.Kind: n.timeSlices, memlimit.Kind: n.limits.Executor}
}

// hasRecord tells whether a claim has a record. One that cannot be read is one.
func (n *Node) hasRecord(claim types.UID) bool {
	_, err := n.journal.Load(claim)
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
