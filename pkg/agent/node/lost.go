package node

import (
	"context"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/reconcile/lost"
)

// enterLost makes records of claims whose own are gone, from their CDI specs. No call comes
// before: nobody gets a GPU that a container still has.
func (n *Node) enterLost(ctx context.Context) {
	dir := lost.Dir{
		Path: n.Config.CDIDir, Driver: n.Config.DriverName, Pool: n.Config.NodeName, BootID: n.Engine.BootID,
		Rebuilt: func(ctx context.Context, claim claims.Ref) { n.Reporter.Rebuilt(ctx, claim, "its CDI spec") },
	}
	dir.Enter(ctx, n.Journal.List, n.Engine.Adopt, n.Catalog.View().Devices)
}
