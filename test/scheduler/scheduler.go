package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
)

// Scheduler allocates claims in an API server. It keeps no state and reads everything anew each time.
type Scheduler struct {
	client    kubernetes.Interface
	allocator *Allocator
}

// New returns a scheduler with the features of [allocation.Default137].
func New(client kubernetes.Interface) *Scheduler {
	return &Scheduler{client: client, allocator: NewAllocator(allocation.Default137())}
}

// Snapshot reads what the allocator needs.
func (s *Scheduler) Snapshot(ctx context.Context) (Cluster, error) {
	var c Cluster
	sliceList, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return c, fmt.Errorf("list slices: %w", err)
	}
	classes, err := s.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return c, fmt.Errorf("list classes: %w", err)
	}
	claims, err := s.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return c, fmt.Errorf("list claims: %w", err)
	}
	c.Slices, c.Classes, c.Claims = pointers(sliceList.Items), pointers(classes.Items), pointers(claims.Items)
	return c, nil
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// Allocate gives one claim devices on a node and, where consumers are given, reserves it for them. A claim that is
// allocated already is only reserved. It fails with a [*DoesNotFit] where there is no room.
func (s *Scheduler) Allocate(ctx context.Context, namespace, name, node string, consumers ...resourceapi.ResourceClaimConsumerReference) (*resourceapi.ResourceClaim, error) {
	claim, err := s.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get claim: %w", err)
	}
	if claim.Status.Allocation != nil {
		return s.write(ctx, claim, nil, consumers)
	}
	n, err := s.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node: %w", err)
	}
	cluster, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	results, err := s.allocator.Allocate(ctx, cluster, n, claim)
	if err != nil {
		return nil, err
	}
	return s.write(ctx, claim, &results[0], consumers)
}

// write stores an allocation and reservations, with the finalizer that keeps an allocated claim.
func (s *Scheduler) write(ctx context.Context, claim *resourceapi.ResourceClaim, result *resourceapi.AllocationResult, consumers []resourceapi.ResourceClaimConsumerReference) (*resourceapi.ResourceClaim, error) {
	claims := s.client.ResourceV1().ResourceClaims(claim.Namespace)
	if !slices.Contains(claim.Finalizers, resourceapi.Finalizer) {
		claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
		var err error
		if claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("add finalizer: %w", err)
		}
	}
	if result != nil {
		claim.Status.Allocation = result.DeepCopy()
		now := metav1.Now()
		claim.Status.Allocation.AllocationTimestamp = &now
	}
	for _, c := range consumers {
		if !slices.Contains(claim.Status.ReservedFor, c) {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, c)
		}
	}
	claim, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write allocation: %w", err)
	}
	return claim, nil
}

// Release ends the reservation for consumers. The allocation goes with the last one.
func (s *Scheduler) Release(ctx context.Context, namespace, name string, consumers ...resourceapi.ResourceClaimConsumerReference) (*resourceapi.ResourceClaim, error) {
	claims := s.client.ResourceV1().ResourceClaims(namespace)
	claim, err := claims.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get claim: %w", err)
	}
	claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
		return slices.Contains(consumers, r)
	})
	if len(claim.Status.ReservedFor) == 0 {
		claim.Status.Allocation, claim.Status.Devices = nil, nil
	}
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("release claim: %w", err)
	}
	if claim.Status.Allocation != nil {
		return claim, nil
	}
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourceapi.Finalizer })
	if claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("remove finalizer: %w", err)
	}
	return claim, nil
}

// Consumer is the reservation of a pod.
func Consumer(pod *corev1.Pod) resourceapi.ResourceClaimConsumerReference {
	return resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID}
}

// Schedule makes the pod's claims from their templates, finds the first node (by name; the pod's own where it has one) on which all of its claims
// fit, allocates and reserves them, and binds the pod. The pod must be in the API; the result is its
// new state. Where no node fits, the error has a [*DoesNotFit] for each node.
func (s *Scheduler) Schedule(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	pod, err := s.EnsureClaims(ctx, pod)
	if err != nil {
		return nil, err
	}
	claims, err := s.claimsOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	nodes, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	cluster, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var open []*resourceapi.ResourceClaim
	for _, c := range claims {
		if c.Status.Allocation == nil {
			open = append(open, c)
		}
	}
	var misfits []error
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
			continue
		}
		results, err := s.tryNode(ctx, cluster, node, claims, open)
		if _, misfit := AsDoesNotFit(err); misfit {
			misfits = append(misfits, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		return s.bind(ctx, pod, node.Name, claims, open, results)
	}
	return nil, errors.Join(append([]error{fmt.Errorf("pod %s/%s fits none of %d nodes", pod.Namespace, pod.Name, len(nodes.Items))}, misfits...)...)
}

// tryNode allocates the open claims on a node that all allocated ones can be used from.
func (s *Scheduler) tryNode(ctx context.Context, cluster Cluster, node *corev1.Node, claims, open []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	for _, c := range claims {
		if c.Status.Allocation == nil || c.Status.Allocation.NodeSelector == nil {
			continue
		}
		selector, err := nodeaffinity.NewNodeSelector(c.Status.Allocation.NodeSelector)
		if err != nil {
			return nil, fmt.Errorf("node selector of claim %s/%s: %w", c.Namespace, c.Name, err)
		}
		if !selector.Match(node) {
			return nil, &DoesNotFit{Node: node.Name, Reason: fmt.Sprintf("claim %s is allocated elsewhere", c.Name)}
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	return s.allocator.Allocate(ctx, cluster, node, open...)
}

func (s *Scheduler) bind(ctx context.Context, pod *corev1.Pod, node string, claims, open []*resourceapi.ResourceClaim, results []resourceapi.AllocationResult) (*corev1.Pod, error) {
	for _, c := range claims {
		var result *resourceapi.AllocationResult
		if i := slices.Index(open, c); i >= 0 {
			result = &results[i]
		}
		if _, err := s.write(ctx, c, result, []resourceapi.ResourceClaimConsumerReference{Consumer(pod)}); err != nil {
			return nil, err
		}
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	bound, err := s.client.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("bind pod: %w", err)
	}
	return bound, nil
}

// claimsOf reads the pod's claims, each once.
func (s *Scheduler) claimsOf(ctx context.Context, pod *corev1.Pod) ([]*resourceapi.ResourceClaim, error) {
	var claims []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if name == nil || slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == *name }) {
			continue
		}
		claim, err := s.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		claims = append(claims, claim)
	}
	return claims, nil
}
