package agent

import (
	"context"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/applier"
	"github.com/gpu-dra/driver/pkg/mig/declaration"
	"github.com/gpu-dra/driver/pkg/mig/keeper"
	"github.com/gpu-dra/driver/pkg/offer"
)

// layouts are the declared MIG layouts of this node.
type layouts struct {
	source *declaration.Source
	keeper *keeper.Keeper
}

// known tells whether it is known what is declared: before, nothing is published anew.
func (l layouts) known() bool { return l.source == nil || l.source.Known() }

// wake has the keeper look soon.
func (l layouts) wake() {
	if l.keeper != nil {
		l.keeper.Wake()
	}
}

// declares tells whether this node has declared layouts. Without them the keeper still removes
// what is left of earlier ones.
func (a *Agent) declares() bool { return a.config.MIGLayoutFile != "" }

// buildLayouts makes what keeps the node laid out. Nothing runs yet.
func (a *Agent) buildLayouts(ctx context.Context) {
	c := a.config
	source := declaration.NewSource(c.MIGLayoutFile, c.MIGLayout, c.DriverName)
	if a.declares() {
		source.Read()
	} else {
		source.Observe(declaration.Node{})
	}
	a.layouts = layouts{source: source, keeper: keeper.New(keeper.Config{
		Source: source, Reporter: a.reporter, Layouts: a.metrics.Layouts, Interval: c.RescanInterval,
		Applier: applier.New(applier.Config{
			Hardware: a.library, Locks: a.locks, Claims: a.engine, Ledger: a.migLedger,
			Changed: func() { go func() { _ = a.catalog.Refresh(ctx) }() },
		}),
		View: func() (inventory.Snapshot, bool) { v := a.catalog.View(); return v.Snapshot, v.Looked },
		Tell: func(ctx context.Context, state declaration.State) error {
			if !a.declares() {
				return nil
			}
			return source.Tell(ctx, a.client, c.NodeName, state)
		},
		Redeclared: a.catalog.Rederive,
	})}
}

// watchLayouts follows the node's labels until the context ends.
func (a *Agent) watchLayouts(ctx context.Context) {
	if !a.declares() {
		return
	}
	declaration.Watch(ctx, a.client, a.config.NodeName, func(n declaration.Node) {
		if a.layouts.source.Observe(n) {
			a.catalog.Rederive(ctx)
			a.layouts.wake()
		}
	})
}

// keepLayouts keeps the node laid out until the context ends, for the holder of the lease.
func (a *Agent) keepLayouts(ctx context.Context) {
	if a.partitions() {
		a.layouts.keeper.Run(ctx)
	}
}

// layoutConditions adds the layouts to the conditions of the offer.
func (a *Agent) layoutConditions(s inventory.Snapshot, c *offer.Conditions) {
	if a.declares() {
		c.Layouts, c.LayoutsHeld = a.layouts.source.Layouts(s)
	}
}
