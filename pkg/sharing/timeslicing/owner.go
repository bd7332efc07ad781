package timeslicing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// Owner gives the reconciler the entries of GPUs: one whose step no record has is left over of a
// record that was lost, and with it an interval that nobody would put back.
type Owner struct{ Executor Executor }

var _ reconcile.Owner = Owner{}

// Kind implements reconcile.Owner.
func (Owner) Kind() string { return "time slice" }

// Things implements reconcile.Owner. What cannot be read says nothing of a GPU, and is removed by
// the next claim there.
func (o Owner) Things(context.Context) ([]reconcile.Thing, error) {
	dir := o.Executor.Users.dir
	gpus, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the GPUs with time slices: %w", err)
	}
	var things []reconcile.Thing
	for _, gpu := range gpus {
		files, err := os.ReadDir(filepath.Join(dir, gpu.Name()))
		if err != nil {
			return nil, fmt.Errorf("list the users of time slices: %w", err)
		}
		for _, f := range files {
			entry, err := read(filepath.Join(dir, gpu.Name(), f.Name()))
			if err != nil {
				return nil, err
			}
			if entry != nil && entry.PCI.Label() == gpu.Name() && entry.user() == f.Name() {
				things = append(things, reconcile.Thing{ID: gpu.Name() + "/" + f.Name(), GPU: entry.PCI})
			}
		}
	}
	return things, nil
}

// Accounts implements reconcile.Owner. A record that was rebuilt has no steps; the device that it
// names accounts for its claim's entry as well.
func (Owner) Accounts(record *journal.Record, thing reconcile.Thing) bool {
	for _, d := range record.Devices {
		if len(d.Steps) == 0 && entryOf(record, d) == thing.ID {
			return true
		}
		for _, s := range d.Steps {
			if s.Kind != Kind {
				continue
			}
			// Parameters that cannot be read may be those.
			if p, err := decode(s.Params); err != nil || p.PCI.Label()+"/"+p.user() == thing.ID {
				return true
			}
		}
	}
	return false
}

// entryOf is the ID of the entry that the claim would have for a device.
func entryOf(record *journal.Record, d journal.Device) string {
	p := stepParams{UID: record.UID}
	if d.ShareID != nil {
		p.Share = *d.ShareID
	}
	return d.PCI.Label() + "/" + p.user()
}

// Remove implements reconcile.Owner.
func (o Owner) Remove(ctx context.Context, thing reconcile.Thing) error {
	entry, err := read(filepath.Join(o.Executor.Users.dir, filepath.FromSlash(thing.ID)))
	if err != nil || entry == nil {
		return err
	}
	params, err := json.Marshal(entry.stepParams)
	if err != nil {
		return fmt.Errorf("encode a user of GPU %s: %w", entry.PCI, err)
	}
	if err := o.Executor.Undo(ctx, params, nil); err != nil {
		return err
	}
	// While the GPU or its driver is gone the entry stays.
	if entry, err = o.Executor.Users.get(entry.stepParams); err == nil && entry != nil {
		return reconcile.ErrLater
	}
	return err
}
