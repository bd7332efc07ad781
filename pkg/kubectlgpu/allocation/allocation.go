// Package allocation runs the scheduler's own allocator outside a scheduler: slices, classes and
// claims in, devices out. It is for the command line and for stand-ins of a scheduler. It is pure:
// it must not know where the objects come from, and nothing of any driver.
package allocation

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// FilterTimeout is how long a scheduler lets the allocator search on one node.
const FilterTimeout = 10 * time.Second

// Default137 is what a kube-scheduler 1.37 turns on with default feature gates.
func Default137() structured.Features {
	return structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true,
	}
}

// Cluster is what the allocator sees: everything, also claims that are not allocated.
type Cluster struct {
	Slices  []*resourceapi.ResourceSlice
	Classes []*resourceapi.DeviceClass
	Claims  []*resourceapi.ResourceClaim
}

// List returns the classes; it makes Cluster the allocator's class lister.
func (c Cluster) List() ([]*resourceapi.DeviceClass, error) { return c.Classes, nil }

// Get returns a class by name.
func (c Cluster) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c.Classes {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclasses"), name)
}

// Allocator runs the library with one set of features. It may be used by several goroutines.
type Allocator struct {
	features structured.Features
	cache    *cel.Cache
}

// New returns an allocator with the given features; see [Default137].
func New(f structured.Features) *Allocator {
	const programs = 100 // compiled CEL expressions
	return &Allocator{features: f, cache: cel.NewCache(programs, cel.Features{
		EnableConsumableCapacity: f.ConsumableCapacity, EnableListTypeAttributes: f.ListTypeAttributes,
	})}
}

// Attempt is one run of the library for all claims together, with one result for each in their
// order; nil without error means that they do not fit the node. The error is about broken input, or
// wraps that of ctx, which bounds the search.
func (a *Allocator) Attempt(ctx context.Context, c Cluster, node *corev1.Node, claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	allocator, err := structured.NewAllocator(ctx, a.features, a.Allocated(c.Claims), c, c.Slices, a.cache)
	if err != nil {
		return nil, fmt.Errorf("start allocator: %w", err)
	}
	defaulted := make([]*resourceapi.ResourceClaim, len(claims))
	for i, claim := range claims {
		defaulted[i] = WithDefaults(claim)
	}
	return allocator.Allocate(ctx, node, defaulted)
}

// Allocated gathers the devices, shares and capacity that allocated claims hold. Admin access holds nothing.
func (a *Allocator) Allocated(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if ptr.Deref(r.AdminAccess, false) {
				continue
			}
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if !a.features.ConsumableCapacity || r.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			if r.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		}
	}
	return state
}

// WithDefaults fills in what the API server would have: mode, count, and the operator of tolerations.
func WithDefaults(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			fill(&r.Exactly.AllocationMode, &r.Exactly.Count, r.Exactly.Tolerations)
		}
		for j := range r.FirstAvailable {
			fill(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count, r.FirstAvailable[j].Tolerations)
		}
	}
	return claim
}

func fill(mode *resourceapi.DeviceAllocationMode, count *int64, tolerations []resourceapi.DeviceToleration) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourceapi.DeviceTolerationOpEqual
		}
	}
}
