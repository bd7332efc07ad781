package prepare

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
)

// Renew makes the CDI specs of prepared claims fit the host as it is now: after a reload of the
// kernel module device nodes may have other numbers, and a container that starts again gets what
// the spec says. devices are those that the node has now, by name. A claim with a device that is
// not among them, or on another board, is left as it is: its next prepare will say so. It tells
// which claims got a new spec; the others were right, or are in the error.
func (e *Engine) Renew(ctx context.Context, devices map[string]device.Device) ([]claims.Ref, error) {
	records, _, err := e.Journal.List()
	if err != nil {
		return nil, err
	}
	var renewed []claims.Ref
	var errs []error
	for _, r := range records {
		if r.State != journal.StatePrepared || r.BootID != e.BootID {
			continue
		}
		written, err := e.renew(ctx, r.UID, devices)
		errs = append(errs, err)
		if written {
			renewed = append(renewed, claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID})
		}
	}
	return renewed, errors.Join(errs...)
}

func (e *Engine) renew(ctx context.Context, uid types.UID, devices map[string]device.Device) (written bool, err error) {
	unlock, err := e.Locks.Lock(ctx, claimKey(uid))
	if err != nil {
		return false, err
	}
	defer unlock()
	r, err := e.Journal.Load(uid)
	if errors.Is(err, journal.ErrNotFound) {
		return false, nil // it was unprepared since
	}
	if err != nil || r.State != journal.StatePrepared {
		return false, err
	}
	plan, ok := planOf(r, devices)
	if !ok {
		return false, nil
	}
	wanted, err := e.cdiDevices(plan, r)
	if err != nil {
		return false, err
	}
	return e.Specs.EnsureClaim(ctx, uid, wanted)
}

// planOf makes of a record what Edits need of a plan.
func planOf(r *journal.Record, devices map[string]device.Device) (claims.Plan, bool) {
	plan := claims.Plan{Claim: claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID}}
	for _, d := range r.Devices {
		now, ok := devices[d.Name]
		if !ok || now.Identity() != identity(d) || string(now.Kind()) != d.Kind {
			return plan, false
		}
		plan.Devices = append(plan.Devices, claims.Device{
			Claim: plan.Claim, Request: d.Request, Pool: d.Pool, ShareID: d.ShareID, MemoryBytes: d.MemoryBytes,
			AdminAccess: d.AdminAccess, Device: now,
		})
	}
	return plan, len(plan.Devices) > 0
}
