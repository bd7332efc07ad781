// Package keeper keeps a node laid out as declared: whenever the declaration or the hardware
// changes, and from time to time, it has the applier work and tells people how far it is. It is
// for the plugin's wiring; it runs in the one instance that holds the node's lease. It must not
// know how GPUs are changed, nor where a declaration is kept.
package keeper

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/mig/applier"
	"github.com/gpu-dra/driver/pkg/mig/declaration"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/report"
)

// Source is the declaration; declaration.Source is one.
type Source interface {
	// Read looks for changes of what does not tell by itself.
	Read() (changed bool)
	// Known tells whether it is known what is declared.
	Known() bool
	Layouts(inventory.Snapshot) (layout.Layouts, error)
	Config() string
}

// Applier changes GPUs; applier.Applier is one.
type Applier interface {
	Apply(context.Context, inventory.Snapshot, layout.Layouts) []applier.Status
}

// Reporter tells people of lasting conditions; report.Reporter is one.
type Reporter interface {
	Lasting(ctx context.Context, reason report.Reason, current map[string]string)
}

// Config is what a Keeper works with.
type Config struct {
	Source   Source
	Applier  Applier
	Reporter Reporter
	// Layouts is told the number of GPUs by state.
	Layouts func(map[metrics.LayoutState]int)
	// View is the hardware as it was last seen; false before it was seen.
	View func() (inventory.Snapshot, bool)
	// Tell writes the state of the node where other tools read it.
	Tell func(context.Context, declaration.State) error
	// Redeclared is told when the declaration has changed.
	Redeclared func(context.Context)
	// Interval is the time between two looks where nothing wakes the keeper.
	Interval time.Duration
}

// Keeper keeps a node laid out.
type Keeper struct {
	Config
	wake chan struct{}
}

// New makes a Keeper.
func New(config Config) *Keeper { return &Keeper{Config: config, wake: make(chan struct{}, 1)} }

// Wake has the keeper look soon. It does not block.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run works until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	ticker := time.NewTicker(k.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		k.Pass(ctx)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-ticker.C:
		}
	}
}

// Pass looks once.
func (k *Keeper) Pass(ctx context.Context) {
	if k.Source.Read() {
		k.Redeclared(ctx)
	}
	snapshot, seen := k.View()
	if !seen || !k.Source.Known() || !snapshot.Driver.Present {
		return
	}
	layouts, err := k.Source.Layouts(snapshot)
	if err != nil {
		k.tell(ctx, declaration.Failed, map[report.Reason]map[string]string{
			report.MIGLayoutRefused: {"node": err.Error()},
		})
		return
	}
	statuses := k.Applier.Apply(ctx, snapshot, layouts)
	if ctx.Err() != nil {
		return
	}
	count := map[metrics.LayoutState]int{}
	conditions := map[report.Reason]map[string]string{report.MIGLayoutFailed: {}, report.MIGLayoutPending: {}}
	for _, s := range statuses {
		count[metrics.LayoutState(s.State)]++
		switch s.State {
		case applier.Failed:
			conditions[report.MIGLayoutFailed][s.GPU.String()] = s.Reason
		case applier.Pending:
			conditions[report.MIGLayoutPending][s.GPU.String()] = fmt.Sprintf("MIG layout %q waits: %s", k.Source.Config(), s.Reason)
		case applier.Applied:
		}
	}
	k.Layouts(count)
	k.tell(ctx, stateOf(k.Source.Config(), count), conditions)
}

// stateOf sums GPUs up; empty where nothing is declared and nothing is left to undo.
func stateOf(config string, count map[metrics.LayoutState]int) declaration.State {
	switch {
	case count[metrics.LayoutFailed] > 0:
		return declaration.Failed
	case count[metrics.LayoutPending] > 0:
		return declaration.Pending
	case config == "":
		return ""
	}
	return declaration.Success
}

// tell tells the conditions and the state. Conditions that are not given are over.
func (k *Keeper) tell(ctx context.Context, state declaration.State, conditions map[report.Reason]map[string]string) {
	for _, reason := range []report.Reason{report.MIGLayoutRefused, report.MIGLayoutFailed, report.MIGLayoutPending} {
		k.Reporter.Lasting(ctx, reason, conditions[reason])
	}
	if err := k.Tell(ctx, state); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "The state of the MIG layout could not be told; trying again", "state", state)
	}
}
