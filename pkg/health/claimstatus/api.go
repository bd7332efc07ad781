package claimstatus

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	applyresource "k8s.io/client-go/applyconfigurations/resource/v1"

	"github.com/gpu-dra/driver/pkg/claims"
)

// Claims reads claims of a namespace and applies their status; a typed client's ResourceClaims is
// one.
type Claims interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*resourceapi.ResourceClaim, error)
	ApplyStatus(ctx context.Context, claim *applyresource.ResourceClaimApplyConfiguration, options metav1.ApplyOptions) (*resourceapi.ResourceClaim, error)
}

// callLimit bounds one request.
const callLimit = 10 * time.Second

func (w *Writer) get(ctx context.Context, claim claims.Ref) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return w.In(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
}

// apply writes the entries of this driver in place of its former ones. It fails with a conflict if
// the claim changed since it was read: it may be another of that name by now.
func (w *Writer) apply(ctx context.Context, read *resourceapi.ResourceClaim, entries []entry) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	status := applyresource.ResourceClaimStatus()
	for _, e := range entries {
		device := applyresource.AllocatedDeviceStatus().WithDriver(w.Driver).WithPool(w.Pool).WithDevice(e.device).
			WithConditions(applymeta.Condition().WithType(e.Type).WithStatus(e.Status).WithReason(e.Reason).
				WithMessage(e.Message).WithLastTransitionTime(e.LastTransitionTime))
		if e.share != "" {
			device.WithShareID(e.share)
		}
		status.WithDevices(device)
	}
	applied := applyresource.ResourceClaim(read.Name, read.Namespace).WithResourceVersion(read.ResourceVersion).WithStatus(status)
	return w.In(read.Namespace).ApplyStatus(ctx, applied, metav1.ApplyOptions{FieldManager: w.Driver, Force: true})
}

// held gives what the claim holds of an entry's device.
func (w *Writer) held(claim *resourceapi.ResourceClaim, e entry) *metav1.Condition {
	for _, d := range claim.Status.Devices {
		share := ""
		if d.ShareID != nil {
			share = *d.ShareID
		}
		if d.Driver != w.Driver || d.Pool != w.Pool || d.Device != e.device || share != e.share {
			continue
		}
		for i := range d.Conditions {
			if d.Conditions[i].Type == e.Type {
				return &d.Conditions[i]
			}
		}
	}
	return nil
}
