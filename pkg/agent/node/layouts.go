package node

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
func (n *Node) declares() bool { return n.Config.MIGLayoutFile != "" }

// buildLayouts makes what keeps the node laid out. Nothing runs yet.
func (n *Node) buildLayouts(ctx context.Context) {
	c := n.Config
	source := declaration.NewSource(c.MIGLayoutFile, c.MIGLayout, c.DriverName)
	if n.declares() {
		source.Read()
	} else {
		source.Observe(declaration.Node{})
	}
	n.layouts = layouts{source: source, keeper: keeper.New(keeper.Config{
		Source: source, Reporter: n.Reporter, Layouts: n.Metrics.Layouts, Interval: c.RescanInterval,
		Applier: applier.New(applier.Config{
			Hardware: n.library, Locks: n.locks, Claims: n.engine, Ledger: n.migLedger,
			Changed: func() { go func() { _ = n.catalog.Refresh(ctx) }() },
		}),
		View: func() (inventory.Snapshot, bool) { v := n.catalog.View(); return v.Snapshot, v.Looked },
		Tell: func(ctx context.Context, state declaration.State) error {
			if !n.declares() {
				return nil
			}
			return source.Tell(ctx, n.Client, c.NodeName, state)
		},
		Redeclared: n.catalog.Rederive,
	})}
}

// watchLayouts follows the node's labels until the context ends.
func (n *Node) watchLayouts(ctx context.Context) {
	if !n.declares() {
		return
	}
	declaration.Watch(ctx, n.Client, n.Config.NodeName, func(declared declaration.Node) {
		if n.layouts.source.Observe(declared) {
			n.catalog.Rederive(ctx)
			n.layouts.wake()
		}
	})
}

// keepLayouts keeps the node laid out until the context ends, for the holder of the lease.
func (n *Node) keepLayouts(ctx context.Context) {
	if n.partitions() {
		n.layouts.keeper.Run(ctx)
	}
}

// layoutConditions adds the layouts to the conditions of the offer.
func (n *Node) layoutConditions(s inventory.Snapshot, c *offer.Conditions) {
	if n.declares() {
		c.Layouts, c.LayoutsHeld = n.layouts.source.Layouts(s)
	}
}
