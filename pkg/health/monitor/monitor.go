// Package monitor keeps the health of a node's GPUs up to date: it has them watched and read, feeds
// what comes of it to package health, remembers it over restarts, and tells when the verdict on
// anything has changed. It is for the agent, which runs it in the one instance of the plugin that
// publishes. It must not know NVML, how a verdict is published, or the API server.
package monitor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Source watches and reads GPUs; vitals.Reader is one.
type Source interface {
	// Watch tells whenever other GPUs are deaf, and before all else.
	Watch(ctx context.Context, gpus []inventory.GPUID, listening func(deaf map[inventory.GPUID]error), tell func(vitals.Event)) error
	Read(ctx context.Context, gpu inventory.GPUID, links int) health.Vitals
}

// Partitions tells what GPU instances there are now; nvml.Library does.
type Partitions interface {
	MIG(ctx context.Context, gpu inventory.GPUID) (inventory.MIG, error)
}

// Holders tells whether a claim has something of a GPU.
type Holders interface {
	Held(at pci.Address) bool
}

// Reporter is told what became of devices.
type Reporter interface {
	// Judged tells that the verdict on a GPU as a whole changed, from one to another.
	Judged(ctx context.Context, at pci.Address, before, after health.Verdict)
	// Noticed tells of each error that the driver reported, whatever it means.
	Noticed(ctx context.Context, at pci.Address, xid int, rule health.Rule)
}

// Config is what a Monitor works with.
type Config struct {
	Rules      health.Rules
	Source     Source
	Partitions Partitions
	Holders    Holders
	Store      Store
	Reporter   Reporter
	// Interval is the time between two readings of each GPU.
	Interval time.Duration
	// Changed is called when a verdict may have changed, at most twice a second.
	Changed func(ctx context.Context)
	// Selection says which GPUs are served. Others are not watched, whatever an earlier run knew of them.
	Selection selection.Selection
	// Look asks for a scan of the hardware, when a GPU seems to be lost or to have come back.
	Look func(ctx context.Context)
}

// Monitor is safe for concurrent use. Until Run it knows only what it was told.
type Monitor struct {
	Config
	// dirty and restart hold at most one wish each: to tell of changes, to watch other GPUs.
	dirty, restart chan struct{}

	mu      sync.Mutex
	leading bool
	// loaded tells that what an earlier run knew was taken in; it stays when leading ends.
	loaded bool
	// known are the GPUs as they were when they last worked, records and vitals what there is of them.
	known   map[pci.Address]Known
	records map[pci.Address]health.Record
	vitals  map[pci.Address]health.Vitals
	// readAt is when the vitals were read.
	readAt map[pci.Address]time.Time
	// linksAt is when the error counters of the links were read.
	linksAt map[pci.Address]time.Time
	// errors0 are the link errors that each GPU had when it was first read.
	errors0 map[pci.Address]uint64
	// scanned is the last look at the hardware.
	scanned inventory.Snapshot
	// placed are the instances that errors were placed in since then: the look that is under way
	// may have begun before they were made.
	placed map[pci.Address]health.Instances
	// reading are the GPUs that are being read.
	reading map[pci.Address]bool
	saved   string
	changes chan struct{}
}

// Known is a GPU as it was when it last worked.
type Known struct {
	GPU inventory.GPU `json:"gpu"`
	// Links is the greatest number of links that were up.
	Links int `json:"links,omitzero"`
}

func (k Known) id() inventory.GPUID { return inventory.GPUID{PCI: k.GPU.PCI, UUID: k.GPU.UUID} }

// New makes a Monitor that knows no GPU.
func New(config Config) *Monitor {
	return &Monitor{
		Config: config, dirty: make(chan struct{}, 1), restart: make(chan struct{}, 1), changes: make(chan struct{}),
		known: map[pci.Address]Known{}, records: map[pci.Address]health.Record{}, vitals: map[pci.Address]health.Vitals{},
		readAt: map[pci.Address]time.Time{}, linksAt: map[pci.Address]time.Time{}, errors0: map[pci.Address]uint64{}, placed: map[pci.Address]health.Instances{}, reading: map[pci.Address]bool{},
	}
}

