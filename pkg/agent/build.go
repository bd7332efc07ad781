package agent

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

// build makes every part from the configuration. Directories and the CDI hook are made; no
// hardware is looked at and nothing runs yet.
func (a *Agent) build(ctx context.Context) error {
	c := a.config
	hookPath, err := hook.Install(c.CDIHook, c.DataDir())
	if err != nil {
		return fmt.Errorf("--cdi-hook: %w", err)
	}
	a.library = nvml.New(nvml.Options{Root: c.DriverRoot.Container, Partitions: a.partitions(), Calls: slices.Concat(vitals.Calls(), memlimits.Calls()), Selection: c.Selection()})
	tree := sysfs.New(c.SysRoot, c.ProcRoot)
	boot, err := sysfs.BootID(c.ProcRoot)
	if err != nil {
		return err
	}
	a.migLedger = ledger.New(a.stateDir(migDir), boot)
	if err := a.migLedger.Sweep(); err != nil {
		klog.FromContext(ctx).Error(err, "Notes of an earlier boot are left behind")
	}
	if a.locks, err = lock.Open(a.stateDir(locksDir), lock.Options{MaxWait: lockWait}); err != nil {
		return fmt.Errorf("directory of locks: %w", err)
	}
	if a.journal, err = journal.Open(a.stateDir(claimsDir)); err != nil {
		return fmt.Errorf("directory of claim records: %w", err)
	}
	if err := a.buildLimits(boot); err != nil {
		return err
	}
	if err := a.buildHealth(boot); err != nil {
		return err
	}
	a.catalog = catalog.New(catalog.Config{
		DriverName: c.DriverName,
		Pool:       c.NodeName,
		Scanner:    watched{a.limits.Watch(a.scanner(tree)), a.health},
		Memory:     topology.Store{Path: a.stateDir(nvlinkFile)},
		Derive:     a.withSick(derive(a.offers(), a.conditions)),
		Reporter:   a.reporter,
		Meter:      a.metrics,
		Sharing:    a.sharing(),
		Changed:    a.changed,
	})
	if err := a.buildEngine(ctx, tree, hookPath, boot); err != nil {
		return err
	}
	a.claimStatus = a.newClaimStatus()
	a.buildLayouts(ctx)
	return nil
}

// buildEngine makes what prepares claims.
func (a *Agent) buildEngine(ctx context.Context, tree *sysfs.Tree, hookPath, boot string) error {
	c := a.config
	host := &cdi.Host{
		Dev:    cdi.Root{Host: c.DevRoot.Host, Container: c.DevRoot.Container},
		Majors: tree,
		Stat:   cdi.Lstat,
	}
	dir, err := cdi.Open(c.CDIDir, c.DriverName, host)
	if err != nil {
		return fmt.Errorf("--cdi-dir: %w", err)
	}
	a.specs = dir
	a.metrics.CountClaims(a.journal.Count)
	a.base = cdi.NewBase(dir, &lent.Source{Library: a.library, Config: nvidia.Config{
		DriverRoot:    cdi.Root{Host: c.DriverRoot.Host, Container: c.DriverRoot.Container},
		HookPath:      hookPath,
		DriverVersion: func() string { return a.catalog.View().Snapshot.Driver.Version },
		Logger:        klog.FromContext(ctx),
	}})
	a.engine, err = prepare.New(metered.Config(prepare.Config{
		Journal:     a.journal,
		Locks:       a.locks,
		Specs:       dir,
		Base:        a.base,
		HoldersDir:  a.stateDir(holdersDir),
		BootID:      boot,
		Handlers:    a.withMPS(a.shared(a.handlers(tree))),
		Executors:   merged(a.executors(ctx), a.shareExecutors(boot), a.mpsExecutors()),
		Quarantined: a.reporter.Quarantined,
		Waiting:     func() { a.reconciler.Hint() },
		// The engine takes 0 for its default.
		HolderWait: max(c.HolderWait, time.Nanosecond),
	}, a.metrics))
	if err != nil {
		return err
	}
	a.reconciler = a.newReconciler(tree)
	return nil
}

// derive binds the pure function that makes devices and slices to this node's settings, and to
// its conditions, which are asked for anew each time.
func derive(settings offer.Settings, conditions func(inventory.Snapshot) offer.Conditions) catalog.Derive {
	return func(s inventory.Snapshot, a topology.Assignment) catalog.Derived {
		return catalog.Derived(settings.Make(s, a, conditions(s)))
	}
}

// closeLibrary gives the driver's device nodes back.
func (a *Agent) closeLibrary(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if err := a.library.Close(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The GPU driver's library was not closed")
	}
}
