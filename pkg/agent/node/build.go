package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/cdi/hook"
	"github.com/gpu-dra/driver/pkg/cdi/nvidia"
	"github.com/gpu-dra/driver/pkg/cdi/nvidia/lent"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/memlimits"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/metered"
	"github.com/gpu-dra/driver/pkg/topology"
)

const (
	// closeLimit bounds the end of the NVML session when the process ends.
	closeLimit = 5 * time.Second
	// lockWait bounds every wait for a lock, under the kubelet's 45 s.
	lockWait = 40 * time.Second
)

// New makes every part from the configuration. Directories and the CDI hook are made; no hardware
// is looked at and nothing runs yet.
func New(ctx context.Context, d Deps) (*Node, error) {
	n := &Node{Deps: d}
	n.nodeReadable.Store(d.NodeRead)
	if err := n.build(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Node) build(ctx context.Context) error {
	c := n.Config
	hookPath, err := hook.Install(c.CDIHook, c.DataDir())
	if err != nil {
		return fmt.Errorf("--cdi-hook: %w", err)
	}
	n.library = nvml.New(nvml.Options{Root: c.DriverRoot.Container, Partitions: n.partitions(), Calls: slices.Concat(vitals.Calls(), memlimits.Calls()), Selection: c.Selection()})
	tree := sysfs.New(c.SysRoot, c.ProcRoot)
	boot, err := sysfs.BootID(c.ProcRoot)
	if err != nil {
		return err
	}
	n.migLedger = ledger.New(n.stateDir(ledger.DirName), boot)
	if err := n.migLedger.Sweep(); err != nil {
		klog.FromContext(ctx).Error(err, "Notes of an earlier boot are left behind")
	}
	if n.locks, err = lock.Open(n.stateDir(locksDir), lock.Options{MaxWait: lockWait}); err != nil {
		return fmt.Errorf("directory of locks: %w", err)
	}
	if n.journal, err = journal.Open(n.stateDir(claimsDir)); err != nil {
		return fmt.Errorf("directory of claim records: %w", err)
	}
	if err := n.buildLimits(boot); err != nil {
		return err
	}
	if err := n.buildHealth(boot); err != nil {
		return err
	}
	n.catalog = catalog.New(catalog.Config{
		DriverName: c.DriverName,
		Pool:       c.NodeName,
		Scanner:    watched{n.limits.Watch(n.scanner(tree)), n.health},
		Memory:     topology.Store{Path: n.stateDir(nvlinkFile)},
		Derive:     n.withSick(derive(n.offers(), n.conditions)),
		Reporter:   n.Reporter,
		Meter:      n.Metrics,
		Sharing:    n.sharing(),
		Changed:    n.changed,
	})
	if err := n.buildEngine(ctx, tree, hookPath, boot); err != nil {
		return err
	}
	n.claimStatus = n.newClaimStatus()
	n.buildLayouts(ctx)
	if n.Client != nil {
		n.buildConflicts()
	}
	return nil
}

// buildEngine makes what prepares claims.
func (n *Node) buildEngine(ctx context.Context, tree *sysfs.Tree, hookPath, boot string) error {
	c := n.Config
	host := &cdi.Host{
		Dev:    cdi.Root{Host: c.DevRoot.Host, Container: c.DevRoot.Container},
		Majors: tree,
		Stat:   cdi.Lstat,
	}
	dir, err := cdi.Open(c.CDIDir, c.DriverName, host)
	if err != nil {
		return fmt.Errorf("--cdi-dir: %w", err)
	}
	n.specs = dir
	n.Metrics.CountClaims(n.journal.Count)
	n.base = cdi.NewBase(dir, &lent.Source{Library: n.library.Library, Config: nvidia.Config{
		DriverRoot:    cdi.Root{Host: c.DriverRoot.Host, Container: c.DriverRoot.Container},
		HookPath:      hookPath,
		DriverVersion: func() string { return n.catalog.View().Snapshot.Driver.Version },
		Logger:        klog.FromContext(ctx),
	}})
	n.engine, err = prepare.New(metered.Config(prepare.Config{
		Journal:     n.journal,
		Locks:       n.locks,
		Specs:       dir,
		Base:        n.base,
		HoldersDir:  n.stateDir(holdersDir),
		BootID:      boot,
		Handlers:    n.withMPS(n.shared(n.handlers(tree))),
		Executors:   merged(n.executors(ctx), n.shareExecutors(boot), n.mpsExecutors()),
		Quarantined: n.Reporter.Quarantined,
		Waiting:     func() { n.reconciler.Hint() },
		// The engine takes 0 for its default.
		HolderWait: max(c.HolderWait, time.Nanosecond),
	}, n.Metrics))
	if err != nil {
		return err
	}
	n.reconciler = n.newReconciler(tree)
	return nil
}

// derive binds the pure function that makes devices and slices to this node's settings, and to
// its conditions, which are asked for anew each time.
func derive(settings offer.Settings, conditions func(inventory.Snapshot) offer.Conditions) catalog.Derive {
	return func(s inventory.Snapshot, a topology.Assignment) catalog.Derived {
		return catalog.Derived(settings.Make(s, a, conditions(s)))
	}
}

// Close gives the driver's device nodes back, unless a call is under way, such as the wait for errors:
// then the end of the process does.
func (n *Node) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if err := n.library.Close(ctx); err != nil {
		klog.FromContext(ctx).Info("The GPU driver's library stays open until this process has ended", "reason", err)
	}
}
