package prepare

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/pci"
)

var errNoExecutor = errors.New("this release does not know how; another release wrote the record")

// stepRef is a step in its record.
type stepRef struct {
	device *journal.Device
	step   *journal.Step
}

// steps lists the record's steps in the order in which they are done.
func steps(r *journal.Record) []stepRef {
	var out []stepRef
	for i := range r.Devices {
		d := &r.Devices[i]
		for j := range d.Steps {
			out = append(out, stepRef{d, &d.Steps[j]})
		}
	}
	return out
}

// byGPU groups steps; within a GPU their order is kept.
func byGPU(all []stepRef) [][]stepRef {
	index := map[pci.Address]int{}
	var groups [][]stepRef
	for _, s := range all {
		i, ok := index[s.device.PCI]
		if !ok {
			i = len(groups)
			index[s.device.PCI] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	return groups
}

// stepRun does the steps of one record. Several GPUs are worked on at once, since steps can take
// seconds; the record is changed and written under mu.
type stepRun struct {
	engine *Engine
	record *journal.Record

	mu    sync.Mutex
	begun []stepRef
	left  int
}

// runSteps does all steps and journals each that is done. The last needs no write of its own:
// the caller's next one has it. It returns what was begun, in order.
func (e *Engine) runSteps(ctx context.Context, r *journal.Record) (begun []stepRef, err error) {
	todo := steps(r)
	run := &stepRun{engine: e, record: r, left: len(todo)}
	group, ctx := errgroup.WithContext(ctx)
	for _, list := range byGPU(todo) {
		group.Go(func() error {
			for _, s := range list {
				if err := run.do(ctx, s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return run.begun, err
}

func (run *stepRun) do(ctx context.Context, s stepRef) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	run.mu.Lock()
	run.begun = append(run.begun, s)
	run.mu.Unlock()
	output, err := run.engine.Executors[s.step.Kind].Do(ctx, s.step.Params)
	if err != nil {
		return &StepError{Kind: s.step.Kind, Device: s.device.Name, Err: err}
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	s.step.Done, s.step.Output = true, output
	if run.left--; run.left == 0 {
		return nil
	}
	return run.engine.Journal.Save(run.record)
}

// undoLocked undoes a whole record under the locks of the GPUs that its steps are about.
func (e *Engine) undoLocked(ctx context.Context, r *journal.Record) error {
	all := steps(r)
	if len(all) > 0 {
		var keys []lock.Key
		for _, s := range all {
			keys = append(keys, gpuKey(s.device.PCI))
		}
		unlock, err := e.Locks.LockAll(ctx, keys...)
		if err != nil {
			return err
		}
		defer unlock()
		if r.State == journal.StatePrepared {
			// From here on a crash must not leave a record that says prepared.
			r.State = journal.StateStarted
			if err := e.Journal.Save(r); err != nil {
				return err
			}
		}
	}
	return e.undo(ctx, r, all)
}

// undo takes back the given steps of a record, in reverse, and removes every trace of the
// claim. Where a step cannot be undone the record stays, and with it the claim's hold on the
// device; the other devices are undone all the same. The caller has the locks.
func (e *Engine) undo(ctx context.Context, r *journal.Record, begun []stepRef) error {
	if err := e.Specs.RemoveClaim(r.UID); err != nil {
		return err
	}
	if err := e.undoSteps(ctx, begun); err != nil {
		r.State = journal.StateStarted
		return errors.Join(err, e.Journal.Save(r))
	}
	if err := e.Journal.Delete(r.UID); err != nil {
		return err
	}
	e.holders.remove(r)
	e.running.released()
	return nil
}

func (e *Engine) undoSteps(ctx context.Context, begun []stepRef) error {
	failed := map[*journal.Device]bool{}
	var errs []error
	for _, s := range slices.Backward(begun) {
		// What came before a step may carry it, so it stays while the step does.
		if failed[s.device] {
			continue
		}
		err := errNoExecutor
		if executor, ok := e.Executors[s.step.Kind]; ok {
			err = executor.Undo(ctx, s.step.Params, s.step.Output)
		}
		if err != nil {
			failed[s.device] = true
			errs = append(errs, &StepError{Kind: s.step.Kind, Undo: true, Device: s.device.Name, Err: err})
			continue
		}
		s.step.Done, s.step.Output = false, nil
	}
	return errors.Join(errs...)
}
