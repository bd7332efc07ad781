// Package agent wires the node plugin together and owns its life: what is started in which
// order, and what is let go when it ends. It is for cmd/gpu-kubelet-plugin and for tests that
// run the plugin in process. It decides nothing about devices or claims.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/apiserver"
	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/cluster"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/conflict/guard"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health/claimstatus"
	"github.com/gpu-dra/driver/pkg/health/kernellog"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
	"github.com/gpu-dra/driver/pkg/kubeletplugin/metadata"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/metrics/hardware"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/metered"
	"github.com/gpu-dra/driver/pkg/probes"
	"github.com/gpu-dra/driver/pkg/reconcile"
	"github.com/gpu-dra/driver/pkg/report"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
	"github.com/gpu-dra/driver/pkg/sharing/timeslicing"
	"github.com/gpu-dra/driver/pkg/takeover"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

const (
	// firstScanLimit is how long the registration waits for the first look at the hardware: a
	// GPU that hangs must not keep the kubelet from unpreparing.
	firstScanLimit = 5 * time.Second
	// apiLimit bounds what is asked of the API server on the way to the registration, which
	// must come about without one.
	apiLimit = 2 * time.Second
	// publisherLease names the lock of the instance that publishes.
	publisherLease = "publisher"
)

// Agent is the node plugin.
type Agent struct {
	config  *config.Config
	version string
	client  kubernetes.Interface
	gate    *apiserver.Gate
	metrics *metrics.Metrics
	// lookups is the client of the reconciler.
	lookups kubernetes.Interface

	reporter  *report.Reporter
	library   *nvml.Library
	migLedger *ledger.Ledger
	release   cluster.Watch
	locks     *lock.Locker
	catalog   *catalog.Catalog
	health    *monitor.Monitor
	// kernelLog has errors that NVML does not tell; nil where it is not read.
	kernelLog *kernellog.Log
	// claimStatus tells claims of the health of their devices; nil where that is off.
	claimStatus *claimstatus.Writer
	// offered are all published devices, also those that nobody can get.
	offered    atomic.Pointer[[]device.Device]
	journal    *journal.Store
	specs      *cdi.Dir
	base       *cdi.Base
	engine     *prepare.Engine
	timeSlices timeslicing.Executor
	limits     *memlimit.Sharing
	reconciler *reconcile.Reconciler
	tenants    *tenancy.Register
	hardware   *hardware.Collector
	layouts    layouts
	conflicts  *guard.Watch
	calls      *kubeletplugin.Calls
	publisher  atomic.Pointer[kubeletplugin.Publisher]
	serving    atomic.Bool
	// nodeReadable tells that the API server let this process read its Node.
	nodeReadable atomic.Bool
	registered   atomic.Bool
	endServing   context.CancelCauseFunc
	// seen is the view that was last told of.
	seen atomic.Pointer[catalog.View]
	// taken are the devices of claims of a former driver.
	taken atomic.Pointer[takeover.Taken]
}

// Run serves until the context ends, then drains the calls in flight and returns. An error
// means that the plugin could not start or can no longer serve.
func Run(ctx context.Context, c *config.Config, version string) error {
	if err := c.Validate(); err != nil {
		return err
	}
	gate := &apiserver.Gate{}
	client, err := apiserver.NewClient(c, version, gate)
	if err != nil {
		return err
	}
	lookups, err := lookupClient(c, version, gate)
	if err != nil {
		return err
	}
	a := &Agent{config: c, version: version, client: client, lookups: lookups, gate: gate, metrics: metrics.New(version)}
	a.calls = &kubeletplugin.Calls{
		Registered: a.onRegistered, Failed: a.callFailed,
		// Calls come only when the engine is there.
		Unpreparing: func(claim types.UID) { a.engine.Supersede(claim) },
	}
	web, health, err := a.listen(ctx)
	if err != nil {
		return err
	}
	// What serves outlives the signal: calls in flight are drained first.
	serving, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	a.endServing = end
	stopEvents := a.startEvents(serving)
	defer stopEvents()
	presence, err := a.join(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = presence.Leave() }()
	if err := a.build(serving); err != nil {
		return err
	}
	defer a.closeLibrary(serving)
	a.buildConflicts()
	checks := a.checks()
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error { return probes.ServeHTTP(serving, web, a.web(checks)) })
	group.Go(func() error { return probes.ServeGRPC(serving, health, probes.NewHealth(checks)) })
	group.Go(func() error { return a.serve(ctx, serving) })
	err = group.Wait()
	if err == nil {
		a.tidy(context.WithoutCancel(ctx), presence)
	}
	if cause := context.Cause(serving); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// join makes the data directory and this process one of those that use it.
