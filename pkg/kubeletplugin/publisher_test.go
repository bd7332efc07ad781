package kubeletplugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/metrics"
)

// apiServer holds slices the way the library's controller and the API server do together:
// what is published appears some time later.
type apiServer struct {
	mu         sync.Mutex
	delay      time.Duration
	held       []resourceapi.ResourceSlice
	published  []time.Time
	publishErr error
	listErr    error
	// mangle changes what is stored, as a server does that drops fields.
	mangle func(*resourceapi.ResourceSlice)
}

func (a *apiServer) Publish(_ context.Context, desired resourceslice.DriverResources) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.published = append(a.published, time.Now())
	if a.publishErr != nil {
		return a.publishErr
	}
	time.AfterFunc(a.delay, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.held = nil
		for name, pool := range desired.Pools {
			for _, s := range pool.Slices {
				slice := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
					Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: int64(len(pool.Slices))}, Devices: s.Devices, SharedCounters: s.SharedCounters,
				}}
				if a.mangle != nil {
					a.mangle(&slice)
				}
				a.held = append(a.held, slice)
			}
		}
	})
	return nil
}

func (a *apiServer) List(context.Context) ([]resourceapi.ResourceSlice, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.held), a.listErr
}

func (a *apiServer) wipe() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = nil
}

func (a *apiServer) publications() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.published)
}

type publishLog struct {
	mu                sync.Mutex
	refused, accepted int
	results           map[metrics.Result]int
	publishing        bool
}

func (l *publishLog) SlicesRefused(context.Context, error) { l.count(&l.refused) }
func (l *publishLog) SlicesAccepted(context.Context)       { l.count(&l.accepted) }
func (l *publishLog) Publishing(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.publishing = yes
}

func (l *publishLog) Published(_ time.Duration, result metrics.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.results[result]++
}

func (l *publishLog) count(n *int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*n++
}

func resources(devices ...string) resourceslice.DriverResources {
	var slice resourceslice.Slice
	for _, name := range devices {
		slice.Devices = append(slice.Devices, resourceapi.Device{Name: name})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node-0": {Slices: []resourceslice.Slice{slice}}}}
}

// published runs a publisher in a bubble of fake time.
func published(t *testing.T, api *apiServer, test func(t *testing.T, p *Publisher, log *publishLog)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := &publishLog{results: map[metrics.Result]int{}}
		p := NewPublisher(api, log, log)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		synctest.Wait()
		test(t, p, log)
		cancel()
		<-done
		if log.publishing {
			t.Error("still publishing after the end")
		}
	})
}

func TestReadyOnceTheAPIServerHoldsTheSlices(t *testing.T) {
	api := &apiServer{delay: time.Second}
	published(t, api, func(t *testing.T, p *Publisher, log *publishLog) {
		if err := p.Ready(t.Context()); !errors.Is(err, ErrNotYet) {
			t.Errorf("before anything is published: %v, want ErrNotYet", err)
		}
		p.Set(resources("gpu-a"))
		time.Sleep(900 * time.Millisecond)
		if err := p.Ready(t.Context()); !errors.Is(err, ErrNotYet) {
			t.Errorf("before the server holds them: %v, want ErrNotYet", err)
		}
		time.Sleep(time.Minute)
		if err := p.Ready(t.Context()); err != nil {
			t.Errorf("after the server holds them: %v", err)
		}
		if log.results[metrics.Success] != 1 || log.accepted != 1 || log.refused != 0 {
			t.Errorf("results %v, accepted %d, refused %d", log.results, log.accepted, log.refused)
		}
		if n := api.publications(); n != 1 {
			t.Errorf("%d publications for one wish, want 1", n)
		}
	})
}

