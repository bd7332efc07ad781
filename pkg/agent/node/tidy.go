package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/care"
	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
	"github.com/gpu-dra/driver/pkg/takeover"
	"github.com/gpu-dra/driver/pkg/topology"
	"github.com/gpu-dra/driver/pkg/uninstall"
)

// Names below the plugin's data directory.
const (
	holdersDir   = "holders"
	nvlinkFile   = "nvlink.json"
	presenceFile = "present"
	// timeSlicesDir says which claims asked for a time slice.
	timeSlicesDir = "timeslices"
	// metadataDir is the library's.
	metadataDir = "dra-device-metadata"
)

// uninstallLimit is how long a plugin that ends waits for the signs of an uninstall, where it
// matters.
const uninstallLimit = 3 * time.Second

// Tidy removes what this process and its predecessors left on the node, so that an uninstall
// leaves nothing. A plugin cannot tell an uninstall from a restart, so it does this at every
// end at which nobody could miss it: no claim is prepared, and no other instance is there. What
// is removed is made again at the next start. An error, which is logged, tells that not all could be
// removed.
func (n *Node) Tidy(ctx context.Context, presence *lock.Presence) error {
	logger := klog.FromContext(ctx)
	if !n.nothingPrepared(ctx) || !presence.Alone() {
		return nil
	}
	// Looked at again now that nobody can join: the other instance may have prepared a claim.
	if !n.nothingPrepared(ctx) {
		return nil
	}
	n.reconciler.Sweep(ctx)
	if n.Client == nil {
		// A look that is under way would write again what is removed below. A plugin's own are over.
		_ = n.Catalog.Refresh(ctx)
	}
	var errs []error
	n.Leavings().RemoveDeadSockets(ctx)
	if err := n.base.Remove(ctx); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, n.Journal.RemoveEmpty())
	if _, err := n.works.mpsLayout().Remove(); err != nil {
		errs = append(errs, err)
	}
	for _, name := range n.removable(ctx) {
		errs = append(errs, os.RemoveAll(n.StateDir(name)))
	}
	if err := errors.Join(errs...); err != nil {
		logger.Error(err, "Not all of this node's state could be removed", "directory", n.Config.DataDir())
		return fmt.Errorf("not all of this node's state in %s could be removed: %w", n.Config.DataDir(), err)
	}
	logger.Info("No claim is prepared and no other instance is here: removed state and base CDI spec", "directory", n.Config.DataDir())
	return nil
}

// nothingPrepared tells whether there is surely no record of a claim.
func (n *Node) nothingPrepared(ctx context.Context) bool {
	count, err := n.Journal.Count()
	if err != nil {
		klog.FromContext(ctx).Error(err, "State is not removed, since it is not known whether claims are prepared")
	}
	return err == nil && count == 0
}

// removable lists what tidy removes. What is remembered of GPUs that are ill or missing is kept
// for the next instance, unless there will be none: without it a sick GPU would be offered, and
// the domains of the others would get new names.
func (n *Node) removable(ctx context.Context) []string {
	names := []string{
		holdersDir, timeSlicesDir, ground.LocksDir, care.TenantsSocket, memlimit.DirName, takeover.TakenName,
		filepath.Base(n.Config.CDIHook), filepath.Base(n.Config.LimitHook),
	}
	if !n.neighbours.guard.Twin() {
		names = append(names, metadataDir)
	}
	whole, well := topologyIsWhole(n.Catalog.View()), n.care.Well()
	gone := (!whole || !well) && n.uninstalled(ctx)
	if whole || gone {
		names = append(names, nvlinkFile)
	}
	if n.Ledger.Empty() {
		// Otherwise a partition of ours is left, or a MIG mode: what knows of it stays.
		names = append(names, ledger.DirName)
	}
	if well || gone {
		names = append(names, care.HealthFile, care.ResetsDir)
	}
	return append(names, presenceFile)
}

// uninstalled tells whether this process ends for an uninstall. Without a client it is Cleanup. What
// was never allowed, as with roles of one's own, is not withdrawn.
func (n *Node) uninstalled(ctx context.Context) bool {
	return n.Client == nil || n.nodeReadable.Load() && uninstall.Withdrawn(ctx, func(ctx context.Context) error {
		_, err := n.Client.CoreV1().Nodes().Get(ctx, n.Config.NodeName, metav1.GetOptions{ResourceVersion: "0"})
		return err
	}, uninstallLimit)
}

// topologyIsWhole tells whether the domains would be the same without the memory of them.
func topologyIsWhole(view *catalog.View) bool {
	if !view.Snapshot.Driver.Present {
		return false
	}
	afresh, _ := topology.Resolve(view.Snapshot, topology.Memory{})
	return fmt.Sprint(afresh.Domains) == fmt.Sprint(view.Assignment.Domains)
}
