package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/takeover"
)

// takeOver enters the claims of NVIDIA's published driver that are still prepared on this node.
// It does so once, when the hardware was seen: their devices are known by UUID.
func (a *Agent) takeOver(ctx context.Context, view *catalog.View) {
	path := a.stateDir(takeover.FileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || !view.Looked || !view.Snapshot.Driver.Present {
		return
	}
	logger := klog.FromContext(ctx)
	var checkpoint takeover.Checkpoint
	if err == nil {
		checkpoint, err = takeover.Parse(data, a.config.DriverName, a.config.NodeName)
	}
	if err != nil {
		logger.Error(err, "The checkpoint of another driver cannot be used and is left as it is", "file", path)
		return
	}
	records, missing := checkpoint.Records(view.Devices, a.engine.BootID, time.Now())
	for _, err := range missing {
		logger.Error(err, "A claim of the former driver is not taken over")
	}
	for _, r := range records {
		adopted, err := a.engine.Adopt(ctx, r)
		if err != nil {
			logger.Error(err, "A claim of the former driver is not taken over yet", "claimUID", r.UID)
			return
		}
		logger.Info("Took over a claim of the former driver", "claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID, "adopted", adopted)
	}
	if err := os.Rename(path, path+".taken-over"); err != nil {
		logger.Error(err, "The checkpoint of the former driver is read again at the next start")
	}
}

// taintTaken has devices of such claims published with a taint, until they end.
func (a *Agent) taintTaken(ctx context.Context) error {
	records, _, err := a.journal.List()
	if err != nil {
		return err
	}
	taken := takeover.TakenBy(records)
	same := func(x, y journal.Device) bool { return x.Name == y.Name }
	if before := a.taken.Swap(&taken); before == nil && len(taken) > 0 || before != nil && !slices.EqualFunc(*before, taken, same) {
		a.catalog.Rederive(ctx)
	}
	return nil
}

// takenTaints are the taints of those devices.
func (a *Agent) takenTaints() []offer.Tainter {
	if taken := a.taken.Load(); taken != nil && len(*taken) > 0 {
		return []offer.Tainter{taken.Taint(a.config.DriverName)}
	}
	return nil
}

// planner understands the former driver's names for devices.
type planner struct {
	*catalog.Catalog
	renaming takeover.Planner
}

// Plan implements kubeletplugin.Planner.
func (p planner) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	return p.renaming.Plan(claim)
}

func (a *Agent) planner() planner {
	return planner{a.catalog, takeover.Planner{
		Plans: a.catalog, Driver: a.config.DriverName,
		Load: func(claim claims.Ref) (*journal.Record, error) { return a.journal.Load(claim.UID) },
	}}
}
