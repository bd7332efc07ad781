package apiclaims_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/reconcile"
	"github.com/gpu-dra/driver/pkg/reconcile/apiclaims"
)

type answer struct {
	claim *resourceapi.ResourceClaim
	err   error
}

func (a answer) Get(context.Context, string, metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	return a.claim, a.err
}

func claim(uid types.UID, results ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	if results != nil {
		c.Status.Allocation = &resourceapi.AllocationResult{}
	}
	for _, r := range results {
		var driver, pool string
		_, _ = fmt.Sscanf(r, "%s %s", &driver, &pool)
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: pool, Device: "d"})
	}
	return c
}

func TestStanding(t *testing.T) {
	resource := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	for name, c := range map[string]struct {
		answer answer
		want   reconcile.Standing
	}{
		"there":                        {answer{claim: claim("u", "other.example.com n", "d n")}, reconcile.Current},
		"another of its name":          {answer{claim: claim("v", "d n")}, reconcile.Replaced},
		"not allocated":                {answer{claim: claim("u")}, reconcile.Released},
		"allocated to another node":    {answer{claim: claim("u", "d m")}, reconcile.Released},
		"allocated by another driver":  {answer{claim: claim("u", "e n")}, reconcile.Released},
		"empty object":                 {answer{claim: &resourceapi.ResourceClaim{}}, reconcile.Unknown},
		"not found":                    {answer{err: apierrors.NewNotFound(resource, "c")}, reconcile.Deleted},
		"another is not found":         {answer{err: apierrors.NewNotFound(resource, "other")}, reconcile.Unknown},
		"another kind is not found":    {answer{err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "c")}, reconcile.Unknown},
		"claims are not served":        {answer{err: apierrors.NewGenericServerResponse(404, "GET", resource, "c", "404 page not found", 0, true)}, reconcile.Unknown},
		"a 404 without details":        {answer{err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound}}}, reconcile.Unknown},
		"forbidden":                    {answer{err: apierrors.NewForbidden(resource, "c", errors.New("no"))}, reconcile.Unknown},
		"gone, as said of old watches": {answer{err: apierrors.NewResourceExpired("compacted")}, reconcile.Unknown},
		"timeout":                      {answer{err: context.DeadlineExceeded}, reconcile.Unknown},
		"no connection":                {answer{err: errors.New("connection refused")}, reconcile.Unknown},
	} {
		asked := ""
		lookup := apiclaims.Lookup{Driver: "d", Pool: "n", In: func(namespace string) apiclaims.Getter {
			asked = namespace
			return c.answer
		}}
		got, err := lookup.Standing(t.Context(), claims.Ref{Namespace: "ns", Name: "c", UID: "u"})
		if got != c.want || (err != nil) != (c.want == reconcile.Unknown) || asked != "ns" {
			t.Errorf("%s: %d, %v (asked in %q), want %d", name, got, err, asked, c.want)
		}
	}
}

func TestAClaimWithoutAName(t *testing.T) {
	got, err := apiclaims.Lookup{}.Standing(t.Context(), claims.Ref{UID: "u"})
	if got != reconcile.Unknown || err == nil {
		t.Errorf("%d, %v", got, err)
	}
}
