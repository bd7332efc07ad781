package prepare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
)

// Prepare makes the node ready for the claim and answers what the kubelet needs, in the order
// of the plan. A claim that is prepared gets the same answer again, at no durable write; one
// that is half prepared is finished; one from before a reboot is made anew on the same GPUs.
// On error nothing is left behind, except where the error says that a step could not be undone, or
// that the record could not be written: then all is as the record says.
//
// Errors to tell apart: *HeldError, *SwappedError, *StepError, ErrSuperseded, *cdi.NodeError,
// *cdi.MissingLibraryError, *journal.WriteError, *journal.NewerFormatError, *lock.TimeoutError.
func (e *Engine) Prepare(ctx context.Context, plan claims.Plan) ([]Prepared, error) {
	uid := plan.Claim.UID
	if err := journal.CheckUID(uid); err != nil {
		return nil, err
	}
	if len(plan.Devices) == 0 {
		return nil, nil
	}
	ctx, done := e.running.start(ctx, uid)
	defer done()
	unlock, err := e.Locks.Lock(ctx, claimKey(uid))
	if err != nil {
		return nil, because(ctx, err)
	}
	defer unlock()
	prepared, err := e.prepareLocked(ctx, plan)
	if err != nil {
		return nil, because(ctx, err)
	}
	return prepared, nil
}

// because adds to an error that the context was ended by an unprepare.
func because(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrSuperseded) && !errors.Is(err, ErrSuperseded) {
		return fmt.Errorf("%w: %w", ErrSuperseded, err)
	}
	return err
}

func (e *Engine) prepareLocked(ctx context.Context, plan claims.Plan) ([]Prepared, error) {
	// Who waited for the lock behind an unprepare, or for longer than its caller, must not
	// begin: nobody would ever unprepare it.
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	wanted, err := e.newRecord(plan)
	if err != nil {
		return nil, err
	}
	old, err := e.load(ctx, plan.Claim.UID)
	if err != nil {
		return nil, err
	}
	if err := e.Base.Ensure(ctx); err != nil {
		return nil, err
	}
	if old == nil {
		return e.complete(ctx, plan, wanted, false)
	}
	if err := swapped(old, wanted); err != nil {
		return nil, err
	}
	switch {
	case !sameDevices(old, wanted):
		// The claim was released and allocated anew, and nobody unprepared it in between.
		klog.FromContext(ctx).Info("The claim has other devices than it was prepared with: undoing those first")
		return e.redo(ctx, plan, old, wanted)
	case old.State == journal.StatePrepared && old.BootID == e.BootID:
		return e.answerAgain(ctx, plan, old)
	case old.BootID != e.BootID:
		// What the steps did is gone with the reboot; they know how to find what is not.
		wanted.Created, wanted.Unknown = old.Created, old.Unknown
		return e.complete(ctx, plan, wanted, true)
	case !sameSteps(old, wanted):
		return e.redo(ctx, plan, old, wanted)
	}
	return e.complete(ctx, plan, old, true)
}

// load gives nil where there is no record. One that is corrupt is set aside, and what the
// holder files know of the claim takes its place; only this claim is touched by that. The caller
// holds the claim's lock.
func (e *Engine) load(ctx context.Context, uid types.UID) (*journal.Record, error) {
	record, err := e.Journal.Load(uid)
	if errors.Is(err, journal.ErrNotFound) {
		return nil, nil
	}
	if corrupt := new(journal.CorruptError); errors.As(err, &corrupt) {
		rebuilt, aside, err := e.setAside(uid)
		if aside != "" && e.Quarantined != nil {
			e.Quarantined(ctx, aside, corrupt)
		}
		return rebuilt, err
	}
	return record, err
}