func (a *Agent) join(ctx context.Context) (*lock.Presence, error) {
	if err := os.MkdirAll(a.config.DataDir(), 0o750); err != nil {
		return nil, fmt.Errorf("--kubelet-plugins-dir: %w", err)
	}
	presence, err := lock.Join(ctx, a.stateDir(presenceFile))
	if err != nil {
		return nil, fmt.Errorf("--kubelet-plugins-dir: %w", err)
	}
	return presence, nil
}

// listen opens the probes' ports first, so that a taken port is an error at once.
func (a *Agent) listen(ctx context.Context) (web, health net.Listener, err error) {
	open := func(address string) (net.Listener, error) {
		if address == "" {
			return nil, nil
		}
		return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	}
	if web, err = open(a.config.HTTPAddress); err != nil {
		return nil, nil, fmt.Errorf("--http-address: %w", err)
	}
	if health, err = open(a.config.HealthAddress); err != nil {
		return nil, nil, fmt.Errorf("--grpc-health-address: %w", err)
	}
	return web, health, nil
}

// serve is the plugin's life: recover, look at the hardware, register, publish; at the signal
// hand over, drain, stop.
func (a *Agent) serve(signal, serving context.Context) error {
	defer a.endServing(nil)
	if err := a.recover(signal); err != nil {
		return unlessEnded(signal, err)
	}
	a.leavings().RemoveStaleSockets(serving)
	a.leavings().RemoveTemps(serving, filepath.Base(a.config.CDIHook), filepath.Base(a.config.LimitHook), nvlinkFile, healthFile)
	a.learnRelease(signal)
	a.firstScan(signal, serving)
	a.conflicts.Look(serving)
	a.takeOver(serving, a.catalog.View())
	a.enterLost(serving)
	if err := a.taintTaken(serving); err != nil {
		return err
	}
	if signal.Err() != nil {
		return nil
	}

	helper, err := a.register(serving)
	if err != nil {
		return err
	}
	defer helper.Stop()
	a.serving.Store(true)
	defer a.serving.Store(false)

	work, endWork := context.WithCancel(serving)
	defer endWork()
	var group errgroup.Group
	group.Go(func() error { a.catalog.Run(work, a.config.RescanInterval); return nil })
	group.Go(func() error { a.followRelease(work); return nil })
	group.Go(func() error { return a.publish(work) })
	group.Go(func() error { a.watchMPS(work); return nil })
	group.Go(func() error { a.limits.Run(work); return nil })
	group.Go(func() error { a.watchLayouts(work); return nil })
	group.Go(func() error { a.conflicts.Run(work); return nil })

	select {
	case <-signal.Done():
		klog.FromContext(serving).Info("Stopping: handing over and draining calls")
	case <-serving.Done():
	}
	endWork()
	err = group.Wait()
	drain, cancel := context.WithTimeout(serving, a.config.ShutdownDeadline)
	defer cancel()
	if drainErr := a.calls.Drain(drain); drainErr != nil && serving.Err() == nil {
		klog.FromContext(serving).Error(drainErr, "Calls were still in flight at --shutdown-deadline; the kubelet will repeat them")
	}
	return err
}

// startEvents makes what turns happenings into Events; the returned function ends it.
func (a *Agent) startEvents(ctx context.Context) func() {
	lookup, cancel := context.WithTimeout(ctx, apiLimit)
	defer cancel()
	uid := apiserver.NodeUID(lookup, a.client, a.config.NodeName)
	a.nodeReadable.Store(uid != "")
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: a.client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Events are not recorded")
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, a.config.DriverName)
	a.reporter = report.New(recorder, a.metrics, a.config.NodeName, uid)
	return broadcaster.Shutdown
}

