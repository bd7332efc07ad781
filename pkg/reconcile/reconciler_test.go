package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is everything that a reconciler sees and does, in memory.
type node struct {
	mu        sync.Mutex // for records
	records   map[types.UID]*journal.Record
	bad       []journal.Bad
	listErr   error
	standings map[types.UID]reconcile.Standing
	errs      map[types.UID]error
	asked     []types.UID
	uses      map[types.UID]reconcile.Use
	undoErr   error
	things    []reconcile.Thing
	removeErr error
	// atLock happens when a lock was taken, before anything is asked again.
	atLock func()
	events []string
}

func newNode() *node {
	return &node{
		records: map[types.UID]*journal.Record{}, standings: map[types.UID]reconcile.Standing{}, errs: map[types.UID]error{},
		uses: map[types.UID]reconcile.Use{}, atLock: func() {},
	}
}

func (n *node) has(uid types.UID, standing reconcile.Standing) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records[uid], n.standings[uid] = record(uid, journal.StatePrepared), standing
}

func (n *node) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.records)
}

func (n *node) List() ([]*journal.Record, []journal.Bad, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*journal.Record
	for _, r := range n.records {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *journal.Record) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return out, n.bad, n.listErr
}

func (n *node) Standing(_ context.Context, claim claims.Ref) (reconcile.Standing, error) {
	n.asked = append(n.asked, claim.UID)
	if err := n.errs[claim.UID]; err != nil {
		return reconcile.Unknown, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.standings[claim.UID], nil
}

func (n *node) Use(_ context.Context, r *journal.Record) reconcile.Use { return n.uses[r.UID] }

func (n *node) UnprepareIf(ctx context.Context, uid types.UID, still func(context.Context, *journal.Record) bool) (bool, error) {
	n.atLock()
	r, ok := n.records[uid]
	if !ok || !still(ctx, r) {
		return false, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.undoErr == nil {
		delete(n.records, uid)
	}
	return true, n.undoErr
}

func (n *node) WithoutRecord(ctx context.Context, uid types.UID, work func(context.Context) error) error {
	n.atLock()
	if n.records[uid] != nil {
		return nil
	}
	return work(ctx)
}

func (n *node) OnGPU(ctx context.Context, _ pci.Address, work func(context.Context, []*journal.Record) error) error {
	n.atLock()
	records, _, _ := n.List()
	return work(ctx, records)
}

func (n *node) Kind() string { return "thing" }
func (n *node) Things(context.Context) ([]reconcile.Thing, error) {
	return slices.Clone(n.things), n.undoErr
}

func (n *node) Accounts(r *journal.Record, t reconcile.Thing) bool {
	return strings.HasPrefix(t.ID, string(r.UID))
}

func (n *node) Remove(_ context.Context, gone reconcile.Thing) error {
	if n.removeErr == nil {
		n.things = slices.DeleteFunc(n.things, func(t reconcile.Thing) bool { return t == gone })
	}
	return n.removeErr
}

func (n *node) OrphanUndone(_ context.Context, c claims.Ref, reason string) {
	n.events = append(n.events, fmt.Sprintf("undone %s: %s", c.UID, reason))
}

func (n *node) OrphansKept(_ context.Context, kept map[claims.Ref]string) {
	for c, reason := range kept {
		n.events = append(n.events, fmt.Sprintf("kept %s: %s", c.UID, reason))
	}
}

func (n *node) LeftoverRemoved(_ context.Context, kind, id string) {
	n.events = append(n.events, fmt.Sprintf("removed %s %s", kind, id))
}

func (n *node) reconciler(grace time.Duration) *reconcile.Reconciler {
	return reconcile.New(reconcile.Config{
		Journal: n, Claims: n, Users: n, Engine: n, Owners: []reconcile.Owner{n}, Reporter: n,
		Interval: time.Minute, Grace: grace,
	})
}

func (n *node) saw(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, n.events); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	n.events = nil
}

// Gone claims go after their grace, others stay; a program that ends frees the claim.
func TestPassesOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.has("here", reconcile.Current)
		n.has("gone", reconcile.Deleted)
		n.has("used", reconcile.Replaced)
		n.has("away", reconcile.Deleted)
		n.errs["away"] = errors.New("connection refused")
		n.uses["used"] = reconcile.Use{By: []string{"process 7"}}
		r := n.reconciler(30 * time.Second)
		if next := r.Pass(t.Context()); next != 30*time.Second {
			t.Errorf("next pass after %s, want the grace", next)
		}
		n.saw(t)
		time.Sleep(30 * time.Second)
		r.Pass(t.Context())
		n.saw(t, "undone gone: it does not exist any more", "kept used: another claim has its name, but its devices are in use by process 7")
		delete(n.uses, "used")
		r.Pass(t.Context())
		n.saw(t, "undone used: another claim has its name")
		delete(n.errs, "away")
		r.Pass(t.Context())
		n.saw(t) // its grace begins now
		time.Sleep(30 * time.Second)
		r.Pass(t.Context())
		n.saw(t, "undone away: it does not exist any more")
		if len(n.records) != 1 || n.records["here"] == nil {
			t.Errorf("records left: %v", n.records)
		}
	})
}

