// Package node holds the parts of the node plugin: it makes them from the configuration, has each
// know the others, and runs what is theirs. It is for package agent, which owns the plugin's life:
// when each of the functions here is called, and the sockets on which the kubelet calls. It decides
// nothing about devices or claims.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/care"
	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/prepare/metered"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

const (
	// firstScanLimit is how long the registration waits for the first look at the hardware: a
	// GPU that hangs must not keep the kubelet from unpreparing.
	firstScanLimit = 5 * time.Second
)

// ErrRestart tells that the GPU driver's library was replaced by another file. The dynamic
// linker has bound this process to the old one for good, so the process must start anew: main
// executes itself.
var ErrRestart = errors.New("the GPU driver's library was replaced: this process has to start anew")

// errNotLooked is why nothing is published: what an earlier process published stays.
var errNotLooked = errors.New("the hardware was not looked at yet")

// Deps are what the parts get from outside.
type Deps = ground.Deps

// Node is the parts of the plugin of one node.
type Node struct {
	*ground.Ground
	release    *release
	care       *care.Care
	works      *works
	neighbours *neighbours
	layouts    *layouts
	specs      *cdi.Dir
	base       *cdi.Base
	reconciler *reconcile.Reconciler
	// nodeReadable tells that the API server let this process read its Node.
	nodeReadable atomic.Bool
	// seen is the view that was last told of.
	seen atomic.Pointer[catalog.View]
}

// Join makes the data directory and this process one of those that use it.
func Join(ctx context.Context, c *config.Config) (*lock.Presence, error) {
	if err := os.MkdirAll(c.DataDir(), 0o750); err != nil {
		return nil, fmt.Errorf("--kubelet-plugins-dir: %w", err)
	}
	presence, err := lock.Join(ctx, filepath.Join(c.DataDir(), presenceFile))
	if err != nil {
		return nil, fmt.Errorf("--kubelet-plugins-dir: %w", err)
	}
	return presence, nil
}

// Start learns what there is: claims of earlier runs, the hardware, and who else is here. It ends
// early, without an error, at the signal. Nothing is published and nobody is served before.
func (n *Node) Start(signal, serving context.Context) error {
	if err := n.recover(signal); err != nil {
		return unlessEnded(signal, err)
	}
	n.Leavings().RemoveStaleSockets(serving)
	n.Leavings().RemoveTemps(serving, filepath.Base(n.Config.CDIHook), filepath.Base(n.Config.LimitHook), nvlinkFile, care.HealthFile)
	n.release.learn(signal)
	n.firstScan(signal, serving)
	n.neighbours.guard.Look(serving)
	n.neighbours.takeOver(serving, n.Catalog.View())
	n.enterLost(serving)
	return n.neighbours.taintTaken(serving)
}

// Serve does, until the context ends, what each instance of the plugin does.
func (n *Node) Serve(ctx context.Context) {
	var group errgroup.Group
	for _, run := range []func(context.Context){
		func(ctx context.Context) { n.Catalog.Run(ctx, n.Config.RescanInterval) },
		n.release.follow, n.works.watchMPS, n.works.limits.Run, n.layouts.watch, n.neighbours.guard.Run,
	} {
		group.Go(func() error { run(ctx); return nil })
	}
	_ = group.Wait()
}

// publisherLease names the lock of the instance that publishes.
const publisherLease = "publisher"

// Lease waits until no other instance publishes; follow is called first if one does.
func (n *Node) Lease(ctx context.Context, follow func()) (*lock.Lease, error) {
	lease, _, err := n.Locks.TryLease(publisherLease)
	if err == nil && lease == nil {
		follow()
		lease, err = n.Locks.WaitLease(ctx, publisherLease)
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("lease of the publishing instance: %w", err)
	}
	return lease, err
}