func TestTheSameWishIsNotPublishedAgain(t *testing.T) {
	api := &apiServer{}
	published(t, api, func(t *testing.T, p *Publisher, _ *publishLog) {
		p.Set(resources("gpu-a"))
		time.Sleep(time.Minute)
		p.Set(resources("gpu-a"))
		time.Sleep(time.Hour)
		if n := api.publications(); n != 1 {
			t.Errorf("%d publications, want 1", n)
		}
		p.Set(resources("gpu-a", "gpu-b"))
		time.Sleep(time.Minute)
		if n := api.publications(); n != 2 {
			t.Errorf("%d publications after a change, want 2", n)
		}
		if err := p.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The kubelet wipes the slices when it starts, possibly after the plugin has registered.
func TestSlicesThatWereWipedAreBackWithinFiveSeconds(t *testing.T) {
	for _, wipeAfter := range []time.Duration{0, 50 * time.Millisecond, time.Second, 1900 * time.Millisecond} {
		t.Run(wipeAfter.String(), func(t *testing.T) {
			api := &apiServer{}
			published(t, api, func(t *testing.T, p *Publisher, _ *publishLog) {
				p.Set(resources("gpu-a"))
				time.Sleep(time.Hour)
				p.Again()
				time.Sleep(wipeAfter)
				api.wipe()
				time.Sleep(5 * time.Second)
				if held, _ := api.List(t.Context()); len(held) != 1 {
					t.Errorf("%d slices five seconds after the wipe, want 1", len(held))
				}
				if err := p.Ready(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAServerThatIsAwayIsTriedAgain(t *testing.T) {
	api := &apiServer{publishErr: errors.New("connection refused")}
	published(t, api, func(t *testing.T, p *Publisher, log *publishLog) {
		p.Set(resources("gpu-a"))
		time.Sleep(time.Second)
		if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("ready is %v, want the server's error", err)
		}
		api.mu.Lock()
		api.publishErr = nil
		api.mu.Unlock()
		time.Sleep(retryAfter + time.Second)
		if err := p.Ready(t.Context()); err != nil {
			t.Errorf("after the server came back: %v", err)
		}
		if log.refused == 0 || log.accepted != 1 {
			t.Errorf("refused %d, accepted %d", log.refused, log.accepted)
		}
	})
}

func TestDroppedFieldsKeepTheNodeUnready(t *testing.T) {
	api := &apiServer{mangle: func(s *resourceapi.ResourceSlice) { s.Spec.Devices[0].AllowMultipleAllocations = nil }}
	published(t, api, func(t *testing.T, p *Publisher, _ *publishLog) {
		wish := resources("gpu-a")
		wish.Pools["node-0"].Slices[0].Devices[0].AllowMultipleAllocations = ptr.To(true)
		p.Set(wish)
		time.Sleep(time.Second)
		p.Refused(t.Context(), errors.New("dropped fields: DRAConsumableCapacity"))
		time.Sleep(time.Minute)
		if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "DRAConsumableCapacity") {
			t.Errorf("ready is %v, want the reason", err)
		}
	})
}

// Allocators pass over a pool of which some slices are of an earlier generation.
func TestAPoolThatIsHalfRewrittenIsNotHeld(t *testing.T) {
	wish := resources("gpu-a")
	pool := wish.Pools["node-0"]
	pool.Slices = append(pool.Slices, resources("gpu-b").Pools["node-0"].Slices...)
	wish.Pools["node-0"] = pool
	found := func(generations ...int64) []resourceapi.ResourceSlice {
		var out []resourceapi.ResourceSlice
		for i, g := range generations {
			out = append(out, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
				Pool: resourceapi.ResourcePool{Name: "node-0", Generation: g, ResourceSliceCount: 2}, Devices: pool.Slices[i].Devices,
			}})
		}
		return out
	}
	if !holds(found(3, 3), wish.Pools) {
		t.Error("a whole pool is not held")
	}
	if holds(found(3, 2), wish.Pools) {
		t.Error("a pool of two generations is held")
	}
	short := found(3, 3)
	short[1].Spec.Pool.ResourceSliceCount = 1
	if holds(short, wish.Pools) {
		t.Error("a pool that counts other slices is held")
	}
}

func TestAFollowerIsReadyWhileTheOtherPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiServer{}
		p := NewPublisher(api, &publishLog{}, &publishLog{results: map[metrics.Result]int{}})
		p.Set(resources("gpu-a"))
		_ = api.Publish(t.Context(), resources("gpu-b"))
		synctest.Wait()
		if err := p.Ready(t.Context()); !errors.Is(err, ErrNotYet) {
			t.Errorf("before it is known who publishes: %v", err)
		}
		api.wipe()
		p.Follow()
		if err := p.Ready(t.Context()); !errors.Is(err, ErrNotYet) || !strings.Contains(err.Error(), "another instance") {
			t.Errorf("without slices of the other: %v", err)
		}
		// What the other publishes need not be what this one would.
		_ = api.Publish(t.Context(), resources("gpu-b"))
		synctest.Wait()
		if err := p.Ready(t.Context()); err != nil {
			t.Errorf("with slices of the other: %v", err)
		}
		api.wipe()
		if err := p.Ready(t.Context()); err != nil {
			t.Errorf("a moment after slices were seen: %v", err)
		}
		time.Sleep(followerLook + time.Second)
		if err := p.Ready(t.Context()); !errors.Is(err, ErrNotYet) {
			t.Errorf("after the other has stopped publishing: %v", err)
		}
		api.listErr = errors.New("forbidden")
		if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("when slices cannot be listed: %v", err)
		}
	})
}

// A controller that is told to publish tries at once, so a refusal must not lead to publishing.
func TestARefusalIsNotAStormOfWrites(t *testing.T) {
	var p *Publisher
	api := &apiServer{mangle: func(s *resourceapi.ResourceSlice) { s.Spec.Devices = nil }}
	published(t, api, func(t *testing.T, publisher *Publisher, _ *publishLog) {
		p = publisher
		p.Set(resources("gpu-a"))
		for range 600 { // an error report for every try of the controller, for a minute
			time.Sleep(100 * time.Millisecond)
			p.Refused(t.Context(), errors.New("denied by policy"))
		}
		if n := api.publications(); n > 6 {
			t.Errorf("%d publications in a minute of refusals", n)
		}
		api.mu.Lock()
		api.mangle = nil
		api.mu.Unlock()
		time.Sleep(2 * retryAfter)
		if err := p.Ready(t.Context()); err != nil {
			t.Errorf("a minute after the refusals have ended: %v", err)
		}
	})
}

func TestTheTimeOfATaintIsTheServers(t *testing.T) {
	device := resourceapi.Device{Name: "a", Taints: []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	stored := *device.DeepCopy()
	stored.Taints[0].TimeAdded = &metav1.Time{Time: time.Now()}
	if !sameDevices([]resourceapi.Device{stored}, []resourceapi.Device{device}) {
		t.Error("devices that differ only in the time of a taint are held to be different")
	}
	stored.Taints[0].Key = "other"
	if sameDevices([]resourceapi.Device{stored}, []resourceapi.Device{device}) {
		t.Error("devices with different taints are held to be the same")
	}
}
