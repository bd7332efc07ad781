package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/prepare"
)

// Planner turns a claim into a plan with the devices of this moment.
type Planner interface {
	// Plan fails with a claims.Error of ReasonUnknownDevice for a device that the node does not have.
	Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error)
	// Refresh looks at the hardware now.
	Refresh(ctx context.Context) error
}

// Preparer prepares and unprepares; prepare.Engine is one.
type Preparer interface {
	Prepare(ctx context.Context, plan claims.Plan) ([]prepare.Prepared, error)
	Unprepare(ctx context.Context, claim claims.Ref) error
}

// Meter times calls.
type Meter interface {
	Call(op metrics.Operation) func(metrics.Result, metrics.Reason)
}

// ClaimReporter is told what authors of claims have to know.
type ClaimReporter interface {
	// ClaimNoticed is told of what a claim asks for in vain; the claim is prepared all the same.
	ClaimNoticed(ctx context.Context, claim claims.Ref, notices []string)
	ClaimFailed(ctx context.Context, op metrics.Operation, claim claims.Ref, err error)
}

// Plugin implements the library's DRAPlugin.
type Plugin struct {
	Planner  Planner
	Preparer Preparer
	Reporter ClaimReporter
	Meter    Meter
	// Metadata gives what a container is told of a device; nil switches it off.
	Metadata func(prepare.Prepared) *draplugin.DeviceMetadata
	// Health says how devices are; nil switches the kubelet's health stream off.
	Health HealthSource
	// Refused is told of slices that the API server does not take. It must not block.
	Refused func(ctx context.Context, err error)
	// Fatal is told of errors after which the plugin can no longer serve.
	Fatal func(err error)
}

var _ draplugin.DRAPlugin = (*Plugin)(nil)

// PrepareResourceClaims prepares each claim on its own and all at once: one bad claim does not
// hold up or undo the others of the pod.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, batch []*resourceapi.ResourceClaim) (map[types.UID]draplugin.PrepareResult, error) {
	results := make([]draplugin.PrepareResult, len(batch))
	each(len(batch), func(i int) {
		claim := batch[i]
		ref := claims.Ref{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		err := p.call(ctx, metrics.Prepare, ref, func(ctx context.Context) error {
			prepared, err := p.prepare(ctx, claim)
			results[i].Devices = p.answer(prepared)
			return err
		})
		if err != nil {
			results[i] = draplugin.PrepareResult{Err: err}
		}
	})
	byUID := make(map[types.UID]draplugin.PrepareResult, len(batch))
	for i, claim := range batch {
		byUID[claim.UID] = results[i]
	}
	return byUID, nil
}

// UnprepareResourceClaims undoes each claim on its own. Nothing but the UID is needed.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, batch []draplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make([]error, len(batch))
	each(len(batch), func(i int) {
		ref := claims.Ref{Namespace: batch[i].Namespace, Name: batch[i].Name, UID: batch[i].UID}
		results[i] = p.call(ctx, metrics.Unprepare, ref, func(ctx context.Context) error {
			return p.Preparer.Unprepare(ctx, ref)
		})
	})
	byUID := make(map[types.UID]error, len(batch))
	for i := range batch {
		byUID[batch[i].UID] = results[i]
	}
	return byUID, nil
}

// each runs work for 0 to n-1 at once and waits for all.
func each(n int, work func(i int)) {
	if n == 1 {
		work(0)
		return
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { work(i) })
	}
	wg.Wait()
}

// call runs one claim's operation with a log context of its own, times it and reports its
// error. A panic ends this claim's call alone: the library would let the process die, and the
// same claim would kill it again at each retry.
func (p *Plugin) call(ctx context.Context, op metrics.Operation, ref claims.Ref, work func(context.Context) error) (err error) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KRef(ref.Namespace, ref.Name), "claimUID", ref.UID)
	ctx = klog.NewContext(ctx, logger)
	begin := time.Now()
	done := p.Meter.Call(op)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error while %s of claim %s/%s: %v", op, ref.Namespace, ref.Name, r)
			logger.Error(err, "Panic", "stack", string(debug.Stack()))
		}
		if err != nil {
			done(metrics.Failure, reasonOf(err))
			err = inOneLine(err)
			p.Reporter.ClaimFailed(ctx, op, ref, err)
			return
		}
		done(metrics.Success, "")
		logger.V(2).Info("Claim done", "operation", op, "took", time.Since(begin))
	}()
	return work(ctx)
}

// prepare plans and prepares one claim. A device that this process does not know may have
// appeared since the last scan, so that is worth one look at the hardware: a failed prepare
// costs the pod more than a minute.
func (p *Plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]prepare.Prepared, error) {
	plan, err := p.Planner.Plan(claim)
	if isUnknownDevice(err) {
		refreshErr := p.Planner.Refresh(ctx)
		if plan, err = p.Planner.Plan(claim); err != nil && refreshErr != nil {
			// That the device is not known is no wonder then.
			err = fmt.Errorf("the hardware cannot be looked at: %w (%w)", refreshErr, err)
		}
	}
	if err != nil {
		return nil, err
	}
	if len(plan.Notices) > 0 {
		p.Reporter.ClaimNoticed(ctx, plan.Claim, plan.Notices)
	}
	return p.Preparer.Prepare(ctx, plan)
}

// answer renders prepared devices for the kubelet.
func (p *Plugin) answer(prepared []prepare.Prepared) []draplugin.Device {
	devices := make([]draplugin.Device, 0, len(prepared))
	for _, d := range prepared {
		answer := draplugin.Device{
			Requests:     []string{d.Request},
			PoolName:     d.Pool,
			DeviceName:   d.Device,
			CDIDeviceIDs: d.CDIDeviceIDs,
			ShareID:      d.ShareID,
		}
		if p.Metadata != nil {
			answer.Metadata = p.Metadata(d)
		}
		devices = append(devices, answer)
	}
	return devices
}

// HandleError sorts the library's background errors: refused slices are published again from
// elsewhere (the library deadlocks when told to publish from in here), anything that is not
// recoverable ends the process.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		p.Refused(ctx, fmt.Errorf("the API server dropped fields of slice %d in pool %q; feature gates that are off in the cluster: %v",
			dropped.SliceIndex, dropped.PoolName, dropped.DisabledFeatures()))
	case errors.Is(err, draplugin.ErrRecoverable), apierrors.IsInvalid(err):
		p.Refused(ctx, fmt.Errorf("%s: %w", msg, err))
	default:
		klog.FromContext(ctx).Error(err, "The plugin cannot serve any longer", "what", msg)
		p.Fatal(fmt.Errorf("%s: %w", msg, err))
	}
}
