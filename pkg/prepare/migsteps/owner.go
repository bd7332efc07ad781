package migsteps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// Owner knows the instances that the ledger says are ours. A record that was lost leaves its
// instance behind, and nobody but the ledger knows of it.
type Owner struct{ Instance Watched }

var _ reconcile.Owner = Owner{}

// Kind implements reconcile.Owner.
func (Owner) Kind() string { return "partition" }

// Things implements reconcile.Owner.
func (o Owner) Things(context.Context) ([]reconcile.Thing, error) {
	var things []reconcile.Thing
	for _, e := range o.Instance.Ledger.Entries() {
		for _, i := range e.Instances {
			things = append(things, reconcile.Thing{ID: thingID(e, i), GPU: e.PCI})
		}
	}
	return things, nil
}

// thingID is "<address>/<UUID>/<profile>/<start>+<size>".
func thingID(e ledger.Entry, i ledger.Instance) string {
	return fmt.Sprintf("%s/%s/%d/%d+%d", e.PCI, e.GPUUUID, i.Profile, i.Start, i.Size)
}

// Accounts implements reconcile.Owner. A record that was rebuilt has no steps; the device that it
// names accounts for the instance as well.
func (o Owner) Accounts(r *journal.Record, t reconcile.Thing) bool {
	p, err := parseThing(t)
	if err != nil {
		return true
	}
	for _, d := range r.Devices {
		if d.PCI != t.GPU || d.AdminAccess {
			continue
		}
		if d.Partition == "" && d.Kind == string(device.KindMIG) {
			return true // nobody knows which
		}
		_, at, err := mig.ParseKey(d.Partition)
		if err == nil && at.Overlaps(p.instance().Placement()) {
			return true
		}
	}
	return false
}

// Remove implements reconcile.Owner.
func (o Owner) Remove(ctx context.Context, t reconcile.Thing) error {
	p, err := parseThing(t)
	if err != nil {
		return err
	}
	params, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("partition %s: %w", t.ID, err)
	}
	if err := o.Instance.Undo(ctx, params, nil); err != nil {
		return err
	}
	// Without a GPU driver it is left to the ledger.
	entry, err := o.Instance.Ledger.Read(p.gpu())
	if err == nil && slices.Contains(entry.Instances, p.instance()) {
		return reconcile.ErrLater
	}
	return err
}

func parseThing(t reconcile.Thing) (instanceParams, error) {
	p := instanceParams{gpuParams: gpuParams{PCI: t.GPU}}
	fields := strings.Split(t.ID, "/")
	if len(fields) != 4 {
		return p, fmt.Errorf("%q does not name a partition", t.ID)
	}
	p.GPUUUID = fields[1]
	var err error
	if p.Profile, err = strconv.Atoi(fields[2]); err != nil {
		return p, fmt.Errorf("profile of partition %q: %w", t.ID, err)
	}
	var at inventory.MIGPlacement
	if _, at, err = mig.ParseKey("p:" + fields[3]); err != nil {
		return p, fmt.Errorf("place of partition %q: %w", t.ID, err)
	}
	p.Start, p.Size = at.Start, at.Size
	return p, nil
}

// ModeOwner knows the GPUs whose MIG mode was switched on for claims. Where the last partition of one
// went without its claim's steps the mode stays on, and the GPU reaches no other over NVLink.
type ModeOwner struct{ Mode Mode }

var _ reconcile.Owner = ModeOwner{}

// Kind implements reconcile.Owner.
func (ModeOwner) Kind() string { return "MIG mode" }

// Things implements reconcile.Owner.
func (o ModeOwner) Things(context.Context) ([]reconcile.Thing, error) {
	var things []reconcile.Thing
	for _, e := range o.Mode.Ledger.Entries() {
		if e.Mode && len(e.Instances) == 0 {
			things = append(things, reconcile.Thing{ID: e.GPUUUID, GPU: e.PCI})
		}
	}
	return things, nil
}

// Accounts implements reconcile.Owner.
func (ModeOwner) Accounts(r *journal.Record, t reconcile.Thing) bool {
	return slices.ContainsFunc(r.Devices, func(d journal.Device) bool {
		return d.PCI == t.GPU && d.Kind == string(device.KindMIG) && !d.AdminAccess
	})
}

// Remove implements reconcile.Owner. The mode stays where somebody uses the GPU, or has partitions.
func (o ModeOwner) Remove(ctx context.Context, t reconcile.Thing) error {
	gpu := inventory.GPUID{PCI: t.GPU, UUID: t.ID}
	err := o.Mode.off(ctx, gpu)
	if busy := new(InUseError); errors.As(err, &busy) {
		return reconcile.ErrLater
	}
	if err != nil {
		return err
	}
	entry, err := o.Mode.Ledger.Read(gpu)
	if err == nil && entry.Mode {
		return reconcile.ErrLater
	}
	return err
}
