package node

import (
	"context"
	"os"
	"slices"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/prepare/mpssteps"
	"github.com/gpu-dra/driver/pkg/reconcile"
	"github.com/gpu-dra/driver/pkg/reconcile/apiclaims"
	"github.com/gpu-dra/driver/pkg/reconcile/leftover"
	"github.com/gpu-dra/driver/pkg/reconcile/usage"
	"github.com/gpu-dra/driver/pkg/sharing/timeslicing"
	"github.com/gpu-dra/driver/pkg/takeover"
)

// newReconciler makes what undoes claims that are gone and things that nobody owns.
func (n *Node) newReconciler(ctx context.Context) *reconcile.Reconciler {
	c := n.Config
	users := usage.Users{Hardware: n.Library}
	if c.WatchOpenDevices {
		users.Openers = usage.Proc{Root: "/proc", Numbers: n.Tree, Self: os.Getpid()}
	}
	instance, mode := n.works.migInstance(), n.works.migMode(ctx)
	// What is left over has no pod that may yet end.
	instance.Patience, mode.Patience = 0, 0
	return reconcile.New(reconcile.Config{
		Journal: n.Journal,
		Claims: apiclaims.Lookup{
			In: func(namespace string) apiclaims.Getter {
				return n.care.Tenants.Through(n.Lookups.ResourceV1().ResourceClaims(namespace))
			},
			Driver: c.DriverName, Pool: c.NodeName,
		},
		Users:  users,
		Engine: n.Engine,
		Owners: []reconcile.Owner{
			leftover.Specs{Dir: n.specs},
			leftover.Unless{Owner: leftover.MetadataSpecs{Dir: c.CDIDir, Driver: c.DriverName}, Others: func() bool { return n.neighbours.guard.Twin() }},
			leftover.Unless{Owner: leftover.Metadata{Dir: n.StateDir(metadataDir)}, Others: func() bool { return n.neighbours.guard.Twin() }},
			takeover.Specs{Data: c.DataDir(), CDI: c.CDIDir},
			migsteps.Owner{Instance: migsteps.Watched{Instance: instance, Stuck: &n.works.stuck}},
			migsteps.ModeOwner{Mode: mode},
			timeslicing.Owner{Executor: n.works.timeSlices},
			n.works.limits.Owner,
			mpssteps.Owner{Step: n.works.mpsStep()},
		},
		Renew:    n.renew,
		Reporter: n.Reporter,
		Passed:   n.Metrics.Reconciled,
		Interval: c.ReconcileInterval,
		Grace:    c.OrphanGrace,
	})
}

// renew makes the CDI specs of claims that run fit the device nodes of this moment.
func (n *Node) renew(ctx context.Context) error {
	view := n.Catalog.View()
	// A driver that came late has brought the GPUs of a former driver's claims.
	n.neighbours.takeOver(ctx, view)
	if err := n.neighbours.taintTaken(ctx); err != nil {
		return err
	}
	if !view.Looked || !view.Snapshot.Driver.Present {
		return nil
	}
	renewed, err := n.Engine.Renew(ctx, view.Devices)
	for _, claim := range renewed {
		klog.FromContext(ctx).Info("The claim's CDI spec was stale and is written anew", "claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	}
	return err
}

// renumbered tells whether a GPU has another device node than before.
func renumbered(before, after inventory.Snapshot) bool {
	minors := map[pci.Address]int{}
	for _, g := range before.GPUs {
		minors[g.PCI] = g.Minor
	}
	return slices.ContainsFunc(after.GPUs, func(g inventory.GPU) bool { return minors[g.PCI] != g.Minor })
}
