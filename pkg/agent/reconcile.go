package agent

import (
	"context"
	"os"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/apiserver"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
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

// lookupQPS limits the questions about claims, of which a node may have hundreds: prepares have
// the API server first.
const lookupQPS = 20

// lookupClient makes the client for those questions.
func lookupClient(c *config.Config, version string, gate *apiserver.Gate) (kubernetes.Interface, error) {
	slow := *c
	slow.APIQPS, slow.APIBurst = lookupQPS, lookupQPS
	return apiserver.NewClient(&slow, version, gate)
}

// newReconciler makes what undoes claims that are gone and things that nobody owns.
func (a *Agent) newReconciler(tree *sysfs.Tree) *reconcile.Reconciler {
	c := a.config
	users := usage.Users{Hardware: a.library}
	if c.WatchOpenDevices {
		users.Openers = usage.Proc{Root: "/proc", Numbers: tree, Self: os.Getpid()}
	}
	instance := a.migInstance()
	// What is left over has no pod that may yet end.
	instance.Patience = 0
	return reconcile.New(reconcile.Config{
		Journal: a.journal,
		Claims: apiclaims.Lookup{
			In: func(namespace string) apiclaims.Getter {
				return a.tenants.Through(a.lookups.ResourceV1().ResourceClaims(namespace))
			},
			Driver: c.DriverName, Pool: c.NodeName,
		},
		Users:  users,
		Engine: a.engine,
		Owners: []reconcile.Owner{
			leftover.Specs{Dir: a.specs},
			leftover.Unless{Owner: leftover.MetadataSpecs{Dir: c.CDIDir, Driver: c.DriverName}, Others: func() bool { return a.conflicts.Twin() }},
			leftover.Unless{Owner: leftover.Metadata{Dir: a.stateDir(metadataDir)}, Others: func() bool { return a.conflicts.Twin() }},
			takeover.Specs{Data: c.DataDir(), CDI: c.CDIDir},
			migsteps.Owner{Instance: instance},
			timeslicing.Owner{Executor: a.timeSlices},
			a.limits.Owner,
			mpssteps.Owner{Step: a.mpsStep()},
		},
		Renew:    a.renew,
		Reporter: a.reporter,
		Passed:   a.metrics.Reconciled,
		Interval: c.ReconcileInterval,
		Grace:    c.OrphanGrace,
	})
}

// renew makes the CDI specs of claims that run fit the device nodes of this moment.
func (a *Agent) renew(ctx context.Context) error {
	view := a.catalog.View()
	// A driver that came late has brought the GPUs of a former driver's claims.
	a.takeOver(ctx, view)
	if err := a.taintTaken(ctx); err != nil {
		return err
	}
	if !view.Looked || !view.Snapshot.Driver.Present {
		return nil
	}
	renewed, err := a.engine.Renew(ctx, view.Devices)
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
