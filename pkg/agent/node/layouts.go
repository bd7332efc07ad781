package node

import (
	"context"

	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/applier"
	"github.com/gpu-dra/driver/pkg/mig/declaration"
	"github.com/gpu-dra/driver/pkg/mig/keeper"
	"github.com/gpu-dra/driver/pkg/offer"
)

// layouts are the declared MIG layouts of this node.
type layouts struct {
	*ground.Ground
	source *declaration.Source
	keeper *keeper.Keeper
}

// known tells whether it is known what is declared: before, nothing is published anew.
func (l *layouts) known() bool { return l.source == nil || l.source.Known() }

// wake has the keeper look soon.
func (l *layouts) wake() {
	if l.keeper != nil {
		l.keeper.Wake()
	}
}

// build makes what keeps the node laid out. Nothing runs yet.
func (l *layouts) build(ctx context.Context) {
	c := l.Config
	source := declaration.NewSource(c.MIGLayoutFile, c.MIGLayout, c.DriverName)
	if l.Declares() {
		source.Read()
	} else {
		source.Observe(declaration.Node{})
	}
	l.source, l.keeper = source, keeper.New(keeper.Config{
		Source: source, Reporter: l.Reporter, Layouts: l.Metrics.Layouts, Interval: c.RescanInterval,
		Applier: applier.New(applier.Config{
			Hardware: l.Library, Locks: l.Locks, Claims: l.Engine, Ledger: l.Ledger,
			Changed: func() { go func() { _ = l.Catalog.Refresh(ctx) }() },
		}),
		View: func() (inventory.Snapshot, bool) { v := l.Catalog.View(); return v.Snapshot, v.Looked },
		Tell: func(ctx context.Context, state declaration.State) error {
			if !l.Declares() {
				return nil
			}
			return source.Tell(ctx, l.Client, c.NodeName, state)
		},
		Redeclared: l.Catalog.Rederive,
	})
}

// watch follows the node's labels until the context ends.
func (l *layouts) watch(ctx context.Context) {
	if !l.Declares() {
		return
	}
	declaration.Watch(ctx, l.Client, l.Config.NodeName, func(declared declaration.Node) {
		if l.source.Observe(declared) {
			l.Catalog.Rederive(ctx)
			l.wake()
		}
	})
}

// keep keeps the node laid out until the context ends, for the holder of the lease.
func (l *layouts) keep(ctx context.Context) {
	if l.Partitions() {
		l.keeper.Run(ctx)
	}
}

// conditions adds the layouts to the conditions of the offer.
func (l *layouts) conditions(s inventory.Snapshot, c *offer.Conditions) {
	if l.Declares() {
		c.Layouts, c.LayoutsHeld = l.source.Layouts(s)
	}
}
