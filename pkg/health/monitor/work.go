package monitor

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/pci"
)

const (
	// gap is the least time between two times that changes are told: a burst of errors is told at
	// its begin and at its end.
	gap = time.Second
	// retry is how long after a failure GPUs are watched again.
	retry = 5 * time.Second
	// deafAfter is how many failures in a row mean that GPUs are not watched: a driver that is
	// reloaded fails for a moment.
	deafAfter = 2
)

// watch has the GPUs watched, again whenever other GPUs are known or the session ended.
func (m *Monitor) watch(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		gpus := m.ids()
		if len(gpus) == 0 {
			select {
			case <-m.restart:
			case <-ctx.Done():
			}
			continue
		}
		err := m.watchOnce(ctx, gpus)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, vitals.ErrRecalled):
			failures = 0
			continue
		}
		failures++
		klog.FromContext(ctx).Error(err, "GPUs are not watched for errors; trying again")
		if failures >= deafAfter {
			m.heard(ctx, gpus, func(inventory.GPUID) error { return err })
		}
		m.pause(ctx, retry)
	}
}

// watchOnce watches until other GPUs are to be watched; nil then.
func (m *Monitor) watchOnce(ctx context.Context, gpus []inventory.GPUID) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- m.Source.Watch(ctx, gpus,
			func(deaf map[inventory.GPUID]error) {
				m.heard(ctx, gpus, func(id inventory.GPUID) error { return deaf[id] })
				// What happened before is not reported.
				m.readAll(ctx)
			},
			func(e vitals.Event) { m.event(ctx, e) })
	}()
	select {
	case err := <-done:
		return err
	case <-m.restart:
		stop()
		<-done //nolint:errcheck // it was told to end
		return nil
	}
}

// pause waits, or until other GPUs are to be watched.
func (m *Monitor) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.restart:
	case <-ctx.Done():
	}
}

// heard notes which GPUs are watched. A board that reports nothing is as well watched as it can be:
// it is read.
func (m *Monitor) heard(ctx context.Context, gpus []inventory.GPUID, deaf func(inventory.GPUID) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range gpus {
		u := health.Unwatched{}
		if err := deaf(id); err != nil && !errors.Is(err, inventory.ErrNotSupported) {
			u = health.Unwatched{Yes: true, Why: err.Error()}
		}
		if m.records[id.PCI].UUID == id.UUID {
			m.step(ctx, id.PCI, u, time.Now())
		}
	}
}

// event takes in what the driver reported.
func (m *Monitor) event(ctx context.Context, e vitals.Event) {
	if e.GPU == (inventory.GPUID{}) {
		// It does not say of which GPU: each is asked, and only those that fail are ill.
		m.readAll(ctx)
		return
	}
	if e.XID != 0 {
		m.xid(ctx, e)
	}
	go m.read(ctx, e.GPU)
}

// xid takes in an error.
func (m *Monitor) xid(ctx context.Context, e vitals.Event) {
	rule, observed := m.Rules.Table.XID(e.XID), health.Error{Code: e.XID}
	m.Reporter.Noticed(ctx, e.GPU.PCI, e.XID, rule)
	// What counts for the whole GPU outlives the instance that it struck.
	if e.Instance >= 0 && !rule.Whole {
		place, gone := m.place(ctx, e.GPU, e.Instance)
		if gone {
			// It has ended with its instance.
			return
		}
		observed.Place = place
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[e.GPU.PCI].UUID == e.GPU.UUID {
		if p := observed.Place; p != nil && !slices.Contains(m.placed[e.GPU.PCI], *p) {
			m.placed[e.GPU.PCI] = append(m.placed[e.GPU.PCI], *p)
		}
		m.step(ctx, e.GPU.PCI, observed, time.Now())
	}
}

// placeLimit bounds the question where an instance is: until it is answered nobody is told of the
// error. Without an answer the error counts for the whole GPU.
const placeLimit = 2 * time.Second

func (m *Monitor) place(ctx context.Context, gpu inventory.GPUID, instance int) (place *health.Place, gone bool) {
	ctx, cancel := context.WithTimeout(ctx, placeLimit)
	defer cancel()
	found, err := m.Partitions.MIG(ctx, gpu)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Where a GPU instance is cannot be read; its error counts for the GPU", "gpu", gpu.PCI, "instance", instance)
		return nil, false
	}
	for _, i := range found.Instances {
		if i.ID == instance {
			p := health.PlaceOf(i)
			return &p, false
		}
	}
	return nil, true
}

