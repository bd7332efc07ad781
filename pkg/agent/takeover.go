package agent

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/conflict/guard"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/takeover"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

// takeOver enters the claims of NVIDIA's published driver that are still prepared on this node,
// when the hardware was seen: their devices are known by UUID. A driver that still works with its
// checkpoint is no former one.
func (a *Agent) takeOver(ctx context.Context, view *catalog.View) {
	if !a.conflicts.Twin() && view.Looked && view.Snapshot.Driver.Present {
		a.former().Enter(ctx, a.engine.Adopt, view.Devices)
	}
}

func (a *Agent) former() takeover.File {
	return takeover.File{
		Path: a.stateDir(takeover.FileName), Driver: a.config.DriverName, Pool: a.config.NodeName, BootID: a.engine.BootID,
	}
}

// taintTaken has devices of such claims published with a taint, until they end.
func (a *Agent) taintTaken(ctx context.Context) error {
	records, _, err := a.journal.List()
	if err != nil {
		return err
	}
	taken := append(takeover.TakenBy(records), a.former().Pending(a.catalog.View().Devices)...)
	same := func(x, y journal.Device) bool { return x.Name == y.Name }
	if before := a.taken.Swap(&taken); before == nil && len(taken) > 0 || before != nil && !slices.EqualFunc(*before, taken, same) {
		a.catalog.Rederive(ctx)
	}
	return nil
}

// takenTaints are the taints of those devices.
func (a *Agent) takenTaints() []offer.Tainter {
	if taken := a.taken.Load(); taken != nil && len(*taken) > 0 {
		return []offer.Tainter{taken.Taint(a.config.DriverName)}
	}
	return nil
}

// planner understands the former driver's names for devices, and refuses new claims while
// something else hands out the node's GPUs.
type planner struct {
	*catalog.Catalog
	plans   guard.Planner
	tenants *tenancy.Register
}

// Plan implements kubeletplugin.Planner.
func (p planner) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	p.tenants.Saw(claim)
	return p.plans.Plan(claim)
}

func (a *Agent) planner() planner {
	return planner{a.catalog, guard.Guard{Watch: a.conflicts, Known: a.hasRecord, Planner: takeover.Planner{
		Plans: a.catalog, Driver: a.config.DriverName,
		Load: func(claim claims.Ref) (*journal.Record, error) { return a.journal.Load(claim.UID) },
	}}, a.tenants}
}
