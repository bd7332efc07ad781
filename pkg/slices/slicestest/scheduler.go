// Package slicestest runs the scheduler's own allocator on slices that were never published, for
// tests and benchmarks of what claims get. It must not be imported by the product.
package slicestest

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// Driver is the driver's name, Node the node's and its pool's.
const (
	Driver = "gpu.nvidia.com"
	Node   = "node-1"
)

// Class is the DeviceClass of whole GPUs, ClassMIG that of partitions, ClassShared that of shares
// of both.
const (
	Class       = "gpu.nvidia.com"
	ClassMIG    = "mig.nvidia.com"
	ClassShared = "shared.gpu.nvidia.com"
)

// Scheduler is one node's view of a scheduler that has default settings.
type Scheduler struct {
	features structured.Features
	classes  classes
	slices   []*resourceapi.ResourceSlice
	cache    *cel.Cache
	state    structured.AllocatedState
}

// New makes a scheduler for a pool that the driver wants to publish. The features are those of
// a scheduler of Kubernetes 1.37 with default feature gates, and list attributes where wanted.
func New(pool []resourceslice.Slice, lists bool) *Scheduler {
	features := structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true, ListTypeAttributes: lists,
	}
	const ours = `device.driver == "gpu.nvidia.com"`
	return &Scheduler{
		features: features,
		classes: classes{
			class(Class, ours+` && device.attributes["gpu.nvidia.com"].type == "gpu" && !device.allowMultipleAllocations`),
			class(ClassMIG, ours+` && device.attributes["gpu.nvidia.com"].type == "mig" && !device.allowMultipleAllocations`),
			class(ClassShared, ours+` && device.allowMultipleAllocations`),
		},
		slices: Objects(pool),
		cache:  cel.NewCache(100, cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: lists}),
		state: structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		},
	}
}

// Objects gives the API objects of a pool as the library's controller writes them.
func Objects(pool []resourceslice.Slice) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for i, s := range pool {
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s-abcde", i, Driver, Node)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: Driver, NodeName: ptr.To(Node), Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: Node, Generation: 1, ResourceSliceCount: int64(len(pool))},
			},
		})
	}
	return out
}

// Take marks devices as allocated to somebody.
func (s *Scheduler) Take(devices ...string) {
	for _, d := range devices {
		s.state.AllocatedDevices.Insert(structured.MakeDeviceID(Driver, Node, d))
	}
}

// Return ends what Take began.
func (s *Scheduler) Return(devices ...string) {
	for _, d := range devices {
		s.state.AllocatedDevices.Delete(structured.MakeDeviceID(Driver, Node, d))
	}
}

// Allocate gives the names of the devices that a claim gets, in order, and marks them as taken;
// nil when the claim does not fit. Free asks without taking.
func (s *Scheduler) Allocate(ctx context.Context, claim *resourceapi.ResourceClaim) ([]string, error) {
	results, err := s.try(ctx, claim)
	var out []string
	for _, r := range results {
		out = append(out, r.Device)
		id := structured.MakeDeviceID(Driver, Node, r.Device)
		switch {
		case ptr.Deref(r.AdminAccess, false):
		case r.ShareID == nil:
			s.state.AllocatedDevices.Insert(id)
		default:
			s.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			s.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	return out, err
}

// Free gives the names of the devices that a claim would get now.
func (s *Scheduler) Free(ctx context.Context, claim *resourceapi.ResourceClaim) ([]string, error) {
	results, err := s.try(ctx, claim)
	var out []string
	for _, r := range results {
		out = append(out, r.Device)
	}
	return out, err
}

func (s *Scheduler) try(ctx context.Context, claim *resourceapi.ResourceClaim) ([]resourceapi.DeviceRequestAllocationResult, error) {
	allocator, err := structured.NewAllocator(ctx, s.features, s.state, s.classes, s.slices, s.cache)
	if err != nil {
		return nil, fmt.Errorf("making the allocator: %w", err)
	}
	results, err := allocator.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Node}}, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return nil, fmt.Errorf("allocating: %w", err)
	}
	var out []resourceapi.DeviceRequestAllocationResult
	for _, r := range results {
		out = append(out, r.Devices.Results...)
	}
	return out, nil
}

// Claim makes a claim of requests; constraint is the attribute that all devices must share,
// empty for none.
func Claim(constraint string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "uid"}}
	c.Spec.Devices.Requests = requests
	if constraint != "" {
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(constraint))}}
	}
	return c
}

// Request asks for count whole GPUs that match all selectors.
func Request(name string, count int64, selectors ...string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: Class,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount, Count: count, Selectors: asSelectors(selectors),
	}}
}

// Partition asks for count partitions that match all selectors.
func Partition(name string, count int64, selectors ...string) resourceapi.DeviceRequest {
	r := Request(name, count, selectors...)
	r.Exactly.DeviceClassName = ClassMIG
	return r
}

// Share asks for count shares of devices, each with so much of the given capacities: "memory=4Gi".
func Share(name string, count int64, capacities ...string) resourceapi.DeviceRequest {
	r := Request(name, count)
	r.Exactly.DeviceClassName = ClassShared
	for _, capacity := range capacities {
		name, amount, _ := strings.Cut(capacity, "=")
		if r.Exactly.Capacity == nil {
			r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		r.Exactly.Capacity.Requests[resourceapi.QualifiedName(name)] = resource.MustParse(amount)
	}
	return r
}

// FirstOf asks for the first alternative that fits; each is made by Request.
func FirstOf(name string, alternatives ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	out := resourceapi.DeviceRequest{Name: name}
	for _, a := range alternatives {
		out.FirstAvailable = append(out.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: a.Name, DeviceClassName: a.Exactly.DeviceClassName,
			AllocationMode: a.Exactly.AllocationMode, Count: a.Exactly.Count, Selectors: a.Exactly.Selectors,
		})
	}
	return out
}

func asSelectors(expressions []string) []resourceapi.DeviceSelector {
	var out []resourceapi.DeviceSelector
	for _, e := range expressions {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

func class(name, expression string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: asSelectors([]string{expression})}}
}

// classes is the list of device classes that the allocator looks in.
type classes []*resourceapi.DeviceClass

// List gives all classes.
func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

// Get finds a class by name.
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, x := range c {
		if x.Name == name {
			return x, nil
		}
	}
	return nil, fmt.Errorf("there is no device class %q", name)
}
