package claimstatus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applyresource "k8s.io/client-go/applyconfigurations/resource/v1"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/claimstatus"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/topology"
)

const (
	driver = "gpu.nvidia.com"
	pool   = "node-1"
	other  = "net.example.com"
)

// cluster stands for the API server: it holds claims, and how it answers.
type cluster struct {
	mu     sync.Mutex
	claims map[string]*resourceapi.ResourceClaim
	// fail is the answer to writes, away to everything; drop has it keep nothing of what it takes.
	fail, away error
	drop       bool
	// before is called before a write.
	before        func(c *resourceapi.ResourceClaim)
	reads, writes int
	version       int
}

func (c *cluster) Get(_ context.Context, name string, _ metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	if c.away != nil {
		return nil, c.away
	}
	found, ok := c.claims[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
	}
	return found.DeepCopy(), nil
}

func (c *cluster) ApplyStatus(_ context.Context, a *applyresource.ResourceClaimApplyConfiguration, o metav1.ApplyOptions) (*resourceapi.ResourceClaim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stored, ok := c.claims[*a.Name]
	if ok && c.before != nil {
		c.before(stored)
	}
	switch {
	case c.fail != nil:
		return nil, c.fail
	case !ok || o.FieldManager != driver || !o.Force:
		return nil, fmt.Errorf("claim %q, options %+v", *a.Name, o)
	case *a.ResourceVersion != stored.ResourceVersion:
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "resourceclaims"}, *a.Name, errors.New("changed"))
	}
	c.writes++
	var kept []resourceapi.AllocatedDeviceStatus
	for _, d := range stored.Status.Devices {
		if d.Driver != driver {
			kept = append(kept, d)
		}
	}
	for _, d := range a.Status.Devices {
		cond := d.Conditions[0]
		kept = append(kept, resourceapi.AllocatedDeviceStatus{
			Driver: *d.Driver, Pool: *d.Pool, Device: *d.Device, ShareID: d.ShareID,
			Conditions: []metav1.Condition{{Type: *cond.Type, Status: *cond.Status, Reason: *cond.Reason, Message: *cond.Message, LastTransitionTime: *cond.LastTransitionTime}},
		})
	}
	if !c.drop {
		stored.Status.Devices = kept
	}
	c.touch(stored)
	return stored.DeepCopy(), nil
}

func (c *cluster) touch(claim *resourceapi.ResourceClaim) {
	c.version++
	claim.ResourceVersion = fmt.Sprint(c.version)
}

// bench is a node with a writer, and what it works from.
type bench struct {
	cluster

	t        *testing.T
	writer   *claimstatus.Writer
	records  []*journal.Record
	names    []string
	gpus     []inventory.GPU
	verdicts map[pci.Address]health.Verdict
	refused  error
	unlooked bool
	broken   error
}

func (b *bench) List() ([]*journal.Record, []journal.Bad, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records, nil, b.broken
}

func (b *bench) looked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.unlooked
}

// change changes something while the writer runs.
func (b *bench) change(how func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	how()
}

func (b *bench) ClaimStatusRefused(_ context.Context, err error) { b.refused = err }

// newBench has two prepared claims: "one" with GPUs 0 and 1, "two" with GPU 2, which a device of
// another driver goes with.
func newBench(t *testing.T) *bench {
	snapshot := inventorytest.T4()
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	b := &bench{t: t, cluster: cluster{claims: map[string]*resourceapi.ResourceClaim{}}, gpus: snapshot.GPUs, verdicts: map[pci.Address]health.Verdict{}}
	devices := map[string]device.Device{}
	for _, d := range device.FromSnapshot(snapshot, assignment) {
		devices[d.Name()] = d
		b.names = append(b.names, d.Name())
	}
	b.writer = claimstatus.New(claimstatus.Config{
		Driver: driver, Pool: pool, Records: b, Reporter: b, In: func(string) claimstatus.Claims { return b },
		Devices: func() (map[string]device.Device, bool) { return devices, b.looked() },
		Judge:   func(at pci.Address, _ *health.Place) health.Verdict { return b.verdicts[at] },
	})
	b.prepare("one", b.names[0], b.names[1])
	b.prepare("two", b.names[2])
	b.claims["two"].Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: other, Pool: pool, Device: "nic"}}
	return b
}

func (b *bench) prepare(name string, devices ...string) *journal.Record {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	b.touch(claim)
	b.claims[name] = claim
	r := &journal.Record{Name: name, UID: types.UID(name), State: journal.StatePrepared}
	for _, d := range devices {
		r.Devices = append(r.Devices, journal.Device{Name: d, Pool: pool})
	}
	b.records = append(b.records, r)
	return r
}

func (b *bench) run() {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() { b.writer.Run(ctx); close(done) }()
	b.t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
}

