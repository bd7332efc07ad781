package kubelet

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
)

// instance is one registered plugin process with its connection.
type instance struct {
	kubelet *Kubelet
	ctx     context.Context // ends with the kubelet's or the registration's
	cancel  context.CancelFunc
	conn    *grpc.ClientConn
	wg      sync.WaitGroup
	info    Instance // guarded by the kubelet's lock
}

// join connects to a plugin's endpoint and makes it a registered instance.
func (k *Kubelet) join(ctx context.Context, info Instance) (*instance, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, ok := k.drivers[info.Driver]
	if !ok {
		d = &driverEntry{}
		k.drivers[info.Driver] = d
	}
	if slices.ContainsFunc(d.instances, func(i *instance) bool { return i.info.Endpoint == info.Endpoint }) {
		return nil, fmt.Errorf("endpoint %s is already registered for driver %s", info.Endpoint, info.Driver)
	}
	i := &instance{kubelet: k, info: info}
	conn, err := grpc.NewClient("unix:"+info.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(i))
	if err != nil {
		return nil, fmt.Errorf("connect to %s of driver %s: %w", info.Endpoint, info.Driver, err)
	}
	i.conn = conn
	i.ctx, i.cancel = context.WithCancel(ctx)
	d.instances = append(d.instances, i)
	// Without a call gRPC would not connect, and nobody would know whether the plugin is there.
	conn.Connect()
	if info.HealthService != "" {
		i.wg.Go(i.watchHealth)
	}
	k.count(info.Driver)
	k.announce()
	return i, nil
}

// deregister takes an instance out; the countdown to the wipe starts if it was the last connected one.
func (k *Kubelet) deregister(i *instance) {
	k.mu.Lock()
	if d, ok := k.drivers[i.info.Driver]; ok {
		d.instances = slices.DeleteFunc(d.instances, func(o *instance) bool { return o == i })
		k.count(i.info.Driver)
		k.announce()
	}
	k.mu.Unlock()
	i.close()
}

func (i *instance) close() {
	i.cancel()
	if err := i.conn.Close(); err != nil {
		i.kubelet.options.Log.Warn("Closing a connection failed", "endpoint", i.info.Endpoint, "err", err)
	}
	i.wg.Wait()
}

// TagRPC is part of gRPC's stats.Handler; calls are of no interest.
func (i *instance) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC is part of gRPC's stats.Handler; calls are of no interest.
func (i *instance) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn is part of gRPC's stats.Handler.
func (i *instance) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn notes that the plugin came or went. A plugin that went stays registered.
func (i *instance) HandleConn(_ context.Context, s stats.ConnStats) {
	var connected bool
	switch s.(type) {
	case *stats.ConnBegin:
		connected = true
	case *stats.ConnEnd:
		// gRPC only tries again when asked to, and must not be asked from within this callback.
		go i.conn.Connect()
	default:
		return
	}
	i.kubelet.mu.Lock()
	defer i.kubelet.mu.Unlock()
	i.info.Connected = connected
	d, ok := i.kubelet.drivers[i.info.Driver]
	if ok && slices.Contains(d.instances, i) {
		i.kubelet.count(i.info.Driver)
		i.kubelet.announce()
	}
}
