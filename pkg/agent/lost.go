package agent

import (
	"context"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/reconcile/lost"
)

// enterLost makes records of claims whose own are gone, from their CDI specs. No call comes
// before: nobody gets a GPU that a container still has.
func (a *Agent) enterLost(ctx context.Context) {
	dir := lost.Dir{
		Path: a.config.CDIDir, Driver: a.config.DriverName, Pool: a.config.NodeName, BootID: a.engine.BootID,
		Rebuilt: func(ctx context.Context, claim claims.Ref) { a.reporter.Rebuilt(ctx, claim, "its CDI spec") },
	}
	dir.Enter(ctx, a.journal.List, a.engine.Adopt, a.catalog.View().Devices)
}
