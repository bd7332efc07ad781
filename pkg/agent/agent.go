// Package agent owns the life of the node plugin: what is started in which
// order, and what is let go when it ends. It is for cmd/gpu-kubelet-plugin and for tests that
// run the plugin in process. It decides nothing about devices or claims.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/apiserver"
	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/agent/node"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
	"github.com/gpu-dra/driver/pkg/kubeletplugin/metadata"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/probes"
	"github.com/gpu-dra/driver/pkg/report"
)

// Agent is the node plugin.
type Agent struct {
	config   *config.Config
	client   kubernetes.Interface
	gate     *apiserver.Gate
	metrics  *metrics.Metrics
	reporter *report.Reporter
	node     *node.Node

	calls      *kubeletplugin.Calls
	publisher  atomic.Pointer[kubeletplugin.Publisher]
	serving    atomic.Bool
	registered atomic.Bool
	endServing context.CancelCauseFunc
}

// ErrRestart tells that the process has to start anew: main executes itself.
var ErrRestart = node.ErrRestart

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
	a := &Agent{config: c, client: client, gate: gate, metrics: metrics.New(version)}
	a.calls = &kubeletplugin.Calls{
		Registered: a.onRegistered, Failed: a.callFailed,
		// Calls come only when the node is there.
		Unpreparing: func(claim types.UID) { a.node.Unpreparing(claim) },
	}
	web, health, err := a.listen(ctx)
	if err != nil {
		return err
	}
	// What serves outlives the signal: calls in flight are drained first.
	serving, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	a.endServing = end
	known, stopEvents := a.startEvents(serving)
	defer stopEvents()
	presence, err := node.Join(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = presence.Leave() }()
	a.node, err = node.New(serving, node.Deps{
		Config: c, Client: client, Lookups: lookups, Gate: gate, Metrics: a.metrics, Reporter: a.reporter, NodeRead: known,
		Publish: func(r resourceslice.DriverResources) { a.withPublisher(func(p *kubeletplugin.Publisher) { p.Set(r) }) },
		Again:   a.again,
		Fatal:   func(err error) { a.endServing(err) },
	})
	if err != nil {
		return err
	}
	defer a.node.Close(serving)
	checks := a.checks()
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error { return probes.ServeHTTP(serving, web, a.node.Web(checks)) })
	group.Go(func() error { return probes.ServeGRPC(serving, health, probes.NewHealth(checks)) })
	group.Go(func() error { return a.serve(ctx, serving) })
	err = group.Wait()
	if err == nil {
		_ = a.node.Tidy(context.WithoutCancel(ctx), presence) // it logs
	}
	if cause := context.Cause(serving); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// lookupQPS limits the questions about claims, of which a node may have hundreds: prepares have
// the API server first.
const lookupQPS = 20