// newRecord states what preparing the plan means, with nothing done.
func (e *Engine) newRecord(plan claims.Plan) (*journal.Record, error) {
	r := &journal.Record{
		Namespace: plan.Claim.Namespace, Name: plan.Claim.Name, UID: plan.Claim.UID,
		State: journal.StateStarted, BootID: e.BootID, Created: time.Now().UTC().Truncate(time.Second),
	}
	for _, d := range plan.Devices {
		handler, ok := e.Handlers[d.Device.Kind()]
		if !ok {
			return nil, fmt.Errorf("device %s is of kind %q, which this release cannot prepare", d.Device.Name(), d.Device.Kind())
		}
		id := d.Device.Identity()
		entry := journal.Device{
			Request: d.Request, Pool: d.Pool, Name: d.Device.Name(), ShareID: d.ShareID, MemoryBytes: d.MemoryBytes, AdminAccess: d.AdminAccess,
			Kind: string(d.Device.Kind()), PCI: id.PCI, GPUUUID: id.GPUUUID, Partition: id.Partition,
			CDIDeviceIDs: []string{e.Specs.ClaimID(cdiName(plan.Claim.UID, d)), e.Specs.BaseID()},
		}
		if !d.AdminAccess {
			steps, err := handler.Steps(d)
			if err != nil {
				return nil, fmt.Errorf("plan the steps of device %s: %w", entry.Name, err)
			}
			entry.Steps = steps
		}
		r.Devices = append(r.Devices, entry)
	}
	return r, e.checkExecutors(r)
}

func (e *Engine) checkExecutors(r *journal.Record) error {
	for _, s := range steps(r) {
		if _, ok := e.Executors[s.step.Kind]; !ok {
			return &StepError{Kind: s.step.Kind, Device: s.device.Name, Err: errNoExecutor}
		}
	}
	return nil
}

func cdiName(uid types.UID, d claims.Device) string {
	return cdi.DeviceName(uid, d.Request, d.Device.Name(), d.ShareID)
}

// swapped compares the boards behind equal devices. A record made from a name has no board.
func swapped(old, wanted *journal.Record) error {
	for _, w := range wanted.Devices {
		for _, o := range old.Devices {
			if o.Name == w.Name && o.PCI == w.PCI && o.GPUUUID != "" && o.GPUUUID != w.GPUUUID {
				return &SwappedError{Device: w.Name, PCI: w.PCI, Was: o.GPUUUID, Now: w.GPUUUID}
			}
		}
	}
	return nil
}

func sameDevices(a, b *journal.Record) bool {
	return slices.EqualFunc(a.Devices, b.Devices, func(x, y journal.Device) bool {
		share := func(d journal.Device) types.UID {
			if d.ShareID == nil {
				return ""
			}
			return *d.ShareID
		}
		return x.Request == y.Request && x.Pool == y.Pool && x.Name == y.Name && share(x) == share(y) &&
			x.AdminAccess == y.AdminAccess && identity(x) == identity(y)
	})
}

// sameSteps tells whether the steps of a half-done record are those that this release would do.
func sameSteps(a, b *journal.Record) bool {
	return slices.EqualFunc(steps(a), steps(b), func(x, y stepRef) bool {
		return x.device.Name == y.device.Name && x.step.Kind == y.step.Kind && string(x.step.Params) == string(y.step.Params)
	})
}

// redo undoes an old record and then prepares the claim from the start.
func (e *Engine) redo(ctx context.Context, plan claims.Plan, old, wanted *journal.Record) ([]Prepared, error) {
	if err := e.undoLocked(ctx, old); err != nil {
		return nil, err
	}
	return e.complete(ctx, plan, wanted, false)
}

// answerAgain answers for a claim that is prepared, and makes its CDI spec anew where that is
// missing or does not fit the host any more.
func (e *Engine) answerAgain(ctx context.Context, plan claims.Plan, r *journal.Record) ([]Prepared, error) {
	devices, err := e.cdiDevices(plan, r)
	if err != nil {
		return nil, err
	}
	written, err := e.Specs.EnsureClaim(ctx, r.UID, devices)
	if err != nil {
		return nil, err
	}
	if written {
		klog.FromContext(ctx).Info("The claim's CDI spec was missing or stale and is written anew")
	}
	return e.answer(plan), nil
}

