// Package catalog keeps the one current view of the node: what the last scan found, the NVLink
// domains and devices that follow from it, and the slices to publish. It is for the plugin,
// which looks devices up, and for the publisher, which is told of changes. It must not know how
// hardware is read, how a device is published, or the API server.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/topology"
)

// A driver that fails to answer is given a few looks before its GPUs count as gone, each so
// long after the one before.
const (
	looksToFail = 3
	soon        = time.Second
)

// Scanner looks at the hardware; inventory.Scanner is one.
type Scanner interface {
	Scan(ctx context.Context) (inventory.Snapshot, error)
}

// Memory keeps the NVLink topology at full health; topology.Store is one.
type Memory interface {
	Load() (topology.Memory, error)
	Save(topology.Memory) (changed bool, err error)
}

// Reporter is told what a scan found wrong.
type Reporter interface {
	Hardware(ctx context.Context, snapshot inventory.Snapshot)
	Hung(ctx context.Context, err error)
	Omitted(ctx context.Context, omissions []device.Omission)
	Withheld(ctx context.Context, withheld []device.Withheld)
}

// Meter counts scans and devices.
type Meter interface {
	Scan(took time.Duration, driverUp bool, unusable int)
	Devices(byType map[string]int)
}

// Derive makes devices and slices from a snapshot. It is pure.
type Derive func(inventory.Snapshot, topology.Assignment) Derived

// Derived is what follows from a snapshot.
type Derived struct {
	Devices   []device.Device
	Resources resourceslice.DriverResources
	Omissions []device.Omission
	Withheld  []device.Withheld
}

// View is the node at one moment. It is never changed.
type View struct {
	// Looked is false until the hardware was looked at once: such a view says nothing about it.
	Looked     bool
	Snapshot   inventory.Snapshot
	Assignment topology.Assignment
	// Devices by name.
	Devices   map[string]device.Device
	Resources resourceslice.DriverResources
}

// Config is what a Catalog works with.
type Config struct {
	DriverName string
	// Pool is the name of the node's pool.
	Pool     string
	Scanner  Scanner
	Memory   Memory
	Derive   Derive
	Reporter Reporter
	Meter    Meter
	// Sharing are the ways of sharing that the node has.
	Sharing claims.Sharing
	// Changed is called after each scan with its view. It must not block.
	Changed func(*View)
}

// Catalog is safe for concurrent use.
type Catalog struct {
	Config
	view    atomic.Pointer[View]
	trouble atomic.Pointer[error]
	// deriving is held from before Derive until its outcome is told, so that what was derived
	// last is what is told last.
	deriving sync.Mutex

	// turn is taken by whoever scans; what is below belongs to its holder.
	turn  chan struct{}
	began time.Time
	err   error
	// memory is what the last look remembered, memoryTrouble why the file could not be read then.
	memory        topology.Memory
	memoryTrouble error
	// failures is how many looks in a row, lastFailure when the last of them began, the driver
	// failed to answer. Looks that follow each other closer than soon are one.
	failures    int
	lastFailure time.Time
	// again tells Run that such a look is to be repeated soon.
	again chan struct{}
}

// New makes a catalog that has not looked yet: its view is a node without a driver.
func New(config Config) *Catalog {
	c := &Catalog{Config: config, turn: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	c.view.Store(&View{Snapshot: inventory.Snapshot{Driver: inventory.Driver{Missing: "the hardware was not looked at yet"}}})
	return c
}

// View is the node as it was last seen.
func (c *Catalog) View() *View { return c.view.Load() }

// Plan makes a claim's plan with the devices of the current view.
func (c *Catalog) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	plan, err := claims.Build(claim, c.DriverName, c.Pool, c.View().Devices)
	if err != nil {
		return claims.Plan{}, err
	}
	return plan, c.Sharing.Check(plan)
}

// Refresh looks at the hardware and returns when a look that began after the call has ended.
// Callers that come while one is under way share the next.
func (c *Catalog) Refresh(ctx context.Context) error {
	asked := time.Now()
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for a scan of the hardware: %w", ctx.Err())
	}
	defer func() { <-c.turn }()
	if c.began.After(asked) {
		return c.err
	}
	began := time.Now()
	err := c.look(ctx)
	if err != nil && ctx.Err() != nil {
		// Cut short by whoever asked: that is nobody else's answer, and no trouble of the node.
		return err
	}
	c.began, c.err = began, err
	c.trouble.Store(&err)
	return err
}

