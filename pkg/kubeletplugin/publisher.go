package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/metrics"
)

// Slices is what the publisher needs of the API server.
type Slices interface {
	// Publish hands the desired slices to the library's controller. It may block until the API
	// server can be reached.
	Publish(ctx context.Context, desired resourceslice.DriverResources) error
	// List returns the slices of this driver on this node that the API server holds.
	List(ctx context.Context) ([]resourceapi.ResourceSlice, error)
}

// PublishReporter is told how publishing goes.
type PublishReporter interface {
	SlicesRefused(ctx context.Context, err error)
	SlicesAccepted(ctx context.Context)
}

// PublishMeter times publications.
type PublishMeter interface {
	Published(took time.Duration, result metrics.Result)
	Publishing(yes bool)
}

// looks are the times after a publication at which the API server is asked what it holds. The
// kubelet wipes a node's slices when it starts, in the background and thus perhaps after the
// plugin has registered again and published; the library's controller would notice a wipe only
// after 30 s. So the publisher keeps looking for a while and publishes again what was wiped.
func looks() []time.Duration {
	return []time.Duration{
		100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond, 1200 * time.Millisecond,
		2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second,
	}
}

// patience is the number of looks that a first publication may take: the library's controller
// needs about a second to start. After that the slices are taken to be wiped.
const patience = 4

// retryAfter is the time between two tries of what was not accepted.
const retryAfter = 30 * time.Second

// Publisher keeps the API server's slices equal to the desired ones.
type Publisher struct {
	slices   Slices
	reporter PublishReporter
	meter    PublishMeter
	kick     chan struct{}

	mu      sync.Mutex
	desired *resourceslice.DriverResources
	// version counts what was desired, so that a late answer is not taken for a newer wish.
	version int
	since   time.Time
	leading bool
	// following: another instance is known to publish.
	following bool
	accepted  bool
	problem   error
	// looked is when an instance that does not publish last saw slices of the other.
	looked time.Time
}

// NewPublisher makes a publisher that has nothing to publish yet.
func NewPublisher(slices Slices, reporter PublishReporter, meter PublishMeter) *Publisher {
	return &Publisher{slices: slices, reporter: reporter, meter: meter, kick: make(chan struct{}, 1)}
}

// Set states what is to be published from now on.
func (p *Publisher) Set(desired resourceslice.DriverResources) {
	p.mu.Lock()
	if p.desired != nil && equality.Semantic.DeepEqual(p.desired.Pools, desired.Pools) {
		p.mu.Unlock()
		return
	}
	p.desired = &desired
	p.version++
	p.since = time.Now()
	p.accepted = false
	p.mu.Unlock()
	p.Again()
}

// Again publishes what is desired once more and looks whether it stays, as is needed after each
// registration. It does not block.
func (p *Publisher) Again() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Refused records what the library's controller reports from the background. It does not publish
// again: the controller repeats what can succeed, ever more slowly, and each publication from
// here would be tried at once, so that a refusal would become a storm of writes.
//
// A refusal of what an instance published before it handed over is not told: the library's
// controller lives on until the process ends.
func (p *Publisher) Refused(ctx context.Context, err error) {
	p.mu.Lock()
	leading := p.leading
	if leading {
		p.accepted = false
		p.problem = err
	}
	p.mu.Unlock()
	if !leading {
		return
	}
	p.reporter.SlicesRefused(ctx, err)
}

// ErrNotYet is the reason of a publisher that has not seen its slices accepted.
var ErrNotYet = errors.New("the API server does not hold this node's ResourceSlices yet")

// Ready returns nil when the API server holds the desired slices or, while another instance
// publishes, any slices of this node; else what is in the way.
func (p *Publisher) Ready(ctx context.Context) error {
	p.mu.Lock()
	leading, following, accepted, problem := p.leading, p.following, p.accepted, p.problem
	p.mu.Unlock()
	switch {
	case following:
		return p.followerReady(ctx)
	case !leading:
		// Not decided yet: slices that are there may be those of an instance that has ended.
		return ErrNotYet
	case accepted:
		return nil
	case problem != nil:
		return fmt.Errorf("%w: %w", ErrNotYet, problem)
	}
	return ErrNotYet
}

// Follow tells that another instance publishes, until this one runs.
func (p *Publisher) Follow() { p.role(false, true) }

func (p *Publisher) role(leading, following bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading, p.following = leading, following
}

// followerLook is how long an instance that does not publish believes what it saw.
const followerLook = 10 * time.Second

// followerReady looks whether the instance that publishes does: it may hang, in the GPU driver
// for one, and an update must not go on to the next node then.
func (p *Publisher) followerReady(ctx context.Context) error {
	p.mu.Lock()
	fresh := time.Since(p.looked) < followerLook
	p.mu.Unlock()
	if fresh {
		return nil
	}
	found, err := p.slices.List(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: another instance publishes them, and they cannot be listed: %w", ErrNotYet, err)
	case len(found) == 0:
		return fmt.Errorf("%w: another instance of this plugin on this node has the right to publish and does not; if it hangs, end it", ErrNotYet)
	}
	p.mu.Lock()
	p.looked = time.Now()
	p.mu.Unlock()
	return nil
}

