package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/leavings"
	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/device"
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
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

// ground is what all parts stand on: the ways to the hardware, the records and the one view of the
// node.
type ground struct {
	Deps

	boot      string
	tree      *sysfs.Tree
	library   *nvml.Library
	migLedger *ledger.Ledger
	locks     *lock.Locker
	journal   *journal.Store
	catalog   *catalog.Catalog
	engine    *prepare.Engine
}

// open makes what the parts need before they are made themselves: all but catalog and engine.
func (g *ground) open(ctx context.Context) (err error) {
	c := g.Config
	g.library = nvml.New(nvml.Options{
		Root: c.DriverRoot.Container, Partitions: g.partitions(), Selection: c.Selection(),
		Calls: append(vitals.Calls(), memlimits.Calls()...),
	})
	g.tree = sysfs.New(c.SysRoot, c.ProcRoot)
	if g.boot, err = sysfs.BootID(c.ProcRoot); err != nil {
		return err
	}
	g.migLedger = ledger.New(g.stateDir(ledger.DirName), g.boot)
	if err := g.migLedger.Sweep(); err != nil {
		klog.FromContext(ctx).Error(err, "Notes of an earlier boot are left behind")
	}
	if g.locks, err = lock.Open(g.stateDir(locksDir), lock.Options{MaxWait: lockWait}); err != nil {
		return fmt.Errorf("directory of locks: %w", err)
	}
	if g.journal, err = journal.Open(g.stateDir(claimsDir)); err != nil {
		return fmt.Errorf("directory of claim records: %w", err)
	}
	return nil
}

// stateDir is a directory of the driver's state, below its data directory.
func (g *ground) stateDir(name string) string { return filepath.Join(g.Config.DataDir(), name) }

// leavings is where other instances of this driver leave things on the node.
func (g *ground) leavings() leavings.Dirs {
	return leavings.Dirs{Driver: g.Config.DriverName, Data: g.Config.DataDir(), Registry: g.Config.KubeletRegistryDir}
}

// partitions tells whether this node offers partitions.
func (g *ground) partitions() bool { return g.Config.MIGDevices != config.MIGNone }

// declares tells whether this node has declared layouts. Without them the keeper still removes
// what is left of earlier ones.
func (g *ground) declares() bool { return g.Config.MIGLayoutFile != "" }

// sharing are the ways of sharing that this node has.
func (g *ground) sharing() claims.Sharing {
	return claims.Sharing{TimeSlicing: true, MPS: g.Config.MPS}
}

// shares are the devices that this node declares as shared. The configuration was validated.
func (g *ground) shares() []shares.Declaration {
	declared, _ := g.Config.Shares()
	return declared
}

// offers is what the admin decided about what this node offers.
func (g *ground) offers() offer.Settings {
	return offer.Settings{
		Pool: g.Config.NodeName, Vocabulary: device.Vocabulary(g.Config.SliceVocabulary),
		Lists: g.Config.ListAttributes, Partitions: g.partitions(), Shares: g.shares(),
		NotOnDemand: g.Config.MIGDevices == config.MIGStatic, HideForeign: !g.Config.MIGForeign,
	}
}

// hasRecord tells whether a claim has a record. One that cannot be read is one.
func (g *ground) hasRecord(claim types.UID) bool {
	_, err := g.journal.Load(claim)
	return !errors.Is(err, journal.ErrNotFound)
}

// scanner looks at the hardware and, where that matters, knows which partitions are ours.
func (g *ground) scanner() catalog.Scanner {
	plain := inventory.NewScanner(g.library, g.tree).Serving(g.Config.Selection())
	if !g.partitions() {
		return plain
	}
	return ledger.Marker{Scanner: plain, Ledger: g.migLedger}
}