// Trouble is why the last look did not give a view; nil when it did, or before the first look.
func (c *Catalog) Trouble() error {
	if err := c.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// look scans, derives and tells. A scan that was cut short, or that says nothing about the GPUs,
// leaves the view as it is.
func (c *Catalog) look(ctx context.Context) error {
	begin := time.Now()
	snapshot, err := c.Scanner.Scan(ctx)
	if err != nil {
		return err
	}
	if cause := snapshot.Driver.Err; c.saysNothing(cause, begin) {
		// The pods of its GPUs run on, and a pool that empties and fills with every such look
		// would only add to the trouble.
		c.Meter.Scan(time.Since(begin), false, len(c.View().Snapshot.Unusable))
		if errors.Is(cause, inventory.ErrHung) {
			c.Reporter.Hung(ctx, cause)
		}
		return fmt.Errorf("the view of the hardware stays as it was: %w", cause)
	}
	c.Meter.Scan(time.Since(begin), snapshot.Driver.Present, len(snapshot.Unusable))
	c.Reporter.Hardware(ctx, snapshot)
	logChanges(ctx, c.View(), snapshot)
	assignment := c.resolve(ctx, snapshot)
	c.deriving.Lock()
	defer c.deriving.Unlock()
	if before := c.View(); before.Looked && before.Snapshot.Same(snapshot) && reflect.DeepEqual(before.Assignment, assignment) {
		// The same follows from the same: tens of milliseconds where a node has hundreds of devices.
		view := *before
		view.Snapshot = snapshot
		c.view.Store(&view)
		c.Changed(&view)
		return nil
	}
	c.deriveLocked(ctx, snapshot, assignment)
	return nil
}

// Rederive makes devices and slices of the current view anew, for who knows that Derive would give
// something else now. It waits for no scan, so that hardware that hangs cannot delay it. Before
// the first look it does nothing: that look will derive.
func (c *Catalog) Rederive(ctx context.Context) {
	c.deriving.Lock()
	defer c.deriving.Unlock()
	if v := c.View(); v.Looked {
		c.deriveLocked(ctx, v.Snapshot, v.Assignment)
	}
}

func (c *Catalog) deriveLocked(ctx context.Context, snapshot inventory.Snapshot, assignment topology.Assignment) {
	derived := c.Derive(snapshot, assignment)
	view := &View{
		Looked:     true,
		Snapshot:   snapshot,
		Assignment: assignment,
		Devices:    make(map[string]device.Device, len(derived.Devices)),
		Resources:  derived.Resources,
	}
	count := map[string]int{}
	for _, d := range derived.Devices {
		view.Devices[d.Name()] = d
		count[string(d.Kind())]++
	}
	c.view.Store(view)
	c.Meter.Devices(count)
	c.Reporter.Omitted(ctx, derived.Omissions)
	c.Reporter.Withheld(ctx, derived.Withheld)
	c.Changed(view)
}

// saysNothing tells whether a look that ended with that cause says nothing about the GPUs: the
// driver hangs, or failed to answer and may yet.
func (c *Catalog) saysNothing(cause error, begin time.Time) bool {
	switch {
	case errors.Is(cause, inventory.ErrHung):
		return true
	case !errors.Is(cause, inventory.ErrTransient):
		c.failures, c.lastFailure = 0, time.Time{}
		return false
	case c.failures == 0 || begin.Sub(c.lastFailure) >= soon:
		c.failures++
		c.lastFailure = begin
	}
	if c.failures >= looksToFail {
		return false
	}
	select {
	case c.again <- struct{}{}:
	default:
	}
	return true
}

// logChanges logs what became of the GPUs. At the start that is one line for all that are there.
func logChanges(ctx context.Context, before *View, after inventory.Snapshot) {
	logger := klog.FromContext(ctx)
	all := !before.Looked && len(after.GPUs) > 1
	if all {
		logger.Info(fmt.Sprintf("Hardware found: %d GPUs, driver %s", len(after.GPUs), after.Driver.Version))
	}
	for _, change := range inventory.Diff(before.Snapshot, after) {
		if all && change.Kind == inventory.Appeared {
			continue
		}
		logger.Info("Hardware changed", "change", change)
	}
}

// resolve places the GPUs in NVLink domains and keeps what must be remembered. Without its
// memory a node whose GPUs are all there gets the same domains, so a fault of the file is
// logged and the node served. An absent driver says nothing about the topology.
func (c *Catalog) resolve(ctx context.Context, snapshot inventory.Snapshot) topology.Assignment {
	logger := klog.FromContext(ctx)
	// Read anew each time: two instances of an update share the file and must agree.
	memory, err := c.Memory.Load()
	if err != nil {
		if c.memoryTrouble == nil || c.memoryTrouble.Error() != err.Error() {
			logger.Error(err, "The remembered NVLink topology cannot be used; going on from what this process saw")
		}
		memory = c.memory
	}
	c.memoryTrouble = err
	assignment, next := topology.Resolve(snapshot, memory)
	if !snapshot.Driver.Present {
		return assignment
	}
	if _, err := c.Memory.Save(next); err != nil {
		logger.Error(err, "The NVLink topology cannot be stored; trying again at the next scan")
	}
	c.memory = next
	return assignment
}

// Run looks again at every interval until the context ends, and sooner after a look, whoever
// asked for it, that the driver failed to answer.
func (c *Catalog) Run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.again:
			ticker.Reset(min(soon, interval))
		case <-ticker.C:
			ticker.Reset(interval)
			if err := c.Refresh(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Scan failed")
			}
		}
	}
}
