package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// UndoAll unprepares every claim that has a record, or should have one. A claim whose devices are
// in use it leaves alone, unless it is forced.
func (n *Node) UndoAll(ctx context.Context, force bool) error {
	if err := n.recover(ctx); err != nil {
		return err
	}
	n.neighbours.lookForTwin(ctx)
	n.firstScan(ctx, ctx)
	n.enterLost(ctx)
	records, bad, err := n.Journal.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range bad {
		errs = append(errs, fmt.Errorf("record %s is left as it is: %w", b.Path, b.Err))
	}
	for _, r := range records {
		claim := claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID}
		if err := inUse(ctx, n.reconciler.Users, r); err != nil && !force {
			errs = append(errs, fmt.Errorf("claim %s/%s (UID %s): end its pod, or give --force: %w", claim.Namespace, claim.Name, claim.UID, err))
			continue
		}
		if err := n.Engine.Unprepare(ctx, claim); err != nil {
			errs = append(errs, fmt.Errorf("undo claim %s/%s (UID %s): %w", claim.Namespace, claim.Name, claim.UID, err))
			continue
		}
		klog.FromContext(ctx).Info("Undone", "claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	}
	return errors.Join(errs...)
}

// inUse says why a claim's devices may be in use.
func inUse(ctx context.Context, users reconcile.Users, r *journal.Record) error {
	use := users.Use(ctx, r)
	if len(use.By) > 0 {
		return fmt.Errorf("its devices are in use by %s", strings.Join(use.By, ", "))
	}
	return use.Err
}
