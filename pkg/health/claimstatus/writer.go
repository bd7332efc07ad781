package claimstatus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health/taints"
	"github.com/gpu-dra/driver/pkg/journal"
)

const (
	// gap is the least time between two looks at the records: calls come in bursts.
	gap = 200 * time.Millisecond
	// regularly is the time between two looks that nobody asked for: the other instance of an
	// update prepares, too.
	regularly = time.Minute
	// again is how long after a failure it is tried again, and denied how long after the cluster
	// said that it does not want it.
	again  = 10 * time.Second
	denied = 10 * time.Minute
	// attempts bounds how often a claim that keeps changing is read again at once.
	attempts = 3
	// enough is how many claims may fail until a pass ends: what all of them fail of is not asked for,
	// waited for and logged once for each.
	enough = 3
)

// Records lists the claims that are prepared on this node; journal.Store does.
type Records interface {
	List() ([]*journal.Record, []journal.Bad, error)
}

// Reporter is told why the cluster does not take the conditions; nil when it does.
type Reporter interface {
	ClaimStatusRefused(ctx context.Context, err error)
}

// Config is what a Writer works with.
type Config struct {
	// Driver and Pool are those of this node's devices.
	Driver, Pool string
	Records      Records
	Judge        taints.Judge
	// Devices are all devices of the node, by name; false while the hardware was not looked at.
	Devices func() (map[string]device.Device, bool)
	// In gives the claims of a namespace.
	In       func(namespace string) Claims
	Reporter Reporter
}

// Writer writes the conditions. Its Hint may be called at any time, from anywhere. A nil Writer
// writes nothing.
type Writer struct {
	Config
	// wishes holds at most one wish to look.
	wishes chan struct{}
	// written is what the API server holds, by claim, as far as it is known. It and those below are
	// for the one goroutine that runs.
	written map[claims.Ref][]entry
	// refused is when the cluster last refused.
	refused time.Time
}

// entry is the condition of one device of a claim.
type entry struct {
	device, share string
	metav1.Condition
}

func (e entry) compare(f entry) int {
	return cmp.Or(cmp.Compare(e.device, f.device), cmp.Compare(e.share, f.share))
}

// says tells whether a condition says what the entry does, whenever that began.
func (e entry) says(c *metav1.Condition) bool {
	return c != nil && c.Status == e.Status && c.Reason == e.Reason && c.Message == e.Message
}

// New makes a Writer.
func New(c Config) *Writer {
	return &Writer{Config: c, wishes: make(chan struct{}, 1), written: map[claims.Ref][]entry{}}
}

// Hint has the writer look soon: a claim was prepared or unprepared, or the health of a device
// changed. It does not wait.
func (w *Writer) Hint() {
	if w == nil {
		return
	}
	select {
	case w.wishes <- struct{}{}:
	default:
	}
}

