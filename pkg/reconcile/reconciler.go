package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Journal lists the records; journal.Store is one.
type Journal interface {
	List() ([]*journal.Record, []journal.Bad, error)
}

// Claims asks the API server.
type Claims interface {
	// Standing gives Unknown with an error; it never takes a fault for an answer.
	Standing(ctx context.Context, claim claims.Ref) (Standing, error)
}

// Users knows who has the devices of a record open.
type Users interface {
	Use(ctx context.Context, record *journal.Record) Use
}

// Engine undoes under the locks that prepares take; prepare.Engine is one.
type Engine interface {
	UnprepareIf(ctx context.Context, uid types.UID, still func(context.Context, *journal.Record) bool) (undone bool, err error)
	WithoutRecord(ctx context.Context, uid types.UID, work func(context.Context) error) error
	OnGPU(ctx context.Context, at pci.Address, work func(context.Context, []*journal.Record) error) error
}

// Reporter is told what was done and what is left.
type Reporter interface {
	// OrphanUndone: the claim was undone without the kubelet.
	OrphanUndone(ctx context.Context, claim claims.Ref, reason string)
	// OrphansKept are the claims that are gone and hold devices all the same, with the reason.
	// The list is whole each time.
	OrphansKept(ctx context.Context, kept map[claims.Ref]string)
	// LeftoverRemoved: a thing that nothing accounted for.
	LeftoverRemoved(ctx context.Context, kind, id string)
}

// Config is what a Reconciler works with.
type Config struct {
	Journal Journal
	Claims  Claims
	Users   Users
	Engine  Engine
	Owners  []Owner
	// Renew makes what prepared claims have on the node fit the hardware as it is now; may be nil.
	Renew    func(ctx context.Context) error
	Reporter Reporter
	// Passed is told how long each pass took; may be nil.
	Passed func(took time.Duration)
	// Interval is the time between two passes.
	Interval time.Duration
	// Grace is how long a claim must be gone before it is undone.
	Grace time.Duration
}

// undoLimit bounds what is done about one claim or thing.
const undoLimit = time.Minute

// Reconciler undoes what nobody owns. Run is for one goroutine; Hint may be called by any.
type Reconciler struct {
	Config
	hint chan struct{}
	// since is when each orphan was first seen as one.
	since map[types.UID]time.Time
}

// New makes a Reconciler.
func New(config Config) *Reconciler {
	return &Reconciler{Config: config, hint: make(chan struct{}, 1), since: map[types.UID]time.Time{}}
}

// Hint asks for a pass soon: somebody waits for a device that a claim has.
func (r *Reconciler) Hint() {
	select {
	case r.hint <- struct{}{}:
	default:
	}
}

// hintPause is the least time between two passes, however many hints come.
const hintPause = time.Second

// Run makes passes until the context ends, the first at once.
func (r *Reconciler) Run(ctx context.Context) {
	for {
		begin := time.Now()
		next := r.Pass(ctx)
		if r.Passed != nil {
			r.Passed(time.Since(begin))
		}
		if !sleep(ctx, hintPause, nil) || !sleep(ctx, max(next-hintPause, 0), r.hint) {
			return
		}
	}
}

// sleep returns false when the context ended.
func sleep(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// Pass looks once and acts. It returns the time until the next is due: sooner than the interval
// where a claim's grace ends sooner.
func (r *Reconciler) Pass(ctx context.Context) time.Duration {
	records, _, err := r.Journal.List()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Claims cannot be reconciled: the records cannot be listed")
		return r.Interval
	}
	kept := map[claims.Ref]string{}
	next := r.Interval
	for i, verdict := range Decide(r.observe(ctx, records)) {
		switch verdict.Action {
		case Wait:
			next = min(next, r.Grace)
			klog.FromContext(ctx).V(2).Info("A claim is gone", "claim", klog.KRef(verdict.Claim.Namespace, verdict.Claim.Name), "claimUID", verdict.Claim.UID, "reason", verdict.Reason)
		case InUse:
			kept[verdict.Claim] = verdict.Reason
		case Undo:
			if err := r.undo(ctx, verdict); err != nil {
				kept[verdict.Claim] = fmt.Sprintf("%s, and it cannot be undone: %v", r.reason(records[i]), err)
			}
		case Keep:
		}
	}
	if ctx.Err() != nil {
		return next
	}
	r.Reporter.OrphansKept(ctx, kept)
	r.Sweep(ctx)
	if r.Renew != nil {
		if err := r.Renew(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Not all claims fit the hardware as it is now")
		}
	}
	return next
}