// lookupClient makes the client for those questions.
func lookupClient(c *config.Config, version string, gate *apiserver.Gate) (kubernetes.Interface, error) {
	slow := *c
	slow.APIQPS, slow.APIBurst = lookupQPS, lookupQPS
	return apiserver.NewClient(&slow, version, gate)
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

// serve is the plugin's life: look at what there is, register, publish; at the signal hand over,
// drain, stop.
func (a *Agent) serve(signal, serving context.Context) error {
	defer a.endServing(nil)
	if err := a.node.Start(signal, serving); err != nil || signal.Err() != nil {
		return err
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
	var group sync.WaitGroup
	group.Go(func() { a.node.Serve(work) })
	group.Go(func() { a.publish(work) })
	select {
	case <-signal.Done():
		klog.FromContext(serving).Info("Stopping: handing over and draining calls")
	case <-serving.Done():
	}
	endWork()
	group.Wait()
	drain, cancel := context.WithTimeout(serving, a.config.ShutdownDeadline)
	defer cancel()
	if err := a.calls.Drain(drain); err != nil && serving.Err() == nil {
		klog.FromContext(serving).Error(err, "Calls were still in flight at --shutdown-deadline; the kubelet will repeat them")
	}
	return nil
}

// startEvents makes what turns happenings into Events; the returned function ends it. It tells too
// whether the node is known to the API server.
func (a *Agent) startEvents(ctx context.Context) (known bool, stop func()) {
	lookup, cancel := context.WithTimeout(ctx, ground.APILimit)
	defer cancel()
	uid := apiserver.NodeUID(lookup, a.client, a.config.NodeName)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: a.client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Events are not recorded")
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, a.config.DriverName)
	a.reporter = report.New(recorder, a.metrics, a.config.NodeName, uid)
	return uid != "", broadcaster.Shutdown
}

// register starts the library's servers and waits for nothing: the kubelet comes by itself.
func (a *Agent) register(ctx context.Context) (*draplugin.Helper, error) {
	if err := os.MkdirAll(a.config.KubeletRegistryDir, 0o750); err != nil {
		return nil, fmt.Errorf("--kubelet-registry-dir: %w", err)
	}
	plugin := &kubeletplugin.Plugin{
		Planner:  a.node.Planner(),
		Preparer: a.node.Preparer(),
		Reporter: a.reporter,
		Meter:    a.metrics,
		Health:   a.node.Health(),
		Refused: func(ctx context.Context, err error) {
			a.withPublisher(func(p *kubeletplugin.Publisher) { go p.Refused(ctx, err) })
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
		plugin.Metadata = metadata.Of(a.node.Device)
		options = append(options, metadata.Options(a.config.DriverName)...)
	}
	helper, err := draplugin.Start(ctx, plugin, options...)
	if err != nil {
		return nil, fmt.Errorf("start the plugin's sockets in %s and %s: %w", a.config.DataDir(), a.config.KubeletRegistryDir, err)
	}
	api := apiserver.NewSlices(a.client, helper, a.config.DriverName, a.config.NodeName, a.again)
	a.publisher.Store(kubeletplugin.NewPublisher(api, a.reporter, a.metrics))
	a.node.Republish()
	return helper, nil
}

// withPublisher has something done with the publisher, once there is one.
func (a *Agent) withPublisher(do func(*kubeletplugin.Publisher)) {
	if p := a.publisher.Load(); p != nil {
		do(p)
	}
}

// again has the slices published again.
func (a *Agent) again() { a.withPublisher((*kubeletplugin.Publisher).Again) }

// onRegistered notes whether the kubelet took the plugin. If it did, it may just have started
// and wiped the node's slices, so they are published again.
func (a *Agent) onRegistered(taken bool) {
	a.registered.Store(taken)
	a.metrics.Registered(taken)
	if taken {
		a.again()
	}
}

// callFailed counts and tells what the plugin itself never heard of.
func (a *Agent) callFailed(ctx context.Context, f kubeletplugin.CallFailure) {
	a.metrics.CallFailed(f.Operation, f.Took, f.Reason)
	a.reporter.ClaimFailed(ctx, f.Operation, f.Claim, f.Err)
}

// publish waits until no other instance publishes, then does.
func (a *Agent) publish(ctx context.Context) {
	publisher := a.publisher.Load()
	lease, err := a.node.Lease(ctx, publisher.Follow)
	if err != nil {
		if ctx.Err() == nil {
			a.endServing(err)
		}
		return
	}
	defer func() {
		// Before the other instance may write.
		a.gate.Close()
		lease.Release()
	}()
	klog.FromContext(ctx).Info("This instance publishes the node's slices")
	a.node.Lead(ctx, publisher.Run)
}

// checks are the questions of the probes.
func (a *Agent) checks() probes.Checks {
	return probes.Checks{
		Live: []probes.Check{{Name: "sockets", Ask: a.callOwnSocket}},
		Ready: []probes.Check{
			{Name: "kubelet registration", Ask: a.registration},
			{Name: "ResourceSlices", Ask: func(ctx context.Context) error {
				if err := a.node.Looked(); err != nil {
					return err
				}
				if p := a.publisher.Load(); p != nil {
					return p.Ready(ctx)
				}
				return kubeletplugin.ErrNotYet
			}},
			{Name: "sole owner of the GPUs", Ask: a.node.SoleOwner},
		},
		Notes: []probes.Check{{Name: "GPU driver", Ask: a.node.DriverNote}, {Name: "sole owner of the GPUs", Ask: a.node.Beside}},
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