// Run publishes until the context ends. Only the instance that holds the node's lease runs it.
func (p *Publisher) Run(ctx context.Context) {
	p.role(true, false)
	p.mu.Lock()
	p.since = time.Now()
	p.mu.Unlock()
	p.meter.Publishing(true)
	defer func() {
		// Another instance may publish from here on.
		p.role(false, true)
		p.meter.Publishing(false)
	}()
	p.Again()
	retry := time.NewTicker(retryAfter)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
		case <-retry.C:
			if p.settled() {
				continue
			}
			// A kick that came with the tick is answered by the same publication.
			select {
			case <-p.kick:
			default:
			}
		}
		p.publishAndLook(ctx)
	}
}

// settled tells whether there is nothing left to do until something changes.
func (p *Publisher) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired == nil || p.accepted
}

// refused tells whether the controller reports a problem, which it then works on itself.
func (p *Publisher) refused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem != nil
}

// publishAndLook publishes the current wish and looks until the schedule ends.
func (p *Publisher) publishAndLook(ctx context.Context) {
	desired, version, since := p.wish()
	if desired == nil {
		return
	}
	if err := p.slices.Publish(ctx, *desired.DeepCopy()); err != nil {
		p.failed(ctx, version, since, err)
		return
	}
	begin := time.Now()
	held := false
	for i, at := range looks() {
		if !p.wait(ctx, time.Until(begin.Add(at))) {
			return
		}
		found, err := p.slices.List(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			held = false
			p.failed(ctx, version, since, fmt.Errorf("list ResourceSlices: %w", err))
		case holds(found, desired.Pools):
			p.succeeded(ctx, version, since)
			held = true
		case held || i >= patience && !p.refused():
			held = false
			p.lost(ctx, version, len(found))
			if err := p.slices.Publish(ctx, *desired.DeepCopy()); err != nil {
				p.failed(ctx, version, since, err)
			}
		}
	}
}

// wait sleeps between two looks. It returns false when the wish has changed or publishing ends,
// after putting back the kick that woke it.
func (p *Publisher) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.kick:
		p.Again()
		return false
	case <-ctx.Done():
		return false
	}
}

func (p *Publisher) wish() (*resourceslice.DriverResources, int, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired, p.version, p.since
}

func (p *Publisher) succeeded(ctx context.Context, version int, since time.Time) {
	p.mu.Lock()
	fresh := p.version == version && !p.accepted
	if fresh {
		p.accepted, p.problem = true, nil
	}
	p.mu.Unlock()
	if fresh {
		p.meter.Published(time.Since(since), metrics.Success)
		p.reporter.SlicesAccepted(ctx)
		klog.FromContext(ctx).Info("ResourceSlices are published", "took", time.Since(since))
	}
}

// lost notes that slices which were held, or should be by now, are not there.
func (p *Publisher) lost(ctx context.Context, version, found int) {
	p.mu.Lock()
	if p.version == version {
		p.accepted = false
	}
	p.mu.Unlock()
	klog.FromContext(ctx).Info("The API server does not hold the ResourceSlices; publishing again", "found", found)
}

func (p *Publisher) failed(ctx context.Context, version int, since time.Time, err error) {
	p.mu.Lock()
	if p.version == version {
		p.accepted, p.problem = false, err
	}
	p.mu.Unlock()
	p.meter.Published(time.Since(since), metrics.Failure)
	p.reporter.SlicesRefused(ctx, err)
}

// holds tells whether the API server's slices carry the content of the desired pools. Order in
// a pool is by name there, as the library's controller gives it.
func holds(found []resourceapi.ResourceSlice, desired map[string]resourceslice.Pool) bool {
	wanted := 0
	for _, pool := range desired {
		wanted += len(pool.Slices)
	}
	if len(found) != wanted || !whole(found, desired) {
		return false
	}
	for name, pool := range desired {
		for _, want := range pool.Slices {
			if !heldBySome(found, name, want) {
				return false
			}
		}
	}
	return true
}

// whole tells whether allocators take the pools: until every slice is of the last generation they
// pass over a pool, whatever its devices are.
func whole(found []resourceapi.ResourceSlice, desired map[string]resourceslice.Pool) bool {
	generation := map[string]int64{}
	for i := range found {
		pool := found[i].Spec.Pool
		first, seen := generation[pool.Name]
		if seen && first != pool.Generation || pool.ResourceSliceCount != int64(len(desired[pool.Name].Slices)) {
			return false
		}
		generation[pool.Name] = pool.Generation
	}
	return true
}

func heldBySome(found []resourceapi.ResourceSlice, pool string, want resourceslice.Slice) bool {
	for i := range found {
		spec := &found[i].Spec
		if spec.Pool.Name == pool && sameDevices(spec.Devices, want.Devices) &&
			equality.Semantic.DeepEqual(spec.SharedCounters, want.SharedCounters) {
			return true
		}
	}
	return false
}

// sameDevices compares devices but for the time of their taints, which the API server sets.
func sameDevices(found, want []resourceapi.Device) bool {
	if len(found) != len(want) {
		return false
	}
	for i := range found {
		a, b := found[i].DeepCopy(), want[i].DeepCopy()
		for _, d := range []*resourceapi.Device{a, b} {
			for t := range d.Taints {
				d.Taints[t].TimeAdded = nil
			}
		}
		if !equality.Semantic.DeepEqual(a, b) {
			return false
		}
	}
	return true
}