// Lead does, until the context ends, what the one instance does that publishes; publish is its
// publishing, which begins when what earlier runs knew was taken in.
func (n *Node) Lead(ctx context.Context, publish func(context.Context)) {
	n.care.Lead(ctx)
	n.Catalog.Rederive(ctx)
	var group errgroup.Group
	for _, run := range []func(context.Context){
		n.reconciler.Run, n.care.Run, n.layouts.keep, publish,
	} {
		group.Go(func() error { run(ctx); return nil })
	}
	_ = group.Wait()
}

// Preparer is what prepares claims.
func (n *Node) Preparer() kubeletplugin.Preparer {
	return metered.ByKind(n.care.Hinting(n.Engine), n.Metrics)
}

// Unpreparing is told of each call to unprepare a claim when it comes in.
func (n *Node) Unpreparing(claim types.UID) { n.Engine.Supersede(claim) }

// Device is an offered device.
func (n *Node) Device(name string) (device.Device, bool) {
	d, ok := n.Catalog.View().Devices[name]
	return d, ok
}

// Looked says why it is not known what there is on the node; nil if it is.
func (n *Node) Looked() error {
	if n.Catalog.View().Looked {
		return nil
	}
	return errors.Join(errNotLooked, n.Catalog.Trouble())
}

// SoleOwner says who else hands out the node's GPUs where that keeps the plugin from it; Beside
// says so where it does not.
func (n *Node) SoleOwner(ctx context.Context) error { return n.neighbours.guard.Refusal(ctx) }

// Beside is the note to SoleOwner.
func (n *Node) Beside(ctx context.Context) error { return n.neighbours.guard.Warning(ctx) }

// recover brings records and node together after a crash or a restart.
func (n *Node) recover(ctx context.Context) error {
	found, err := n.Engine.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recover the claims of an earlier run: %w", err)
	}
	for _, bad := range slices.Concat(found.Quarantined, found.Unreadable) {
		n.Reporter.Quarantined(ctx, bad.Path, bad.Err)
	}
	for _, claim := range found.Rebuilt {
		n.Reporter.Rebuilt(ctx, claim, "the index of holders")
	}
	klog.FromContext(ctx).Info("Recovered", "claims", found.Records)
	return nil
}

// unlessEnded drops an error that comes from the signal to end.
func unlessEnded(signal context.Context, err error) error {
	if ended := signal.Err(); ended == nil || !errors.Is(err, ended) {
		return err
	}
	return nil
}

// firstScan looks at the hardware, for a bounded time: the look goes on in the background.
func (n *Node) firstScan(signal, serving context.Context) {
	done := make(chan error, 1)
	go func() { done <- n.Catalog.Refresh(serving) }()
	timer := time.NewTimer(firstScanLimit)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			klog.FromContext(serving).Error(err, "The first look at the hardware failed; it is repeated")
		}
	case <-timer.C:
		klog.FromContext(serving).Info("The hardware takes long to answer; registering without it")
	case <-signal.Done():
	}
}

// Republish hands out the pool as it is known now.
func (n *Node) Republish() { n.changed(n.Catalog.View()) }

// changed hands a new view's slices to the publisher.
func (n *Node) changed(view *catalog.View) {
	if errors.Is(view.Snapshot.Driver.Err, inventory.ErrRestart) {
		n.Fatal(ErrRestart)
		return
	}
	if before := n.seen.Swap(view); before != nil && renumbered(before.Snapshot, view.Snapshot) {
		n.reconciler.Hint()
	}
	// What was published before stays until this process knows better.
	if view.Looked && n.layouts.known() {
		n.Publish(view.Resources)
		n.layouts.wake()
	}
}

// DriverNote says what is missing of the GPU driver.
func (n *Node) DriverNote(context.Context) error {
	if err := n.Catalog.Trouble(); err != nil {
		return err
	}
	snapshot := n.Catalog.View().Snapshot
	if !snapshot.Driver.Present {
		return errors.New(snapshot.Driver.Missing)
	}
	var sick []string
	for _, u := range snapshot.Unusable {
		sick = append(sick, fmt.Sprintf("GPU %s: %s", u.PCI, u.Reason))
	}
	if len(sick) > 0 {
		return errors.New(strings.Join(sick, "; "))
	}
	return nil
}