// unlessEnded drops an error that comes from the signal to end.
func unlessEnded(signal context.Context, err error) error {
	if ended := signal.Err(); ended == nil || !errors.Is(err, ended) {
		return err
	}
	return nil
}

// recover brings records and node together after a crash or a restart.
func (a *Agent) recover(ctx context.Context) error {
	found, err := a.engine.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recover the claims of an earlier run: %w", err)
	}
	for _, bad := range slices.Concat(found.Quarantined, found.Unreadable) {
		a.reporter.Quarantined(ctx, bad.Path, bad.Err)
	}
	for _, claim := range found.Rebuilt {
		a.reporter.Rebuilt(ctx, claim, "the index of holders")
	}
	klog.FromContext(ctx).Info("Recovered", "claims", found.Records)
	return nil
}

// firstScan looks at the hardware, for a bounded time: the look goes on in the background.
func (a *Agent) firstScan(signal, serving context.Context) {
	done := make(chan error, 1)
	go func() { done <- a.catalog.Refresh(serving) }()
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

// register starts the library's servers and waits for nothing: the kubelet comes by itself.
func (a *Agent) register(ctx context.Context) (*draplugin.Helper, error) {
	if err := os.MkdirAll(a.config.KubeletRegistryDir, 0o750); err != nil {
		return nil, fmt.Errorf("--kubelet-registry-dir: %w", err)
	}
	plugin := &kubeletplugin.Plugin{
		Planner:  a.planner(),
		Preparer: metered.ByKind(hinting(a.claimStatus, a.engine), a.metrics),
		Reporter: a.reporter,
		Meter:    a.metrics,
		Health:   a,
		Refused: func(ctx context.Context, err error) {
			if p := a.publisher.Load(); p != nil {
				go p.Refused(ctx, err)
			}
		},
		Fatal: func(err error) { a.endServing(err) },
	}
	options := []draplugin.Option{
		draplugin.DriverName(a.config.DriverName),
		draplugin.NodeName(a.config.NodeName),
		draplugin.KubeClient(a.client),
		draplugin.PluginDataDirectoryPath(a.config.DataDir()),
		draplugin.RegistrarDirectoryPath(a.config.KubeletRegistryDir),
		draplugin.CDIDirectory(a.config.CDIDir),
		draplugin.Serialize(false),
		draplugin.GRPCInterceptor(a.calls.Intercept),
	}
	if a.config.PodUID != "" {
		options = append(options, draplugin.RollingUpdate(types.UID(a.config.PodUID)))
	}
	if a.config.DeviceMetadata {
		plugin.Metadata = metadata.Of(func(name string) (device.Device, bool) {
			d, ok := a.catalog.View().Devices[name]
			return d, ok
		})
		options = append(options, metadata.Options(a.config.DriverName)...)
	}
	helper, err := draplugin.Start(ctx, plugin, options...)
	if err != nil {
		return nil, fmt.Errorf("start the plugin's sockets in %s and %s: %w", a.config.DataDir(), a.config.KubeletRegistryDir, err)
	}
	api := apiserver.NewSlices(a.client, helper, a.config.DriverName, a.config.NodeName, func() {
		if p := a.publisher.Load(); p != nil {
			p.Again()
		}
	})
	publisher := kubeletplugin.NewPublisher(api, a.reporter, a.metrics)
	a.publisher.Store(publisher)
	a.changed(a.catalog.View())
	return helper, nil
}

// onRegistered notes whether the kubelet took the plugin. If it did, it may just have started
// and wiped the node's slices, so they are published again.
func (a *Agent) onRegistered(taken bool) {
	a.registered.Store(taken)
	a.metrics.Registered(taken)
	if p := a.publisher.Load(); p != nil && taken {
		p.Again()
	}
}

// callFailed counts and tells what the plugin itself never heard of.
func (a *Agent) callFailed(ctx context.Context, f kubeletplugin.CallFailure) {
	a.metrics.CallFailed(f.Operation, f.Took, f.Reason)
	a.reporter.ClaimFailed(ctx, f.Operation, f.Claim, f.Err)
}

// errNotLooked is why nothing is published: what an earlier process published stays.
var errNotLooked = errors.New("the hardware was not looked at yet")

// ErrRestart tells that the GPU driver's library was replaced by another file. The dynamic
// linker has bound this process to the old one for good, so the process must start anew: main
// executes itself.
var ErrRestart = errors.New("the GPU driver's library was replaced: this process has to start anew")

// changed hands a new view's slices to the publisher.
func (a *Agent) changed(view *catalog.View) {
	if errors.Is(view.Snapshot.Driver.Err, inventory.ErrRestart) {
		a.endServing(ErrRestart)
		return
	}
	if before := a.seen.Swap(view); before != nil && renumbered(before.Snapshot, view.Snapshot) {
		a.reconciler.Hint()
	}
	// What was published before stays until this process knows better.
	if p := a.publisher.Load(); p != nil && view.Looked && a.layouts.known() {
		p.Set(view.Resources)
		a.layouts.wake()
	}
}

// publish waits until no other instance publishes, then does.
func (a *Agent) publish(ctx context.Context) error {
	lease, _, err := a.locks.TryLease(publisherLease)
	if err == nil && lease == nil {
		a.publisher.Load().Follow()
		lease, err = a.locks.WaitLease(ctx, publisherLease)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("lease of the publishing instance: %w", err)
	}
	defer func() {
		// Before the other instance may write.
		a.gate.Close()
		lease.Release()
	}()
	klog.FromContext(ctx).Info("This instance publishes the node's slices")
	a.health.Lead(ctx)
	a.catalog.Rederive(ctx)
	var group errgroup.Group
	group.Go(func() error { a.reconciler.Run(ctx); return nil })
	group.Go(func() error { a.health.Run(ctx); return nil })
	group.Go(func() error { a.claimStatus.Run(ctx); return nil })
	group.Go(func() error { a.readKernelLog(ctx); return nil })
	group.Go(func() error { a.newRemedy().Run(ctx); return nil })
	group.Go(func() error { a.serveTenants(ctx); return nil })
	group.Go(func() error { a.keepLayouts(ctx); return nil })
	a.publisher.Load().Run(ctx)
	return group.Wait()
}

// checks are the questions of the probes.
func (a *Agent) checks() probes.Checks {
	return probes.Checks{
		Live: []probes.Check{{Name: "sockets", Ask: a.callOwnSocket}},
		Ready: []probes.Check{
			{Name: "kubelet registration", Ask: a.registration},
			{Name: "ResourceSlices", Ask: func(ctx context.Context) error {
				if !a.catalog.View().Looked {
					return errors.Join(errNotLooked, a.catalog.Trouble())
				}
				if p := a.publisher.Load(); p != nil {
					return p.Ready(ctx)
				}
				return kubeletplugin.ErrNotYet
			}},
			{Name: "sole owner of the GPUs", Ask: a.conflicts.Refusal},
		},
		Notes: []probes.Check{{Name: "GPU driver", Ask: a.driverNote}, {Name: "sole owner of the GPUs", Ask: a.conflicts.Warning}},
	}
}

// registration says why the kubelet does not call this plugin.
func (a *Agent) registration(context.Context) error {
	if refusal := a.calls.Refusal(); refusal != "" {
		return fmt.Errorf("the kubelet refused this plugin: %s", refusal)
	}
	if !a.registered.Load() {
		return fmt.Errorf("the kubelet has not registered this plugin yet: see that it watches %s", a.config.KubeletRegistryDir)
	}
	return nil
}

// driverNote says what is missing of the GPU driver.
func (a *Agent) driverNote(context.Context) error {
	if err := a.catalog.Trouble(); err != nil {
		return err
	}
	snapshot := a.catalog.View().Snapshot
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

// stateDir is a directory of the driver's state, below its data directory.
func (a *Agent) stateDir(name string) string { return filepath.Join(a.config.DataDir(), name) }
