// Package watch looks at the MPS control daemons of a node at intervals and tells what became of
// them, for metrics and Events. It is for the node plugin. It must not change anything.
package watch

import (
	"context"
	"fmt"
	"time"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// Daemons tells of all daemons; mps.Client is one.
type Daemons interface {
	List(ctx context.Context) ([]mps.Status, error)
}

// Reporter tells people; report.Reporter is one.
type Reporter interface {
	// MPSDown gets, by name, what is down now and why.
	MPSDown(ctx context.Context, down map[string]string)
	MPSRestarted(ctx context.Context, daemon string)
}

// Meter counts; metrics.Metrics is one.
type Meter interface {
	MPSDaemons(ready, down int)
	MPSRestarted()
	MPSSupervisor(up bool)
}

// Watch is one look after the other.
type Watch struct {
	Daemons  Daemons
	Reporter Reporter
	Meter    Meter

	// restarts are those of the last look, by daemon; nil before the first.
	restarts map[string]int
}

// lookTime bounds one look.
const lookTime = 20 * time.Second

// Run looks at once and at intervals until the context ends.
func (w *Watch) Run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		w.Look(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// supervisor is the name of the supervisor among what can be down; no device is called so.
const supervisor = "supervisor"

// Look looks once. It is not to be called twice at once.
func (w *Watch) Look(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	list, err := w.Daemons.List(limit)
	if ctx.Err() != nil {
		return
	}
	w.Meter.MPSSupervisor(err == nil)
	if err != nil {
		// What was known of daemons stays as it was: they may well run.
		w.Reporter.MPSDown(ctx, map[string]string{supervisor: err.Error()})
		return
	}
	down, ready := map[string]string{}, 0
	restarts := map[string]int{}
	for _, d := range list {
		switch {
		case d.Ready:
			ready++
		case d.Served:
			down[d.Name] = fmt.Sprintf("The MPS control daemon of device %s does not serve: %s", d.Name, d.Message)
		}
		restarts[d.Name] = d.Restarts
		// What was before the first look is not news. One that was ended and asked for anew in
		// between counts from 0 again.
		for n := w.restarts[d.Name]; w.restarts != nil && n < d.Restarts; n++ {
			w.Meter.MPSRestarted()
			w.Reporter.MPSRestarted(ctx, d.Name)
		}
	}
	w.restarts = restarts
	w.Meter.MPSDaemons(ready, len(down))
	w.Reporter.MPSDown(ctx, down)
}
