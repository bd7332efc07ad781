package agent

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile/lost"
)

// enterLost makes records of claims whose own are gone, from their CDI specs. No call comes
// before: nobody gets a GPU that a container still has.
func (a *Agent) enterLost(ctx context.Context) {
	logger := klog.FromContext(ctx)
	records, bad, err := a.journal.List()
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
	specs, err := lost.Read(a.config.CDIDir, a.config.DriverName, func(uid types.UID) bool { return known[uid] })
	if err != nil {
		logger.Error(err, "CDI specs of claims cannot be read")
	}
	for _, s := range specs {
		var adopted bool
		var r *journal.Record
		if r, err = s.Record(a.config.NodeName, a.engine.BootID, a.catalog.View().Devices, time.Now()); err == nil {
			adopted, err = a.engine.Adopt(ctx, r)
		}
		if err != nil {
			logger.Error(err, "A claim without a record has no owner entered", "claimUID", s.Claim)
			continue
		}
		logger.Info("The record of a claim is gone: its CDI spec says what it has", "claim", klog.KRef(s.Namespace, s.Name), "claimUID", s.Claim, "entered", adopted)
	}
}
