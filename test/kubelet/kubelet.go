package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// The kubelet's own figures; none of them is configurable there.
const (
	CallTimeout         = 45 * time.Second
	AbsenceDelay        = 30 * time.Second
	GetInfoTimeout      = time.Second
	NotifyTimeout       = 5 * time.Second
	HealthRestart       = 5 * time.Second
	DefaultHealthExpiry = 30 * time.Second
)

// Options of a kubelet.
type Options struct {
	// NodeName is the node whose slices are wiped.
	NodeName string
	// RegistryDir is the directory of registration sockets; it must exist.
	RegistryDir string
	// Client reaches the API for wipes and pods; nil: nothing is wiped and pods cannot be prepared.
	Client kubernetes.Interface
	// Clock runs the absence delay, health expiry and retries; the real one by default. Deadlines of calls
	// are always real.
	Clock clock.WithTicker
	// Log is for what goes on in the background; nothing is logged by default.
	Log *slog.Logger
	// CallTimeout bounds one prepare or unprepare call; [CallTimeout] by default.
	CallTimeout time.Duration
	// KeepSlices leaves out the wipe at start.
	KeepSlices bool
	// State is what a kubelet before this one left, from [Kubelet.Stop].
	State *State
}

// Kubelet is a running stand-in. Its methods may be called from any goroutine.
type Kubelet struct {
	options Options
	ctx     context.Context // of everything in the background; ends in Stop
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	calls   callLog
	health  *healthBook
	pods    *podBook

	mu      sync.Mutex
	drivers map[string]*driverEntry
	changed chan struct{} // closed and replaced when drivers change
}

// driverEntry is what is known of one driver, connected or not.
type driverEntry struct {
	instances []*instance // in the order of registration
	// stopWipe ends the countdown to the wipe; nil while an instance is connected.
	stopWipe context.CancelFunc
}

// Start begins to watch the registry and, unless told otherwise, wipes the node's slices in the background.
func Start(ctx context.Context, o Options) (*Kubelet, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = CallTimeout
	}
	dir, err := filepath.Abs(o.RegistryDir)
	if err != nil {
		return nil, fmt.Errorf("registry directory %q: %w", o.RegistryDir, err)
	}
	o.RegistryDir = dir
	ctx, cancel := context.WithCancel(ctx)
	k := &Kubelet{
		options: o, ctx: ctx, cancel: cancel, drivers: map[string]*driverEntry{}, changed: make(chan struct{}),
		health: newHealthBook(o.Clock), pods: newPodBook(o.State),
	}
	watcher, err := newRegistry(k)
	if err != nil {
		cancel()
		return nil, err
	}
	if !o.KeepSlices {
		k.wg.Go(func() { k.wipe(ctx, "") })
	}
	k.wg.Go(func() { watcher.run(ctx) })
	return k, nil
}

// Stop ends everything, closes the connections and returns the state that a kubelet started later goes
// on with. Plugins and slices are left alone, as when a real kubelet stops.
func (k *Kubelet) Stop() *State {
	k.cancel()
	k.mu.Lock()
	var all []*instance
	for _, d := range k.drivers {
		all = append(all, d.instances...)
		d.cancelWipe()
	}
	k.drivers = map[string]*driverEntry{}
	k.mu.Unlock()
	for _, i := range all {
		i.close()
	}
	k.wg.Wait()
	return k.pods.state()
}

// Instance describes a registered plugin instance.
type Instance struct {
	Driver string
	// Endpoint is the path of its DRA socket.
	Endpoint string
	// RegistrationSocket is the path of the socket that it registered with.
	RegistrationSocket string
	// Service and HealthService are the chosen gRPC services; HealthService is empty where there is none.
	Service       string
	HealthService string
	// Versions is what the plugin announced.
	Versions  []string
	Connected bool
}

// Instances returns the registered instances of a driver, oldest first.
func (k *Kubelet) Instances(driver string) []Instance {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, ok := k.drivers[driver]
	if !ok {
		return nil
	}
	var all []Instance
	for _, i := range d.instances {
		all = append(all, i.info)
	}
	return all
}

// WaitFor waits until the driver's registered instances satisfy ok. It ends early with ctx.
func (k *Kubelet) WaitFor(ctx context.Context, driver string, ok func([]Instance) bool) error {
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		if ok(k.Instances(driver)) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("driver %s has %+v: %w", driver, k.Instances(driver), ctx.Err())
		}
	}
}

// WaitForDriver waits until an instance of the driver is registered and connected.
func (k *Kubelet) WaitForDriver(ctx context.Context, driver string) error {
	return k.WaitFor(ctx, driver, func(all []Instance) bool {
		for _, i := range all {
			if i.Connected {
				return true
			}
		}
		return false
	})
}

// announce wakes those who wait for a change. The caller holds the lock.
func (k *Kubelet) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// choose returns the instance for the next call: the newest connected one, else the newest.
func (k *Kubelet) choose(driver string) (*instance, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, ok := k.drivers[driver]
	if !ok || len(d.instances) == 0 {
		return nil, fmt.Errorf("%w: %s (registry %s)", ErrNotRegistered, driver, k.options.RegistryDir)
	}
	for n := len(d.instances) - 1; n >= 0; n-- {
		if d.instances[n].info.Connected {
			return d.instances[n], nil
		}
	}
	return d.instances[len(d.instances)-1], nil
}
