package prepare

import (
	"context"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// Unprepare undoes all that was done for the claim; only its UID is used. A claim that is not
// known is a success without a durable write: the kubelet asks for claims whose prepare never
// came or failed.
//
// Prepares of the same claim that have begun in this process are ended first, and those of
// another process are waited for. A prepare that comes later is a new one and legal: two pods
// may use one claim one after the other. So there is no tombstone with a time; what must not
// happen, that a prepare which the kubelet has given up goes on afterwards, is kept out by the
// lock of the claim and by the caller's context, which every prepare looks at under that lock
// and again before it commits.
func (e *Engine) Unprepare(ctx context.Context, claim claims.Ref) error {
	if err := journal.CheckUID(claim.UID); err != nil {
		return err
	}
	e.running.supersede(claim.UID)
	unlock, err := e.Locks.Lock(ctx, claimKey(claim.UID))
	if err != nil {
		return err
	}
	defer unlock()
	record, err := e.load(ctx, claim.UID)
	if err != nil {
		return err
	}
	if record != nil {
		return e.undoLocked(ctx, record)
	}
	return e.Specs.RemoveClaim(claim.UID)
}
