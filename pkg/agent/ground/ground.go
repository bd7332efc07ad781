// Package ground is what the parts of the node plugin stand on: what they get from outside, the ways
// to the hardware, the records, and the one view of the node. It is for package node and the rooms
// beside it. It decides nothing and runs nothing.
package ground

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/apiserver"
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
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/report"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

// APILimit bounds what is asked of the API server on the way to the registration, which must come
// about without one.
const APILimit = 2 * time.Second

// lockWait bounds every wait for a lock, under the kubelet's 45 s.
const lockWait = 40 * time.Second

// Names below the plugin's data directory.
const (
	ClaimsDir = "claims"
	LocksDir  = "locks"
)

// Deps are what the parts get from outside.
type Deps struct {
	Config *config.Config
	// Client and Lookups, which is for questions that can wait, are nil where all is done offline.
	Client, Lookups kubernetes.Interface
	Gate            *apiserver.Gate
	Metrics         *metrics.Metrics
	Reporter        *report.Reporter
	// NodeRead tells that the API server let this process read its Node.
	NodeRead bool
	// Publish hands the node's pool to who publishes it, and Again has that written anew.
	Publish func(resourceslice.DriverResources)
	Again   func()
	// Fatal ends the process.
	Fatal func(error)
}

// Ground is what all parts share. Open makes all of it but Catalog and Engine, which node sets.
type Ground struct {
	Deps

	Boot    string
	Tree    *sysfs.Tree
	Library *nvml.Library
	Ledger  *ledger.Ledger
	Locks   *lock.Locker
	Journal *journal.Store
	Catalog *catalog.Catalog
	Engine  *prepare.Engine
}

// Open makes what the parts need before they are made themselves: all but catalog and engine.
func (g *Ground) Open(ctx context.Context) (err error) {
	c := g.Config
	g.Library = nvml.New(nvml.Options{
		Root: c.DriverRoot.Container, Partitions: g.Partitions(), Selection: c.Selection(),
		Calls: append(vitals.Calls(), memlimits.Calls()...),
	})
	g.Tree = sysfs.New(c.SysRoot, c.ProcRoot)
	if g.Boot, err = sysfs.BootID(c.ProcRoot); err != nil {
		return err
	}
	g.Ledger = ledger.New(g.StateDir(ledger.DirName), g.Boot)
	if err := g.Ledger.Sweep(); err != nil {
		klog.FromContext(ctx).Error(err, "Notes of an earlier boot are left behind")
	}
	if g.Locks, err = lock.Open(g.StateDir(LocksDir), lock.Options{MaxWait: lockWait}); err != nil {
		return fmt.Errorf("directory of locks: %w", err)
	}
	if g.Journal, err = journal.Open(g.StateDir(ClaimsDir)); err != nil {
		return fmt.Errorf("directory of claim records: %w", err)
	}
	return nil
}

// StateDir is a directory of the driver's state, below its data directory.
func (g *Ground) StateDir(name string) string { return filepath.Join(g.Config.DataDir(), name) }

// Leavings is where other instances of this driver leave things on the node.
func (g *Ground) Leavings() leavings.Dirs {
	return leavings.Dirs{Driver: g.Config.DriverName, Data: g.Config.DataDir(), Registry: g.Config.KubeletRegistryDir}
}

// Partitions tells whether this node offers partitions.
func (g *Ground) Partitions() bool { return g.Config.MIGDevices != config.MIGNone }

// Declares tells whether this node has declared layouts. Without them the keeper still removes
// what is left of earlier ones.
func (g *Ground) Declares() bool { return g.Config.MIGLayoutFile != "" }

// Sharing are the ways of sharing that this node has.
func (g *Ground) Sharing() claims.Sharing {
	return claims.Sharing{TimeSlicing: true, MPS: g.Config.MPS}
}

// Shares are the devices that this node declares as shared. The configuration was validated.
func (g *Ground) Shares() []shares.Declaration {
	declared, _ := g.Config.Shares()
	return declared
}

// Offers is what the admin decided about what this node offers.
func (g *Ground) Offers() offer.Settings {
	return offer.Settings{
		Pool: g.Config.NodeName, Vocabulary: device.Vocabulary(g.Config.SliceVocabulary),
		Lists: g.Config.ListAttributes, Partitions: g.Partitions(), Shares: g.Shares(),
		NotOnDemand: g.Config.MIGDevices == config.MIGStatic, HideForeign: !g.Config.MIGForeign,
	}
}

// HasRecord tells whether a claim has a record. One that cannot be read is one.
func (g *Ground) HasRecord(claim types.UID) bool {
	_, err := g.Journal.Load(claim)
	return !errors.Is(err, journal.ErrNotFound)
}

// Scanner looks at the hardware and, where that matters, knows which partitions are ours.
func (g *Ground) Scanner() catalog.Scanner {
	plain := inventory.NewScanner(g.Library, g.Tree).Serving(g.Config.Selection())
	if !g.Partitions() {
		return plain
	}
	return ledger.Marker{Scanner: plain, Ledger: g.Ledger}
}