// Lead takes over: what an earlier run of the plugin knew counts from now on. It returns before
// anything is watched, so that nothing is published that an earlier run knew to be ill. What cannot
// be loaded is logged, and then nothing was known.
func (m *Monitor) Lead(ctx context.Context) {
	state, err := m.Store.Load()
	if err != nil {
		klog.FromContext(ctx).Error(err, "What was known of the GPUs' health cannot be read; starting anew")
	}
	m.mu.Lock()
	m.leading, m.loaded = true, true
	excluded := map[pci.Address]bool{}
	for _, k := range state.Known {
		id := selection.Identity{PCI: k.GPU.PCI, UUID: k.GPU.UUID, Product: k.GPU.ProductName}
		excluded[k.GPU.PCI] = m.Selection.Verdict(id) == selection.Excluded
		if _, ok := m.known[k.GPU.PCI]; !ok && !excluded[k.GPU.PCI] {
			m.known[k.GPU.PCI] = k
		}
	}
	for _, r := range state.Records {
		if excluded[r.PCI] {
			continue
		}
		r = health.Reclassified(r, m.Rules.Table)
		if state.Rebooted {
			r = health.Rebooted(r)
		}
		m.records[r.PCI] = r
	}
	scanned := m.scanned
	m.mu.Unlock()
	m.Scanned(ctx, scanned)
}

// Leads tells whether this instance watches.
func (m *Monitor) Leads() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leading
}

// Run watches and reads until the context ends.
func (m *Monitor) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { m.watch(ctx) })
	group.Go(func() { m.tell(ctx) })
	m.poll(ctx)
	group.Wait()
	select {
	case <-m.dirty:
		// What came since changes were last told would be forgotten.
		m.save(context.WithoutCancel(ctx))
	default:
	}
	m.mu.Lock()
	m.leading = false
	m.mu.Unlock()
}

// Scanned is told of each look at the hardware.
func (m *Monitor) Scanned(ctx context.Context, s inventory.Snapshot) {
	if !s.Driver.Present {
		// It says nothing about the GPUs.
		return
	}
	now := time.Now()
	m.mu.Lock()
	m.scanned = s
	before := slices.Collect(maps.Keys(m.known))
	for _, g := range s.GPUs {
		m.meet(g)
		m.step(ctx, g.PCI, append(instancesOf(g.MIG), m.placed[g.PCI]...), now)
	}
	clear(m.placed)
	failing := map[pci.Address]bool{}
	for _, u := range s.Unusable {
		if _, ok := m.known[u.PCI]; ok && u.Cause != inventory.CauseWithheld {
			failing[u.PCI] = true
			m.step(ctx, u.PCI, lookOf(u), now)
		}
	}
	for at := range m.known {
		if failing[at] || slices.ContainsFunc(s.GPUs, func(g inventory.GPU) bool { return g.PCI == at }) {
			continue
		}
		// It left, or somebody withholds it. What runs on it must still be seen to be ill.
		if m.Holders.Held(at) && !slices.Contains(s.Excluded, at) {
			m.step(ctx, at, health.Look{Reach: health.Gone}, now)
			continue
		}
		delete(m.known, at)
		delete(m.records, at)
		delete(m.vitals, at)
		delete(m.readAt, at)
		delete(m.linksAt, at)
		m.mark()
	}
	changed := len(before) != len(m.known)
	m.mu.Unlock()
	if changed {
		wish(m.restart)
	}
}

func lookOf(u inventory.Unusable) health.Look {
	if u.Cause == inventory.CauseHung {
		return health.Look{Reach: health.Hangs}
	}
	return health.Look{Reach: health.Gone}
}

// meet takes in a GPU that works. The lock is held.
func (m *Monitor) meet(g inventory.GPU) {
	up := 0
	for _, l := range g.NVLink.Links {
		if l.Active {
			up++
		}
	}
	k, ok := m.known[g.PCI]
	if ok && k.GPU.UUID != g.UUID {
		// Another board: nothing of the old one counts.
		delete(m.records, g.PCI)
		delete(m.errors0, g.PCI)
		delete(m.vitals, g.PCI)
		delete(m.readAt, g.PCI)
		delete(m.linksAt, g.PCI)
		k = Known{}
		wish(m.restart)
	}
	m.known[g.PCI] = Known{GPU: g, Links: max(k.Links, up)}
	if r, ok := m.records[g.PCI]; !ok || r.UUID != g.UUID {
		m.records[g.PCI] = health.Record{GPUID: inventory.GPUID{PCI: g.PCI, UUID: g.UUID}}
	}
}

