package scheduler

import (
	"context"
	"errors"
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

// FilterTimeout is how long the scheduler lets the allocator search on one node.
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

// NewAllocator returns an allocator with the given features; see [Default137].
func NewAllocator(f structured.Features) *Allocator {
	const programs = 100 // compiled CEL expressions
	return &Allocator{features: f, cache: cel.NewCache(programs, cel.Features{
		EnableConsumableCapacity: f.ConsumableCapacity, EnableListTypeAttributes: f.ListTypeAttributes,
	})}
}

// DoesNotFit says that claims cannot be allocated on a node, and why.
type DoesNotFit struct {
	Node string
	// Reason is the first relaxation that would let them fit, in words.
	Reason string
}

func (e *DoesNotFit) Error() string {
	return fmt.Sprintf("claims do not fit node %s: %s", e.Node, e.Reason)
}

// Allocate finds devices on node for all claims together, one result for each in their order. The error
// is a [*DoesNotFit] where there are none, and something else where the input is broken or the search
// took longer than [FilterTimeout].
func (a *Allocator) Allocate(ctx context.Context, c Cluster, node *corev1.Node, claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	results, err := a.attempt(ctx, c, node, claims)
	if err != nil {
		return nil, fmt.Errorf("allocate on node %s: %w", node.Name, err)
	}
	if results == nil {
		return nil, &DoesNotFit{Node: node.Name, Reason: a.explain(ctx, c, node, claims)}
	}
	return results, nil
}

// attempt is one run of the library; nil without error means that the claims do not fit.
func (a *Allocator) attempt(ctx context.Context, c Cluster, node *corev1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	ctx, cancel := context.WithTimeout(ctx, FilterTimeout)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, a.features, a.allocated(c.Claims), c, c.Slices, a.cache)
	if err != nil {
		return nil, fmt.Errorf("start allocator: %w", err)
	}
	defaulted := make([]*resourceapi.ResourceClaim, len(claims))
	for i, claim := range claims {
		defaulted[i] = withDefaults(claim)
	}
	return allocator.Allocate(ctx, node, defaulted)
}

// allocated gathers the devices, shares and capacity that allocated claims hold. Admin access holds nothing.
func (a *Allocator) allocated(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
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

// withDefaults fills in what the API server would have: mode, count, and the operator of tolerations.
func withDefaults(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
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

// AsDoesNotFit tells whether err says that claims do not fit.
func AsDoesNotFit(err error) (*DoesNotFit, bool) {
	var d *DoesNotFit
	ok := errors.As(err, &d)
	return d, ok
}
