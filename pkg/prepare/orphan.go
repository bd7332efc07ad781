package prepare

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// UnprepareIf undoes a claim that the kubelet did not ask for, by the steps that Unprepare takes.
// still is asked under the claim's lock, so that no prepare can come between its answer and the
// deed; it gets the record as it is then. A claim without a record is not undone.
func (e *Engine) UnprepareIf(ctx context.Context, uid types.UID, still func(context.Context, *journal.Record) bool) (undone bool, err error) {
	if err := journal.CheckUID(uid); err != nil {
		return false, err
	}
	unlock, err := e.Locks.Lock(ctx, claimKey(uid))
	if err != nil {
		return false, err
	}
	defer unlock()
	record, err := e.load(ctx, uid)
	if err != nil || record == nil || !still(ctx, record) {
		return false, err
	}
	return true, e.undoLocked(ctx, record)
}

// WithoutRecord runs work under the claim's lock if the journal surely has no record of the
// claim: nothing of it is being prepared meanwhile.
func (e *Engine) WithoutRecord(ctx context.Context, uid types.UID, work func(context.Context) error) error {
	if err := journal.CheckUID(uid); err != nil {
		return err
	}
	unlock, err := e.Locks.Lock(ctx, claimKey(uid))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := e.Journal.Load(uid); !errors.Is(err, journal.ErrNotFound) {
		return nil
	}
	return work(ctx)
}

// OnGPU runs work under the lock of a GPU with what the journal has then. A prepare writes its
// record under that lock before it does anything to the GPU, so what is there without a record is
// nobody's. With a record that cannot be read that is not known, and work is not run.
func (e *Engine) OnGPU(ctx context.Context, at pci.Address, work func(context.Context, []*journal.Record) error) error {
	unlock, err := e.Locks.Lock(ctx, gpuKey(at))
	if err != nil {
		return err
	}
	defer unlock()
	records, bad, err := e.Journal.List()
	if err != nil || len(bad) > 0 {
		return err
	}
	return work(ctx, records)
}

// Adopt enters a claim that was prepared by somebody else, so that it owns its devices and can be
// unprepared. A claim that has a record keeps that one.
func (e *Engine) Adopt(ctx context.Context, r *journal.Record) (adopted bool, err error) {
	err = e.WithoutRecord(ctx, r.UID, func(context.Context) error {
		if err := e.holders.put(r); err != nil {
			return err
		}
		adopted = true
		return e.Journal.Save(r)
	})
	return adopted && err == nil, err
}
