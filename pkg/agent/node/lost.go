package node

import (
	"context"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/reconcile/lost"
)

// enterLost makes records of claims whose own are gone, from their CDI specs. No call comes
// before: nobody gets a GPU that a container still has.
func (g *ground) enterLost(ctx context.Context) {
	dir := lost.Dir{
		Path: g.Config.CDIDir, Driver: g.Config.DriverName, Pool: g.Config.NodeName, BootID: g.engine.BootID,
		Rebuilt: func(ctx context.Context, claim claims.Ref) { g.Reporter.Rebuilt(ctx, claim, "its CDI spec") },
	}
	dir.Enter(ctx, g.journal.List, g.engine.Adopt, g.catalog.View().Devices)
}
