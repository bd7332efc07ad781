package scheduler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
)

// Cluster is what the allocator sees.
type Cluster = allocation.Cluster

// Allocator runs the library and says why claims do not fit. It may be used by several goroutines.
type Allocator struct{ allocator *allocation.Allocator }

// NewAllocator returns an allocator with the given features; see [allocation.Default137].
func NewAllocator(f structured.Features) *Allocator {
	return &Allocator{allocator: allocation.New(f)}
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
// took longer than [allocation.FilterTimeout].
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

// attempt is one run of the library, no longer than a scheduler waits; nil without error means that the claims do not fit.
func (a *Allocator) attempt(ctx context.Context, c Cluster, node *corev1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	ctx, cancel := context.WithTimeout(ctx, allocation.FilterTimeout)
	defer cancel()
	return a.allocator.Attempt(ctx, c, node, claims...)
}

// AsDoesNotFit tells whether err says that claims do not fit.
func AsDoesNotFit(err error) (*DoesNotFit, bool) {
	var d *DoesNotFit
	ok := errors.As(err, &d)
	return d, ok
}
