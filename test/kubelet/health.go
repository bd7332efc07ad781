package kubelet

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	"k8s.io/utils/clock"
)

// Health of a device as the kubelet would show it.
type Health string

// The values of [Health].
const (
	Unknown   Health = "Unknown"
	Healthy   Health = "Healthy"
	Unhealthy Health = "Unhealthy"
)

// DeviceID names a device within a driver.
type DeviceID struct{ Pool, Device string }

// DeviceHealth is what a plugin reported last for a device.
type DeviceHealth struct {
	Health  Health
	Message string
	// At is when the report came, on the kubelet's clock.
	At time.Time
	// Expiry is how long it holds; after that the device is Unknown.
	Expiry time.Duration
}

// healthBook keeps the reports of all drivers.
type healthBook struct {
	clock   clock.WithTicker
	mu      sync.Mutex
	drivers map[string]map[DeviceID]DeviceHealth
	reports map[string]int
	changed chan struct{}
}

func newHealthBook(c clock.WithTicker) *healthBook {
	return &healthBook{clock: c, drivers: map[string]map[DeviceID]DeviceHealth{}, reports: map[string]int{}, changed: make(chan struct{})}
}

func (b *healthBook) announce() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *healthBook) store(driver string, report *drahealthv1.NodeWatchResourcesResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drivers[driver] == nil {
		b.drivers[driver] = map[DeviceID]DeviceHealth{}
	}
	for _, d := range report.GetDevices() {
		h := DeviceHealth{Health: healthOf(d.GetHealth()), Message: d.GetMessage(), At: b.clock.Now(), Expiry: DefaultHealthExpiry}
		if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
			h.Expiry = time.Duration(s) * time.Second
		}
		b.drivers[driver][DeviceID{Pool: d.GetDevice().GetPoolName(), Device: d.GetDevice().GetDeviceName()}] = h
	}
	b.reports[driver]++
	b.announce()
}

func healthOf(h drahealthv1.HealthStatus) Health {
	switch h {
	case drahealthv1.HealthStatus_HEALTHY:
		return Healthy
	case drahealthv1.HealthStatus_UNHEALTHY:
		return Unhealthy
	default:
		return Unknown
	}
}

// clear forgets a driver's reports: the kubelet does so when the stream of any of its instances ends.
func (b *healthBook) clear(driver string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.drivers, driver)
	b.announce()
}

// Health returns what is known of a driver's devices now. A report that is too old shows as Unknown; a device without a
// report is missing.
func (k *Kubelet) Health(driver string) map[DeviceID]DeviceHealth {
	k.health.mu.Lock()
	defer k.health.mu.Unlock()
	all := maps.Clone(k.health.drivers[driver])
	now := k.health.clock.Now()
	for id, h := range all {
		if now.Sub(h.At) > h.Expiry {
			h.Health, h.Message = Unknown, ""
			all[id] = h
		}
	}
	return all
}

// HealthReports tells how many reports of a driver came since the start.
func (k *Kubelet) HealthReports(driver string) int {
	k.health.mu.Lock()
	defer k.health.mu.Unlock()
	return k.health.reports[driver]
}

// WaitForHealth waits until what is known of the driver's devices satisfies ok. It looks again at each report,
// not when one expires.
func (k *Kubelet) WaitForHealth(ctx context.Context, driver string, ok func(map[DeviceID]DeviceHealth) bool) error {
	for {
		k.health.mu.Lock()
		changed := k.health.changed
		k.health.mu.Unlock()
		if ok(k.Health(driver)) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("health of driver %s is %v: %w", driver, k.Health(driver), ctx.Err())
		}
	}
}

// watchHealth follows the instance's stream and opens it again until the instance is gone or says that
// it has no health to report.
func (i *instance) watchHealth() {
	for {
		err := i.followHealth()
		i.kubelet.health.clear(i.info.Driver)
		i.kubelet.options.Log.Info("Health stream ended", "driver", i.info.Driver, "endpoint", i.info.Endpoint, "err", err)
		if status.Code(err) == codes.Unimplemented || !i.kubelet.pause(i.ctx, HealthRestart) {
			return
		}
	}
}

// followHealth reads one stream to its end. Errors keep their gRPC code.
func (i *instance) followHealth() error {
	stream, err := i.openHealth()
	if err != nil {
		return err
	}
	for {
		report, err := stream.Recv()
		if err != nil {
			return err
		}
		i.kubelet.health.store(i.info.Driver, report)
	}
}

func (i *instance) openHealth() (drahealthv1.DRAResourceHealth_NodeWatchResourcesClient, error) {
	request := &drahealthv1.NodeWatchResourcesRequest{}
	if i.info.HealthService == drahealthv1alpha1.DRAResourceHealthService {
		return drahealthv1.V1Alpha1ClientWrapper{Client: drahealthv1alpha1.NewDRAResourceHealthClient(i.conn)}.NodeWatchResources(i.ctx, request)
	}
	return drahealthv1.NewDRAResourceHealthClient(i.conn).NodeWatchResources(i.ctx, request)
}