// Run writes until the context ends.
func (w *Writer) Run(ctx context.Context) {
	if w == nil {
		return
	}
	w.Hint()
	for {
		timer := time.NewTimer(regularly)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-w.wishes:
		}
		timer.Stop()
		pause := gap
		if err := w.pass(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Not all claims say how their devices are; trying again")
			pause = again
			w.Hint()
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// pass brings all claims in line.
func (w *Writer) pass(ctx context.Context) error {
	if !w.refused.IsZero() && time.Since(w.refused) < denied {
		return nil
	}
	devices, looked := w.Devices()
	if !looked {
		return nil
	}
	records, _, err := w.Records.List()
	if err != nil {
		return fmt.Errorf("records of claims: %w", err)
	}
	wanted, recorded := map[claims.Ref][]entry{}, map[claims.Ref]bool{}
	for _, r := range records {
		claim := claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID}
		recorded[claim] = true
		if r.State == journal.StatePrepared {
			wanted[claim] = w.entries(r, devices)
		}
	}
	var errs []error
	allowed := true
	do := func(err error) (goOn bool) {
		switch {
		case errors.Is(err, errRefused):
			allowed = false
		case err != nil:
			errs = append(errs, err)
		}
		return allowed && len(errs) < enough && ctx.Err() == nil
	}
	w.bringAll(ctx, recorded, wanted, do)
	if allowed {
		w.refused = time.Time{}
	}
	return errors.Join(errs...)
}

// bringAll brings claims in line until do, which takes what each gives, says that it is enough. The
// order is another one each time, so that some that fail do not keep the others from their turn.
func (w *Writer) bringAll(ctx context.Context, recorded map[claims.Ref]bool, wanted map[claims.Ref][]entry, do func(error) bool) {
	for claim := range w.written {
		if !recorded[claim] && !do(w.clear(ctx, claim)) {
			return
		}
	}
	for claim, entries := range wanted {
		if !do(w.bring(ctx, claim, entries)) {
			return
		}
	}
}

// entries are the conditions that a claim should have.
func (w *Writer) entries(r *journal.Record, devices map[string]device.Device) []entry {
	var out []entry
	for _, d := range r.Devices {
		if d.Pool != w.Pool {
			continue
		}
		e := entry{device: cmp.Or(d.Was, d.Name), Condition: taints.Missing()}
		if d.ShareID != nil {
			e.share = string(*d.ShareID)
		}
		if known, ok := devices[d.Name]; ok {
			e.Condition = taints.Ready(w.Judge.Of(known))
		}
		out = append(out, e)
	}
	slices.SortFunc(out, entry.compare)
	// A device that two requests got, one of them with admin access, has one entry.
	return slices.CompactFunc(out, func(a, b entry) bool { return a.compare(b) == 0 })
}

// bring writes what a claim should say, if it does not say so already.
func (w *Writer) bring(ctx context.Context, claim claims.Ref, entries []entry) error {
	written, ok := w.written[claim]
	if ok && slices.EqualFunc(written, entries, func(a, b entry) bool { return a.compare(b) == 0 && a.says(&b.Condition) }) {
		return nil
	}
	if err := w.write(ctx, claim, entries); err != nil {
		return err
	}
	w.written[claim] = entries
	return nil
}

// clear takes away what was written to a claim that was unprepared. One that lost its allocation
// has lost it already.
func (w *Writer) clear(ctx context.Context, claim claims.Ref) error {
	if err := w.write(ctx, claim, nil); err != nil {
		return err
	}
	delete(w.written, claim)
	return nil
}

// errRefused is wrapped by what does not get better soon. It is told, and not tried again at once.
var errRefused = errors.New("the cluster does not take the conditions of claims")

// errDropped tells that the API server took the request and kept nothing of it.
var errDropped = errors.New("the API server drops status.devices: its feature gate DRAResourceClaimDeviceStatus is off")

// write has the API server hold the entries, and nothing else of this driver on this claim.
func (w *Writer) write(ctx context.Context, claim claims.Ref, entries []entry) error {
	if !w.refused.IsZero() && time.Since(w.refused) < denied {
		return errRefused
	}
	var err error
	for range attempts {
		if err = w.writeOnce(ctx, claim, entries); !apierrors.IsConflict(err) {
			break
		}
	}
	switch {
	case err == nil:
		w.Reporter.ClaimStatusRefused(ctx, nil)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		// It ended, or lost its allocation, since it was read. If it is prepared again, there will
		// be another record.
		return nil
	case apierrors.IsForbidden(err), errors.Is(err, errDropped):
		w.refused = time.Now()
		w.Reporter.ClaimStatusRefused(ctx, err)
		return errRefused
	}
	return fmt.Errorf("status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
}

func (w *Writer) writeOnce(ctx context.Context, claim claims.Ref, entries []entry) error {
	found, err := w.get(ctx, claim)
	if err != nil {
		return err
	}
	if found.UID != claim.UID || found.Status.Allocation == nil {
		return nil
	}
	now, same := metav1.Now(), len(entries) == w.own(found)
	timed := slices.Clone(entries)
	for i, e := range timed {
		held := w.held(found, e)
		same = same && e.says(held)
		timed[i].LastTransitionTime = now
		if held != nil && held.Status == e.Status {
			timed[i].LastTransitionTime = held.LastTransitionTime
		}
	}
	if same {
		return nil
	}
	after, err := w.apply(ctx, found, timed)
	if err != nil {
		return err
	}
	for _, e := range timed {
		if !e.says(w.held(after, e)) {
			return errDropped
		}
	}
	return nil
}

// own counts the devices on which a claim has a condition of this driver.
func (w *Writer) own(claim *resourceapi.ResourceClaim) int {
	n := 0
	for _, d := range claim.Status.Devices {
		if d.Driver == w.Driver && d.Pool == w.Pool && slices.ContainsFunc(d.Conditions, func(c metav1.Condition) bool { return c.Type == taints.ConditionReady }) {
			n++
		}
	}
	return n
}
