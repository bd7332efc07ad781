package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// explain finds out why claims do not fit, by asking again with one obstacle less each time. The order
// goes from what time heals to what never will.
func (a *Allocator) explain(ctx context.Context, c Cluster, node *corev1.Node, claims []*resourceapi.ResourceClaim) string {
	if msg := incomplete(c.Slices); msg != "" {
		return msg
	}
	fits := func(c Cluster, claims []*resourceapi.ResourceClaim) bool {
		r, err := a.attempt(ctx, c, node, claims)
		return err == nil && r != nil
	}
	empty := c
	empty.Claims = nil
	if fits(empty, claims) {
		return fmt.Sprintf("devices are in use (%d allocated)", len(a.allocator.Allocated(c.Claims).AllocatedDevices)+len(a.allocator.Allocated(c.Claims).AllocatedSharedDeviceIDs))
	}
	untainted := empty
	untainted.Slices = withoutTaints(c.Slices)
	if fits(untainted, claims) {
		return "devices are tainted and the claim does not tolerate it"
	}
	free := make([]*resourceapi.ResourceClaim, len(claims))
	for i, claim := range claims {
		free[i] = claim.DeepCopy()
		free[i].Spec.Devices.Constraints = nil
	}
	if fits(untainted, free) {
		return "no set of devices meets the constraints: " + constraints(claims)
	}
	for _, claim := range claims {
		for _, request := range claim.Spec.Devices.Requests {
			if msg := a.explainRequest(untainted, request, fits); msg != "" {
				return msg
			}
		}
	}
	return "each request fits by itself, but not all of them together"
}

// explainRequest tells what is wrong with a request that does not fit an empty node by itself.
func (a *Allocator) explainRequest(c Cluster, request resourceapi.DeviceRequest, fits func(Cluster, []*resourceapi.ResourceClaim) bool) string {
	alone := func(r resourceapi.DeviceRequest) bool {
		claim := &resourceapi.ResourceClaim{}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{r}
		return fits(c, []*resourceapi.ResourceClaim{claim})
	}
	switch {
	case alone(request):
		return ""
	case request.Exactly == nil:
		return fmt.Sprintf("request %s: none of its alternatives fits", request.Name)
	}
	one := *request.DeepCopy()
	one.Exactly.Count = 1
	if request.Exactly.Count > 1 && alone(one) {
		return fmt.Sprintf("request %s: fewer than %d devices match class %s and its selectors", request.Name, request.Exactly.Count, request.Exactly.DeviceClassName)
	}
	one.Exactly.Selectors = nil
	if len(request.Exactly.Selectors) > 0 && alone(one) {
		var all []string
		for _, s := range request.Exactly.Selectors {
			if s.CEL != nil {
				all = append(all, s.CEL.Expression)
			}
		}
		return fmt.Sprintf("request %s: no device of class %s matches %s", request.Name, request.Exactly.DeviceClassName, strings.Join(all, " && "))
	}
	return fmt.Sprintf("request %s: no device on the node is of class %s", request.Name, request.Exactly.DeviceClassName)
}

// incomplete names a pool whose newest generation lacks slices: the allocator leaves it out.
func incomplete(all []*resourceapi.ResourceSlice) string {
	type pool struct{ driver, name string }
	newest := map[pool]resourceapi.ResourcePool{}
	count := map[pool]int64{}
	for _, s := range all {
		key := pool{s.Spec.Driver, s.Spec.Pool.Name}
		switch have, ok := newest[key]; {
		case !ok || s.Spec.Pool.Generation > have.Generation:
			newest[key], count[key] = s.Spec.Pool, 1
		case s.Spec.Pool.Generation == have.Generation:
			count[key]++
		}
	}
	var bad []string
	for key, p := range newest {
		if count[key] != p.ResourceSliceCount {
			bad = append(bad, fmt.Sprintf("pool %s of driver %s is incomplete: %d of %d slices at generation %d", key.name, key.driver, count[key], p.ResourceSliceCount, p.Generation))
		}
	}
	slices.Sort(bad)
	return strings.Join(bad, "; ")
}

func withoutTaints(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	clean := make([]*resourceapi.ResourceSlice, len(all))
	for i, s := range all {
		clean[i] = s.DeepCopy()
		for j := range clean[i].Spec.Devices {
			clean[i].Spec.Devices[j].Taints = nil
		}
	}
	return clean
}

func constraints(claims []*resourceapi.ResourceClaim) string {
	var all []string
	for _, claim := range claims {
		for _, c := range claim.Spec.Devices.Constraints {
			switch {
			case c.MatchAttribute != nil:
				all = append(all, fmt.Sprintf("matchAttribute %s of claim %s", ptr.Deref(c.MatchAttribute, ""), claim.Name))
			case c.DistinctAttribute != nil:
				all = append(all, fmt.Sprintf("distinctAttribute %s of claim %s", ptr.Deref(c.DistinctAttribute, ""), claim.Name))
			}
		}
	}
	return strings.Join(all, ", ")
}