// hint has the writer look, and waits until it did.
func (b *bench) hint() {
	time.Sleep(time.Second)
	b.writer.Hint()
	synctest.Wait()
}

func (b *bench) ill(gpu int, s health.Severity, code string) {
	b.verdicts[b.gpus[gpu].PCI] = health.Verdict{Faults: []health.Fault{{Kind: health.XID, Code: code, Severity: s, Means: "it is ill", Count: 3}}}
}

// say are the conditions that a claim has, as "device status reason".
func (b *bench) say(name string) []string {
	var out []string
	for _, d := range b.claims[name].Status.Devices {
		text := d.Driver + " " + d.Device
		for _, c := range d.Conditions {
			text = fmt.Sprint(d.Device, " ", c.Status, " ", c.Reason)
		}
		out = append(out, text)
	}
	return out
}

func (b *bench) expect(what, name string, want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.say(name)); diff != "" {
		b.t.Errorf("%s: claim %s (-want +got):\n%s", what, name, diff)
	}
}

func TestConditionsFollowHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run()
		b.expect("prepared", "one", b.names[0]+" True Healthy", b.names[1]+" True Healthy")
		b.expect("beside another driver's", "two", other+" nic", b.names[2]+" True Healthy")
		since := b.claims["one"].Status.Devices[1].Conditions[0].LastTransitionTime

		b.ill(1, health.Note, "13")
		b.hint()
		b.expect("a note", "one", b.names[0]+" True Healthy", b.names[1]+" True XID13")
		if got := b.claims["one"].Status.Devices[1].Conditions[0].LastTransitionTime; !got.Equal(&since) {
			t.Errorf("the status is the same, and its time changed from %v to %v", since, got)
		}
		b.ill(1, health.Evict, "79")
		b.hint()
		b.expect("ill", "one", b.names[0]+" True Healthy", b.names[1]+" False XID79")
		sick := b.claims["one"].Status.Devices[1].Conditions[0]
		if !sick.LastTransitionTime.After(since.Time) || sick.Message == "" {
			t.Errorf("%+v, after %v", sick, since)
		}
		b.verdicts[b.gpus[0].PCI] = health.Verdict{Faults: []health.Fault{{Kind: health.Unmonitored, Severity: health.Note}}}
		delete(b.verdicts, b.gpus[1].PCI)
		b.hint()
		b.expect("well, and not watched", "one", b.names[0]+" Unknown Unmonitored", b.names[1]+" True Healthy")
	})
}

func TestEqualIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run()
		reads, writes := b.reads, b.writes
		f := health.Fault{Kind: health.XID, Code: "79", Severity: health.Evict}
		for i := range 5 {
			f.Count = i
			b.verdicts[b.gpus[0].PCI] = health.Verdict{Faults: []health.Fault{f}, Recovering: time.Unix(int64(i), 0)}
			b.hint()
		}
		if b.reads != reads+1 || b.writes != writes+1 {
			t.Errorf("%d reads and %d writes for one change", b.reads-reads, b.writes-writes)
		}
		// Another process takes over and finds all as it should be.
		next := claimstatus.New(b.writer.Config)
		writes = b.writes
		ctx, stop := context.WithCancel(t.Context())
		go next.Run(ctx)
		synctest.Wait()
		stop()
		if b.writes != writes {
			t.Errorf("%d writes of what the claims say already", b.writes-writes)
		}
	})
}

func TestUnpreparedIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		begun := b.prepare("begun", b.names[3])
		begun.State = journal.StateStarted
		b.run()
		b.expect("only begun", "begun")
		begun.State = journal.StatePrepared
		b.hint()
		b.expect("prepared", "begun", b.names[3]+" True Healthy")
		begun.State = journal.StateStarted
		b.hint()
		b.expect("made anew", "begun", b.names[3]+" True Healthy")
		b.records = nil
		b.claims["one"].UID = "another of that name"
		b.claims["one"].Status.Devices = nil
		b.hint()
		b.expect("another claim", "one")
		b.expect("unprepared, and still allocated", "two", other+" nic")
		b.expect("unprepared", "begun")
		reads := b.reads
		b.hint()
		if b.reads != reads {
			t.Errorf("%d reads of claims that are done with", b.reads-reads)
		}
	})
}

func TestClaimsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		delete(b.claims, "one")
		b.claims["two"].Status.Allocation = nil
		b.run()
		if b.refused != nil || b.writes != 0 {
			t.Errorf("%d writes, refused: %v", b.writes, b.refused)
		}
	})
}

