// Package podclaims finds the claims of a pod in a cluster's state: its own, those that its templates will
// make, and the one that the scheduler makes for its extended resources. It is for explaining and planning
// pods. It is pure, and must not know which devices there are.
package podclaims

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// finder looks claims, templates and classes up.
type finder struct{ state *state.State }

// Of are the claims of a pod. Those that nobody made yet are made up, without a UID. The error says what is
// missing: a claim, a template, or whoever serves an extended resource.
func Of(s *state.State, pod *corev1.Pod) ([]*resourceapi.ResourceClaim, error) {
	return finder{s}.claimsOf(pod)
}

func (f finder) claimsOf(pod *corev1.Pod) ([]*resourceapi.ResourceClaim, error) {
	var out []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		claim, err := f.claimOf(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if claim != nil {
			out = append(out, claim)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		claim, err := f.state.Claim(pod.Namespace, status.ResourceClaimName)
		if err != nil {
			return nil, fmt.Errorf("the claim for the pod's extended resources: %w", err)
		}
		return append(out, claim), nil
	}
	extended, err := f.extended(pod)
	if extended != nil {
		out = append(out, extended)
	}
	return out, err
}

// claimOf is one claim of a pod; nil where the pod needs none.
func (f finder) claimOf(pod *corev1.Pod, of *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	name, _, err := resourceclaim.Name(pod, of)
	switch {
	case err == nil && name == nil:
		return nil, nil
	case err == nil:
		claim, err := f.state.Claim(pod.Namespace, *name)
		if err != nil {
			return nil, fmt.Errorf("claim %s of the pod: %w: create it, or use a template", of.Name, err)
		}
		return claim, nil
	case of.ResourceClaimTemplateName == nil:
		return nil, fmt.Errorf("claim %s of the pod: %w", of.Name, err)
	}
	template, err := f.state.Template(pod.Namespace, *of.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("claim %s of the pod: %w: the pod waits until it is created", of.Name, err)
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-" + of.Name}, Spec: template.Spec.Spec,
	}, nil
}

// extended is the claim that a scheduler makes for extended resources that classes stand for; nil
// where there are none, or where a device plugin serves them.
func (f finder) extended(pod *corev1.Pod) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-extended-resources"}}
	containers := containersOf(pod)
	for _, name := range resources(containers) {
		class := f.classFor(string(name))
		if class == "" {
			if strings.HasPrefix(string(name), "nvidia.com/") && !f.plugged(name) {
				return nil, fmt.Errorf("container %s asks for %s, which no DeviceClass carries as extendedResourceName and no node's device plugin offers", asker(containers, name), name)
			}
			continue
		}
		for i, count := range counts(containers, name) {
			if count < 1 {
				continue
			}
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
				Name: fmt.Sprintf("container-%d-request-%d", i, slices.Index(containers[i].names(), name)),
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: class, Count: count, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				},
			})
		}
	}
	slices.SortFunc(claim.Spec.Devices.Requests, func(a, b resourceapi.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	if len(claim.Spec.Devices.Requests) == 0 {
		return nil, nil
	}
	return claim, nil
}

// container is one of a pod.
type container struct {
	corev1.Container
	// brief tells that it ends before those that come after it start.
	brief bool
}

// asks is how much it asks for of an extended resource, of which requests and limits are equal.
func (c container) asks(name corev1.ResourceName) int64 {
	amount := c.Resources.Limits[name]
	return amount.Value()
}

// names are the resources that it asks for, as the scheduler counts them.
func (c container) names() []corev1.ResourceName {
	all := slices.AppendSeq(slices.Collect(maps.Keys(c.Resources.Limits)), maps.Keys(c.Resources.Requests))
	slices.Sort(all)
	return slices.Compact(all)
}

// containersOf are the containers in the order in which the scheduler numbers them.
func containersOf(pod *corev1.Pod) (all []container) {
	for i, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		brief := i < len(pod.Spec.InitContainers) && ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways
		all = append(all, container{c, brief})
	}
	return all
}

// counts are the devices of a resource that each container gets of its own. Those that stay get what they
// ask for. Those that end before others start use what the later ones will have; sidecars that run already
// keep theirs. What is missing to the one that misses most is all that is asked for besides.
func counts(containers []container, name corev1.ResourceName) []int64 {
	out := make([]int64, len(containers))
	// later is what those behind have that stay.
	later, most, at := int64(0), int64(0), -1
	for i, c := range slices.Backward(containers) {
		switch missing := c.asks(name) - later; {
		case !c.brief:
			out[i] = max(0, c.asks(name))
			later += out[i]
		// Of equals the scheduler takes the first.
		case missing > 0 && missing >= most:
			most, at = missing, i
		}
	}
	if at >= 0 {
		out[at] = most
	}
	return out
}

// resources are all that containers ask for, sorted.
func resources(containers []container) []corev1.ResourceName {
	var all []corev1.ResourceName
	for _, c := range containers {
		for name := range c.Resources.Limits {
			if c.asks(name) > 0 {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// asker is the first container that asks for a resource.
func asker(containers []container, name corev1.ResourceName) string {
	for _, c := range containers {
		if c.asks(name) > 0 {
			return c.Name
		}
	}
	return ""
}

// classFor is the class that stands for an extended resource; of several the newest one.
func (f finder) classFor(name string) string {
	if class, ok := strings.CutPrefix(name, resourceapi.ResourceDeviceClassPrefix); ok {
		return class
	}
	var best *resourceapi.DeviceClass
	for _, c := range f.state.Classes {
		if c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != name {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&c.CreationTimestamp) {
			best = c
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

// plugged tells whether a node's device plugin offers a resource.
func (f finder) plugged(name corev1.ResourceName) bool {
	for _, n := range f.state.Nodes {
		if amount, ok := n.Status.Allocatable[name]; ok && !amount.IsZero() {
			return true
		}
	}
	return false
}