// An API server that is silent holds a pass up for one question, and no grace begins anew.
func TestASilentAPIServerIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		for _, uid := range []types.UID{"a", "b", "c"} {
			n.has(uid, reconcile.Deleted)
		}
		n.errs["a"] = errors.New("forbidden") // an answer
		r := n.reconciler(30 * time.Second)
		r.Pass(t.Context())
		time.Sleep(30 * time.Second)
		n.asked, n.errs["b"] = nil, fmt.Errorf("get claim ns/c-b: %w", context.DeadlineExceeded)
		n.things = []reconcile.Thing{{ID: "1", Claim: "gone"}}
		r.Pass(t.Context())
		n.saw(t, "removed thing 1")
		if diff := cmp.Diff([]types.UID{"a", "b"}, n.asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		delete(n.errs, "b")
		r.Pass(t.Context())
		n.saw(t, "undone b: it does not exist any more", "undone c: it does not exist any more")
	})
}

// A claim that is wanted again between the look and the lock stays.
func TestWhatChangesBeforeTheLockIsSeen(t *testing.T) {
	for name, change := range map[string]func(*node){
		"allocated again":  func(n *node) { n.standings["u"] = reconcile.Current },
		"API away":         func(n *node) { n.errs["u"] = errors.New("connection refused") },
		"opened":           func(n *node) { n.uses["u"] = reconcile.Use{By: []string{"process 7"}} },
		"use not known":    func(n *node) { n.uses["u"] = reconcile.Use{Err: errors.New("hangs")} },
		"unprepared since": func(n *node) { delete(n.records, "u") },
	} {
		n := newNode()
		n.has("u", reconcile.Released)
		n.atLock = func() { change(n) }
		n.reconciler(0).Pass(t.Context())
		if len(n.events) > 0 {
			t.Errorf("%s: %v", name, n.events)
		}
	}
}

func TestWhatCannotBeUndoneIsToldAndTriedAgain(t *testing.T) {
	n := newNode()
	n.has("u", reconcile.Deleted)
	n.undoErr = errors.New("destroy: in use")
	r := n.reconciler(0)
	r.Pass(t.Context())
	n.saw(t, "kept u: claim ns/c-u is gone, and it cannot be undone: destroy: in use")
	n.undoErr = nil
	r.Pass(t.Context())
	n.saw(t, "undone u: it does not exist any more")
}

// Without a list of the records nothing is known, so nothing is done.
func TestAJournalThatCannotBeListed(t *testing.T) {
	n := newNode()
	n.has("u", reconcile.Deleted)
	n.listErr = errors.New("I/O error")
	n.things = []reconcile.Thing{{ID: "x", Claim: "x"}}
	r := n.reconciler(0)
	r.Pass(t.Context())
	r.Sweep(t.Context())
	n.saw(t)
}

func TestThingsThatNothingAccountsForAreRemoved(t *testing.T) {
	gpu := pci.Address{Bus: 3}
	n := newNode()
	n.has("here", reconcile.Current)
	n.bad = []journal.Bad{{UID: "torn"}}
	n.things = []reconcile.Thing{
		{ID: "1", Claim: "here"},
		{ID: "2", Claim: "gone"},
		{ID: "3", Claim: "torn"}, // a record that cannot be read is a record
		{ID: "here/4", GPU: gpu},
		{ID: "gone/5", GPU: gpu},
	}
	n.reconciler(0).Sweep(t.Context())
	n.saw(t, "removed thing 2", "removed thing gone/5")
	n.bad = nil
	n.things = append(n.things, reconcile.Thing{ID: "gone/6"}, reconcile.Thing{ID: "here/7"})
	// A prepare that came before the lock accounts for it.
	n.things = append(n.things, reconcile.Thing{ID: "new/8", GPU: gpu}, reconcile.Thing{ID: "9", Claim: "new"})
	n.atLock = func() { n.has("new", reconcile.Current) }
	n.reconciler(0).Sweep(t.Context())
	n.saw(t, "removed thing 3", "removed thing gone/6")
}

// What an Owner leaves for later is not told as removed, and is tried again.
func TestWhatIsLeftForLaterIsNotToldAsRemoved(t *testing.T) {
	n := newNode()
	n.things = []reconcile.Thing{{ID: "1", Claim: "gone"}, {ID: "2", GPU: pci.Address{Bus: 3}}, {ID: "3"}}
	n.removeErr = fmt.Errorf("no GPU driver: %w", reconcile.ErrLater)
	r := n.reconciler(0)
	r.Sweep(t.Context())
	n.saw(t)
	n.removeErr = nil
	r.Sweep(t.Context())
	n.saw(t, "removed thing 1", "removed thing 2", "removed thing 3")
}

// The first pass comes at once, the next after the interval or a hint, never two within a second.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		r := n.reconciler(0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		healed := func() time.Duration {
			begin := time.Now()
			n.has("u", reconcile.Deleted)
			for n.count() > 0 {
				time.Sleep(100 * time.Millisecond)
			}
			return time.Since(begin).Round(time.Second)
		}
		time.Sleep(2 * time.Second)
		if took := healed(); took != 58*time.Second {
			t.Errorf("without a hint it took %s", took)
		}
		time.Sleep(20 * time.Second)
		for range 3 {
			r.Hint()
		}
		if took := healed(); took != 0 {
			t.Errorf("with a hint it took %s", took)
		}
		cancel()
		<-done
	})
}