// A claim that changes between reading and writing is read again.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		once := true
		b.before = func(c *resourceapi.ResourceClaim) {
			if once {
				once = false
				b.touch(c)
			}
		}
		b.run()
		b.expect("after a conflict", "one", b.names[0]+" True Healthy", b.names[1]+" True Healthy")
		b.expect("the other", "two", other+" nic", b.names[2]+" True Healthy")
	})
}

func TestRefusals(t *testing.T) {
	for name, refuse := range map[string]func(*bench){
		"not allowed":  func(b *bench) { b.fail = apierrors.NewForbidden(schema.GroupResource{}, "one", errors.New("no")) },
		"not kept":     func(b *bench) { b.drop = true },
		"not readable": func(b *bench) { b.away = apierrors.NewForbidden(schema.GroupResource{}, "one", errors.New("no")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				refuse(b)
				b.run()
				if b.refused == nil {
					t.Fatal("nobody was told")
				}
				reads := b.reads
				for range 10 {
					b.hint()
				}
				if b.reads != reads || reads != 1 {
					t.Errorf("asked %d times, then %d times more", reads, b.reads-reads)
				}
				b.change(func() { b.fail, b.drop, b.away = nil, false, nil })
				time.Sleep(15 * time.Minute)
				synctest.Wait()
				if b.refused != nil {
					t.Errorf("still told as refused: %v", b.refused)
				}
				b.expect("allowed at last", "one", b.names[0]+" True Healthy", b.names[1]+" True Healthy")
				b.expect("and", "two", other+" nic", b.names[2]+" True Healthy")
			})
		})
	}
}

// What fails for a time is tried again without a hint.
func TestTrouble(t *testing.T) {
	for name, trouble := range map[string]func(*bench) func(){
		"the API server is away": func(b *bench) func() { b.away = errors.New("away"); return func() { b.away = nil } },
		"records cannot be read": func(b *bench) func() { b.broken = errors.New("disk"); return func() { b.broken = nil } },
		"nothing was looked at":  func(b *bench) func() { b.unlooked = true; return func() { b.unlooked = false } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				end := trouble(b)
				b.run()
				b.expect("in trouble", "one")
				b.change(end)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				b.expect("after it", "one", b.names[0]+" True Healthy", b.names[1]+" True Healthy")
				if b.refused != nil {
					t.Errorf("told as refused: %v", b.refused)
				}
			})
		})
	}
}

// While the API server is away a node with many claims asks for some, and logs no more.
func TestManyClaimsInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for i := range 200 {
			b.prepare(fmt.Sprint("claim-", i), b.names[3])
		}
		b.away = errors.New("away")
		b.run()
		if b.reads < 1 || b.reads > 5 {
			t.Errorf("%d requests at once", b.reads)
		}
		b.change(func() { b.away = nil })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for i := range 200 {
			b.expect("after it", fmt.Sprint("claim-", i), b.names[3]+" True Healthy")
		}
	})
}

func TestOddDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		r := b.prepare("odd", b.names[0], b.names[0], "not-there", "elsewhere", b.names[3])
		r.Devices[3].Pool = "another"
		r.Devices[4].Was = "gpu-3"
		share := types.UID("share")
		r.Devices[1].ShareID = &share
		b.records = append(b.records, &journal.Record{Name: "twice", UID: "twice", State: journal.StatePrepared, Devices: []journal.Device{
			{Name: b.names[0], Pool: pool, Request: "a"}, {Name: b.names[0], Pool: pool, Request: "b", AdminAccess: true},
		}})
		b.claims["twice"] = b.claims["odd"].DeepCopy()
		b.claims["twice"].Name, b.claims["twice"].UID = "twice", "twice"
		b.run()
		b.expect("of a former driver, shared, and missing", "odd",
			b.names[0]+" True Healthy", b.names[0]+" True Healthy", "gpu-3 True Healthy", "not-there Unknown NotFound")
		b.expect("with admin access, too", "twice", b.names[0]+" True Healthy")
	})
}

type calls struct{ made []string }

func (c *calls) Prepare(context.Context, claims.Plan) ([]prepare.Prepared, error) {
	c.made = append(c.made, "prepare")
	return nil, errors.New("refused")
}

func (c *calls) Unprepare(context.Context, claims.Ref) error {
	c.made = append(c.made, "unprepare")
	return nil
}

func TestHintsComeAfterCalls(t *testing.T) {
	c := &calls{}
	h := claimstatus.Hints{Preparer: c, Hint: func() { c.made = append(c.made, "hint") }}
	if _, err := h.Prepare(t.Context(), claims.Plan{}); err == nil {
		t.Error("the error is lost")
	}
	if err := h.Unprepare(t.Context(), claims.Ref{}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"prepare", "hint", "unprepare", "hint"}, c.made); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNilWriter(t *testing.T) {
	var w *claimstatus.Writer
	w.Hint()
	w.Run(t.Context())
}