// complete does all steps of the record and answers. With resume there is a record of an
// earlier call that was cut short, in the middle of doing or of undoing: nobody knows which of
// its steps are done, so all are done again, which finds what is there.
func (e *Engine) complete(ctx context.Context, plan claims.Plan, r *journal.Record, resume bool) ([]Prepared, error) {
	if len(steps(r)) == 0 {
		// With all known beforehand, what is missing on the host shows before anything is done.
		devices, err := e.cdiDevices(plan, r)
		if err != nil {
			return nil, err
		}
		if err := e.Specs.CheckClaim(ctx, devices); err != nil {
			return nil, err
		}
	}
	unlock, err := e.takeGPUs(ctx, plan)
	if err != nil {
		return nil, err
	}
	defer unlock()
	begun, err := e.carryOut(ctx, plan, r)
	if err == nil {
		return e.answer(plan), nil
	}
	if resume {
		begun = steps(r)
	}
	// The caller's time may be up; the rollback has its own.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if r.State == journal.StatePrepared && len(begun) > 0 {
		// What is undone under a record that says prepared would not be done again. Where the disk
		// takes no other, all stays as the record says: that can be prepared again, or unprepared.
		r.State = journal.StateStarted
		if saveErr := e.Journal.Save(r); saveErr != nil {
			return nil, errors.Join(err, saveErr)
		}
	}
	return nil, errors.Join(err, e.undo(ctx, r, begun))
}

// carryOut gives the steps that were begun, for the rollback. The caller has the GPUs' locks.
func (e *Engine) carryOut(ctx context.Context, plan claims.Plan, r *journal.Record) (begun []stepRef, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := e.holders.put(r); err != nil {
		return nil, err
	}
	if len(steps(r)) > 0 {
		r.State = journal.StateStarted
		if err := e.Journal.Save(r); err != nil {
			return nil, err
		}
		if begun, err = e.runSteps(ctx, r); err != nil {
			return begun, err
		}
	}
	devices, err := e.cdiDevices(plan, r)
	if err != nil {
		return begun, err
	}
	if err := context.Cause(ctx); err != nil {
		return begun, err
	}
	r.State = journal.StatePrepared
	if err := e.Journal.Save(r); err != nil {
		r.State = journal.StateStarted
		return begun, err
	}
	_, err = e.Specs.EnsureClaim(ctx, r.UID, devices)
	return begun, err
}

func (e *Engine) cdiDevices(plan claims.Plan, r *journal.Record) ([]cdi.Device, error) {
	devices := make([]cdi.Device, 0, len(plan.Devices))
	for i, d := range plan.Devices {
		edits, err := e.Handlers[d.Device.Kind()].Edits(d, r.Devices[i].Steps)
		if err != nil {
			return nil, fmt.Errorf("find what containers need of device %s: %w", d.Device.Name(), err)
		}
		devices = append(devices, cdi.Device{Name: cdiName(r.UID, d), Edits: edits})
	}
	return devices, nil
}

func (e *Engine) answer(plan claims.Plan) []Prepared {
	out := make([]Prepared, 0, len(plan.Devices))
	for _, d := range plan.Devices {
		out = append(out, Prepared{
			Request: d.Request, Pool: d.Pool, Device: d.Device.Name(), ShareID: d.ShareID,
			CDIDeviceIDs: []string{e.Specs.ClaimID(cdiName(plan.Claim.UID, d)), e.Specs.BaseID()},
			Identity:     d.Device.Identity(),
		})
	}
	return out
}

// The time between two looks for a device that another process may have released: random, so
// that two who wait do not keep step.
const holderPoll = 50 * time.Millisecond

// takeGPUs locks the plan's GPUs when no other claim has what is wanted of them. The control
// plane gives a device to the next claim before the kubelet has torn down a pod that was
// deleted by force: that resolves in seconds, while a failed prepare costs the pod more than a
// minute, so it is waited for here. Nothing is locked during the wait but the claim.
func (e *Engine) takeGPUs(ctx context.Context, plan claims.Plan) (unlock func(), err error) {
	var keys []lock.Key
	for _, gpu := range planGPUs(plan.Devices) {
		keys = append(keys, gpuKey(gpu))
	}
	start, told := time.Now(), e.Waiting == nil
	limit, cancel := context.WithTimeout(ctx, e.HolderWait)
	defer cancel()
	for {
		changed := e.running.wait()
		unlock, err := e.Locks.LockAll(ctx, keys...)
		if err != nil {
			return nil, err
		}
		held, err := e.holders.conflict(plan.Claim.UID, plan.Devices)
		if err == nil && held == nil {
			return unlock, nil
		}
		unlock()
		if err != nil {
			return nil, err
		}
		if !told {
			e.Waiting()
			told = true
		}
		select {
		case <-changed:
		case <-time.After(holderPoll/2 + rand.N(holderPoll)):
		case <-limit.Done():
			held.Waited = time.Since(start)
			return nil, held
		}
	}
}
