package node

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/conflict/guard"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/takeover"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

// takeOver enters the claims of NVIDIA's published driver that are still prepared on this node,
// when the hardware was seen: their devices are known by UUID. A driver that still works with its
// checkpoint is no former one.
func (n *neighbours) takeOver(ctx context.Context, view *catalog.View) {
	if !n.guard.Twin() && view.Looked && view.Snapshot.Driver.Present {
		n.former().Enter(ctx, n.Engine.Adopt, view.Devices)
	}
}

func (n *neighbours) former() takeover.File {
	return takeover.File{
		Path: n.StateDir(takeover.FileName), Driver: n.Config.DriverName, Pool: n.Config.NodeName, BootID: n.Engine.BootID,
	}
}

// taintTaken has devices of such claims published with a taint, until they end.
func (n *neighbours) taintTaken(ctx context.Context) error {
	records, _, err := n.Journal.List()
	if err != nil {
		return err
	}
	taken := append(takeover.TakenBy(records), n.former().Pending(n.Catalog.View().Devices)...)
	same := func(x, y journal.Device) bool { return x.Name == y.Name }
	if before := n.taken.Swap(&taken); before == nil && len(taken) > 0 || before != nil && !slices.EqualFunc(*before, taken, same) {
		n.Catalog.Rederive(ctx)
	}
	return nil
}

// takenTaints are the taints of those devices.
func (n *neighbours) takenTaints() []offer.Tainter {
	if taken := n.taken.Load(); taken != nil && len(*taken) > 0 {
		return []offer.Tainter{taken.Taint(n.Config.DriverName)}
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

// Planner is what makes plans of claims.
func (n *Node) Planner() kubeletplugin.Planner {
	return planner{n.Catalog, guard.Guard{Watch: n.neighbours.guard, Known: n.HasRecord, Planner: takeover.Planner{
		Plans: n.Catalog, Driver: n.Config.DriverName,
		Load: func(claim claims.Ref) (*journal.Record, error) { return n.Journal.Load(claim.UID) },
	}}, n.care.Tenants}
}
