package mpssteps

import (
	"context"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// Owner knows the devices that are noted as used by MPS. A record that was lost, or a GPU driver
// that was away when the last claim ended, leaves one behind.
type Owner struct{ Step Step }

var _ reconcile.Owner = Owner{}

// Kind implements reconcile.Owner.
func (Owner) Kind() string { return "MPS control daemon" }

// Things implements reconcile.Owner. A note that cannot be read names no GPU under whose lock it
// could be undone; the next claim on the device mends it.
func (o Owner) Things(context.Context) ([]reconcile.Thing, error) {
	l := ledger{o.Step.Layout}
	devices, err := l.devices()
	var things []reconcile.Thing
	for _, d := range devices {
		if e, found, err := l.read(d); err == nil && found && e.Where.Device == d {
			things = append(things, reconcile.Thing{ID: d, GPU: e.Where.PCI})
		}
	}
	return things, err
}

// Accounts implements reconcile.Owner. A record that was rebuilt has no steps; the device that it
// names accounts for the daemon as well.
func (Owner) Accounts(r *journal.Record, t reconcile.Thing) bool {
	for _, d := range r.Devices {
		if d.Name == t.ID && !d.AdminAccess {
			return true
		}
	}
	return false
}

// Remove implements reconcile.Owner.
func (o Owner) Remove(ctx context.Context, t reconcile.Thing) error {
	e, found, err := (ledger{o.Step.Layout}).read(t.ID)
	if err != nil || !found {
		return err
	}
	o.Step.dropUnknown(&e, "")
	if len(e.Users) > 0 {
		return reconcile.ErrLater
	}
	if err := o.Step.release(ctx, e.Where, e); err != nil {
		return err
	}
	// Without the GPU or its driver the note stays, for the compute mode.
	if _, found, err = (ledger{o.Step.Layout}).read(t.ID); err == nil && found {
		return reconcile.ErrLater
	}
	return err
}
