package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/care"
	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/cdi/hook"
	"github.com/gpu-dra/driver/pkg/cdi/nvidia"
	"github.com/gpu-dra/driver/pkg/cdi/nvidia/lent"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/metered"
	"github.com/gpu-dra/driver/pkg/topology"
)

const (
	// closeLimit bounds the end of the NVML session when the process ends.
	closeLimit = 5 * time.Second
)

// New makes every part from the configuration. Directories and the CDI hook are made; no hardware
// is looked at and nothing runs yet.
func New(ctx context.Context, d Deps) (*Node, error) {
	n := parts(d)
	n.nodeReadable.Store(d.NodeRead)
	if err := n.build(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

// parts are the parts as they are before they are built.
func parts(d Deps) *Node {
	g := &ground.Ground{Deps: d}
	n := &Node{Ground: g, release: &release{Ground: g}, layouts: &layouts{Ground: g}, works: &works{Ground: g}, care: care.New(g)}
	n.neighbours = &neighbours{Ground: g, readable: &n.nodeReadable}
	return n
}

func (n *Node) build(ctx context.Context) error {
	c := n.Config
	hookPath, err := hook.Install(c.CDIHook, c.DataDir())
	if err != nil {
		return fmt.Errorf("--cdi-hook: %w", err)
	}
	if err := n.Open(ctx); err != nil {
		return err
	}
	if err := n.works.build(); err != nil {
		return err
	}
	if err := n.care.Build(); err != nil {
		return err
	}
	n.Catalog = catalog.New(catalog.Config{
		DriverName: c.DriverName,
		Pool:       c.NodeName,
		Scanner:    n.care.Watching(n.works.limits.Watch(n.Scanner())),
		Memory:     topology.Store{Path: n.StateDir(nvlinkFile)},
		Derive:     n.care.WithSick(derive(n.Offers(), n.conditions)),
		Reporter:   n.Reporter,
		Meter:      n.Metrics,
		Sharing:    n.Sharing(),
		Changed:    n.changed,
	})
	if err := n.buildEngine(ctx, hookPath); err != nil {
		return err
	}
	n.reconciler = n.newReconciler(ctx)
	n.layouts.build(ctx)
	if n.Client != nil {
		n.neighbours.build(n.Declares())
	}
	return nil
}

// buildEngine makes what prepares claims.
func (n *Node) buildEngine(ctx context.Context, hookPath string) error {
	c := n.Config
	host := &cdi.Host{
		Dev:    cdi.Root{Host: c.DevRoot.Host, Container: c.DevRoot.Container},
		Majors: n.Tree,
		Stat:   cdi.Lstat,
	}
	dir, err := cdi.Open(c.CDIDir, c.DriverName, host)
	if err != nil {
		return fmt.Errorf("--cdi-dir: %w", err)
	}
	n.specs = dir
	n.Metrics.CountClaims(n.Journal.Count)
	n.base = cdi.NewBase(dir, &lent.Source{Library: n.Library.Library, Config: nvidia.Config{
		DriverRoot:    cdi.Root{Host: c.DriverRoot.Host, Container: c.DriverRoot.Container},
		HookPath:      hookPath,
		DriverVersion: func() string { return n.Catalog.View().Snapshot.Driver.Version },
		Logger:        klog.FromContext(ctx),
	}})
	n.Engine, err = prepare.New(metered.Config(prepare.Config{
		Journal:     n.Journal,
		Locks:       n.Locks,
		Specs:       dir,
		Base:        n.base,
		HoldersDir:  n.StateDir(holdersDir),
		BootID:      n.Boot,
		Handlers:    n.works.handlers(),
		Executors:   n.works.executors(ctx),
		Quarantined: n.Reporter.Quarantined,
		Waiting:     func() { n.reconciler.Hint() },
		// The engine takes 0 for its default.
		HolderWait: max(c.HolderWait, time.Nanosecond),
	}, n.Metrics))
	return err
}

// conditions are what changes without the hardware looking different. Who changes them has the
// catalog derive again.
func (n *Node) conditions(s inventory.Snapshot) offer.Conditions {
	out := offer.Conditions{Layout: n.release.layout(), WithheldShares: n.release.withheldShares(), NoLimits: n.works.limits.NoLimits}
	out.Taints = slices.Concat(n.neighbours.taints(), n.works.taints(), n.care.Taints())
	n.layouts.conditions(s, &out)
	return out
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
	if err := n.Library.Close(ctx); err != nil {
		klog.FromContext(ctx).Info("The GPU driver's library stays open until this process has ended", "reason", err)
	}
}
