// Package apiclaims asks the API server what became of claims. It is for the reconciler. It must
// not take a fault for an answer: only an API server that knows claims and has not this one, or
// has another under its name, says that it is gone.
package apiclaims

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// Getter reads one namespace's claims; client-go's typed client is one.
type Getter interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*resourceapi.ResourceClaim, error)
}

// Lookup implements reconcile.Claims.
type Lookup struct {
	// In gives the claims of a namespace.
	In     func(namespace string) Getter
	Driver string
	Pool   string
}

// limit bounds one question.
const limit = 5 * time.Second

// Standing implements reconcile.Claims.
func (l Lookup) Standing(ctx context.Context, claim claims.Ref) (reconcile.Standing, error) {
	if claim.Namespace == "" || claim.Name == "" {
		return reconcile.Unknown, fmt.Errorf("the record of claim %s does not say its namespace and name", claim.UID)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	found, err := l.In(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case err == nil && found.UID == "":
		return reconcile.Unknown, fmt.Errorf("claim %s/%s came without a UID", claim.Namespace, claim.Name)
	case err == nil && found.UID != claim.UID:
		return reconcile.Replaced, nil
	case err == nil && !l.here(found):
		return reconcile.Released, nil
	case err == nil:
		return reconcile.Current, nil
	case isThisClaim(err, claim.Name):
		return reconcile.Deleted, nil
	}
	return reconcile.Unknown, fmt.Errorf("get claim %s/%s: %w", claim.Namespace, claim.Name, err)
}

// isThisClaim tells whether it is this claim that was not found. An API server that does not
// serve claims, or a proxy before it, says 404 as well.
func isThisClaim(err error, name string) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name && details.Kind == "resourceclaims" && details.Group == resourceapi.GroupName
}

// here tells whether the claim has a device of this node.
func (l Lookup) here(claim *resourceapi.ResourceClaim) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == l.Driver && r.Pool == l.Pool {
			return true
		}
	}
	return false
}