// step takes an observation in and marks what is new. The lock is held.
func (m *Monitor) step(ctx context.Context, at pci.Address, o health.Observation, now time.Time) {
	before := m.records[at]
	after := health.Step(before, o, m.Rules, now)
	m.records[at] = after
	if sameFaults(before, after) {
		return
	}
	old, fresh := before.Verdict(nil, m.Rules.Timing), after.Verdict(nil, m.Rules.Timing)
	if old.Severity() != fresh.Severity() || old.Reason() != fresh.Reason() {
		m.Reporter.Judged(ctx, at, old, fresh)
	}
	m.mark()
}

// sameFaults tells whether nothing changed that anybody is told of.
func sameFaults(a, b health.Record) bool {
	return slices.EqualFunc(a.Faults, b.Faults, func(f, g health.Fault) bool {
		return f.Kind == g.Kind && f.Code == g.Code && f.Severity == g.Severity && f.On == g.On && f.Count == g.Count && f.Old == g.Old &&
			(f.Place == nil) == (g.Place == nil) && (f.Place == nil || *f.Place == *g.Place) && f.Detail == g.Detail
	})
}

// mark tells those who wait that something changed. The lock is held.
func (m *Monitor) mark() {
	close(m.changes)
	m.changes = make(chan struct{})
	wish(m.dirty)
}

func wish(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Changes is closed at the next change of anything.
func (m *Monitor) Changes() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes
}

// Verdict is what is wrong with a GPU, or with the GPU instance at a place of it. Before Lead
// nothing is.
func (m *Monitor) Verdict(at pci.Address, place *health.Place) health.Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leading {
		return health.Verdict{}
	}
	return m.records[at].Verdict(place, m.Rules.Timing)
}

// Retained gives a snapshot with the GPUs that are missing in it because they are ill, as they were
// when they last worked, but without links: they are published, with their taints, while nobody
// can get them.
func (m *Monitor) Retained(s inventory.Snapshot) inventory.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leading || !s.Driver.Present {
		return s
	}
	gpus := slices.Clone(s.GPUs)
	for at, k := range m.known {
		if slices.ContainsFunc(s.GPUs, func(g inventory.GPU) bool { return g.PCI == at }) {
			continue
		}
		if m.records[at].Verdict(nil, m.Rules.Timing).Severity() < health.Avoid {
			continue
		}
		g := k.GPU
		g.NVLink, g.Fabric = inventory.NVLink{}, inventory.Fabric{}
		gpus = append(gpus, g)
	}
	slices.SortFunc(gpus, func(a, b inventory.GPU) int { return a.PCI.Compare(b.PCI) })
	s.GPUs = gpus
	return s
}

// Well tells whether no GPU has a fault that a later run of the plugin must know of. Before Lead
// nobody can tell: an earlier run may have kept some.
func (m *Monitor) Well() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if len(r.Faults) > 0 {
			return false
		}
	}
	return m.loaded
}

// Patient is one GPU with all that is known of how it is.
type Patient struct {
	GPU     inventory.GPU
	Record  health.Record
	Verdict health.Verdict
	Vitals  health.Vitals
	// ReadAt is when the vitals were read; zero where that never succeeded.
	ReadAt time.Time
	// Links is the greatest number of NVLinks that were up.
	Links int
}

// Patients are all known GPUs, in bus order.
func (m *Monitor) Patients() []Patient {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Patient
	for at, k := range m.known {
		r := m.records[at]
		out = append(out, Patient{
			GPU: k.GPU, Record: r, Verdict: r.Verdict(nil, m.Rules.Timing), Vitals: m.vitals[at], ReadAt: m.readAt[at], Links: k.Links,
		})
	}
	slices.SortFunc(out, func(a, b Patient) int { return a.GPU.PCI.Compare(b.GPU.PCI) })
	return out
}