func (r *Reconciler) reason(record *journal.Record) string {
	return fmt.Sprintf("claim %s/%s is gone", record.Namespace, record.Name)
}

// observe asks for what Decide needs. Who uses the devices is asked of orphans alone. After an answer
// that did not come in time the rest is not asked in this pass: an API server that is silent would
// hold up what needs none, for seconds with each claim.
func (r *Reconciler) observe(ctx context.Context, records []*journal.Record) Observation {
	o := Observation{
		Records: records, Standings: map[types.UID]Standing{}, Since: map[types.UID]time.Time{},
		Uses: map[types.UID]Use{}, Now: time.Now(), Grace: r.Grace,
	}
	var silent error
	for _, record := range records {
		standing, err := Unknown, silent
		if silent == nil {
			standing, err = r.Claims.Standing(ctx, refOf(record))
		}
		if errors.Is(err, context.DeadlineExceeded) {
			silent = err
		}
		o.Standings[record.UID] = standing
		if err != nil {
			klog.FromContext(ctx).V(2).Info("It is not known whether a claim is still there", "claimUID", record.UID, "error", err)
			if since, seen := r.since[record.UID]; seen {
				o.Since[record.UID] = since
			}
			continue
		}
		if !standing.Orphan() {
			continue
		}
		since, seen := r.since[record.UID]
		if !seen {
			since = o.Now
		}
		o.Since[record.UID] = since
		o.Uses[record.UID] = r.Users.Use(ctx, record)
	}
	// Those that are not orphans any more start anew if they become it again.
	r.since = o.Since
	return o
}

// undo undoes one claim. Everything is asked again under the claim's lock: meanwhile it may have
// been allocated anew.
func (r *Reconciler) undo(ctx context.Context, v Verdict) error {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	undone, err := r.Engine.UnprepareIf(ctx, v.Claim.UID, func(ctx context.Context, record *journal.Record) bool {
		standing, err := r.Claims.Standing(ctx, refOf(record))
		use := r.Users.Use(ctx, record)
		return err == nil && standing.Orphan() && use.Err == nil && len(use.By) == 0
	})
	if err == nil && undone {
		delete(r.since, v.Claim.UID)
		r.Reporter.OrphanUndone(ctx, v.Claim, v.Reason)
	}
	return err
}

// Sweep removes the Owners' things that nothing accounts for.
func (r *Reconciler) Sweep(ctx context.Context) {
	for _, owner := range r.Owners {
		if err := r.sweep(ctx, owner); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "What nobody owns cannot be removed", "kind", owner.Kind())
		}
	}
}

func (r *Reconciler) sweep(ctx context.Context, owner Owner) error {
	things, err := owner.Things(ctx)
	if err != nil {
		return err
	}
	records, bad, err := r.Journal.List()
	if err != nil {
		return err
	}
	known := map[types.UID]bool{}
	for _, record := range records {
		known[record.UID] = true
	}
	for _, b := range bad {
		known[b.UID] = true
	}
	var errs []error
	for _, thing := range things {
		// A first look without locks; nearly all things are owned.
		if known[thing.Claim] || thing.Claim == "" && accounted(owner, records, thing) {
			continue
		}
		errs = append(errs, r.remove(ctx, owner, thing))
	}
	return errors.Join(errs...)
}

func accounted(owner Owner, records []*journal.Record, thing Thing) bool {
	for _, record := range records {
		if owner.Accounts(record, thing) {
			return true
		}
	}
	return false
}

// remove looks again under the lock that keeps prepares away, and removes.
func (r *Reconciler) remove(ctx context.Context, owner Owner, thing Thing) error {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	removed := false
	work := func(ctx context.Context) error {
		removed = true
		return owner.Remove(ctx, thing)
	}
	unlessAccounted := func(ctx context.Context, records []*journal.Record) error {
		if accounted(owner, records, thing) {
			return nil
		}
		return work(ctx)
	}
	var err error
	switch {
	case thing.Claim != "":
		err = r.Engine.WithoutRecord(ctx, thing.Claim, work)
	case thing.GPU != (pci.Address{}):
		err = r.Engine.OnGPU(ctx, thing.GPU, unlessAccounted)
	default:
		records, bad, listErr := r.Journal.List()
		if err = listErr; err == nil && len(bad) == 0 {
			err = unlessAccounted(ctx, records)
		}
	}
	if errors.Is(err, ErrLater) {
		klog.FromContext(ctx).V(2).Info("What nobody owns stays for now", "kind", owner.Kind(), "id", thing.ID)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", owner.Kind(), thing.ID, err)
	}
	if removed {
		r.Reporter.LeftoverRemoved(ctx, owner.Kind(), thing.ID)
	}
	return nil
}
