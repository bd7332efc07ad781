package lost

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
)

// Dir is a directory of CDI specs, and what records are to say that no spec does.
type Dir struct {
	Path, Driver, Pool, BootID string
	// Rebuilt is told of each claim that a record was entered for; may be nil.
	Rebuilt func(context.Context, claims.Ref)
}

// Enter has a record adopted for every claim that list has none of, good or bad, and that has a spec.
// devices are those that the node has now. What cannot be entered is logged: the rest must not
// wait for it.
func (d Dir) Enter(ctx context.Context, list func() ([]*journal.Record, []journal.Bad, error),
	adopt func(context.Context, *journal.Record) (adopted bool, err error), devices map[string]device.Device,
) {
	logger := klog.FromContext(ctx)
	records, bad, err := list()
	if err != nil {
		logger.Error(err, "Claims without a record are not looked for")
		return
	}
	known := map[types.UID]bool{}
	for _, r := range records {
		known[r.UID] = true
	}
	for _, b := range bad {
		known[b.UID] = true
	}
	specs, err := Read(d.Path, d.Driver, func(uid types.UID) bool { return known[uid] })
	if err != nil {
		logger.Error(err, "CDI specs of claims cannot be read")
	}
	for _, s := range specs {
		entered := false
		r, err := s.Record(d.Pool, d.BootID, devices)
		if err == nil {
			entered, err = adopt(ctx, r)
		}
		if err != nil {
			logger.Error(err, "A claim without a record has no owner entered", "claimUID", s.Claim)
			continue
		}
		logger.Info("The record of a claim is gone: its CDI spec says what it has", "claim", klog.KRef(s.Namespace, s.Name), "claimUID", s.Claim, "entered", entered)
		if entered && d.Rebuilt != nil {
			d.Rebuilt(ctx, claims.Ref{Namespace: s.Namespace, Name: s.Name, UID: s.Claim})
		}
	}
}