// poll reads every GPU in turn, and ends faults when their time has come.
func (m *Monitor) poll(ctx context.Context) {
	ticker := time.NewTicker(m.Interval)
	defer ticker.Stop()
	for {
		timer := time.NewTimer(m.untilNext())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-ticker.C:
			m.readAll(ctx)
		case <-timer.C:
			m.pass(ctx)
		}
		timer.Stop()
	}
}

func (m *Monitor) untilNext() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := time.Hour
	for _, r := range m.records {
		if next := r.Next(m.Rules.Timing); !next.IsZero() {
			wait = min(wait, time.Until(next))
		}
	}
	return max(wait, 0)
}

// pass lets time pass for all GPUs.
func (m *Monitor) pass(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := range m.records {
		m.step(ctx, at, health.Nothing{}, time.Now())
	}
}

func (m *Monitor) ids() []inventory.GPUID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []inventory.GPUID
	for _, k := range m.known {
		out = append(out, k.id())
	}
	slices.SortFunc(out, func(a, b inventory.GPUID) int { return a.PCI.Compare(b.PCI) })
	return out
}

// readAll reads all GPUs, each on its own: one that hangs holds up nothing.
func (m *Monitor) readAll(ctx context.Context) {
	for _, id := range m.ids() {
		go m.read(ctx, id)
	}
}

// linksEvery is the least time between two readings of the error counters of a GPU's links: with 18
// links those are four calls of five, and nothing hangs on them at once.
const linksEvery = 25 * time.Second

// read reads one GPU, unless that is under way.
func (m *Monitor) read(ctx context.Context, id inventory.GPUID) {
	m.mu.Lock()
	busy := m.reading[id.PCI]
	m.reading[id.PCI] = true
	links, due := m.known[id.PCI].Links, time.Since(m.linksAt[id.PCI]) >= linksEvery
	m.mu.Unlock()
	if busy {
		return
	}
	if !due {
		links = 0
	}
	v := m.Source.Read(ctx, id, links)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.reading, id.PCI)
	if ctx.Err() != nil || m.records[id.PCI].UUID != id.UUID || errors.Is(v.Err, inventory.ErrNoSuchGPU) {
		return
	}
	last, known := m.vitals[id.PCI]
	switch {
	case !due && known:
		v.LinkErrors = last.LinkErrors
	case due && v.Err == nil:
		m.linksAt[id.PCI] = time.Now()
	}
	m.judge(ctx, id.PCI, v)
}

// judge takes in what was read. The lock is held.
func (m *Monitor) judge(ctx context.Context, at pci.Address, v health.Vitals) {
	if v.Err == nil {
		m.vitals[at], m.readAt[at] = v, time.Now()
		if _, ok := m.errors0[at]; !ok && v.LinkErrors.Err == nil {
			m.errors0[at] = v.LinkErrors.Value
		}
	}
	var known *inventory.GPU
	seen := slices.IndexFunc(m.scanned.GPUs, func(g inventory.GPU) bool { return g.PCI == at })
	if seen >= 0 {
		known = &m.scanned.GPUs[seen]
	}
	look := health.Judge(v, known, m.known[at].Links, m.errors0[at])
	if lost := look.Reach == health.Gone || look.Reach == health.Hangs; lost == (seen >= 0) && look.Reach != health.Fails {
		// The last scan saw it otherwise.
		go m.Look(ctx)
	}
	m.step(ctx, at, look, time.Now())
}

func instancesOf(mig inventory.MIG) health.Instances {
	out := health.Instances{}
	for _, i := range mig.Instances {
		out = append(out, health.PlaceOf(i))
	}
	return out
}

// tell tells of changes, at once and then at most once a gap, and keeps what is known.
func (m *Monitor) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.dirty:
		}
		m.save(ctx)
		m.Changed(ctx)
		timer := time.NewTimer(gap)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
