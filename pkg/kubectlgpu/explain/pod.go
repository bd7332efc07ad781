package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// claimsOf are the claims of a pod: its own, those that its templates will make, and the one that
// the scheduler makes for its extended resources.
func (e *Explainer) claimsOf(pod *corev1.Pod) ([]*resourceapi.ResourceClaim, error) {
	var out []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		claim, err := e.claimOf(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if claim != nil {
			out = append(out, claim)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		claim, err := e.state.Claim(pod.Namespace, status.ResourceClaimName)
		if err != nil {
			return nil, fmt.Errorf("the claim for the pod's extended resources: %w", err)
		}
		return append(out, claim), nil
	}
	extended, err := e.extended(pod)
	if extended != nil {
		out = append(out, extended)
	}
	return out, err
}

// claimOf is one claim of a pod; nil where the pod needs none.
func (e *Explainer) claimOf(pod *corev1.Pod, of *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	name, _, err := resourceclaim.Name(pod, of)
	switch {
	case err == nil && name == nil:
		return nil, nil
	case err == nil:
		claim, err := e.state.Claim(pod.Namespace, *name)
		if err != nil {
			return nil, fmt.Errorf("claim %s of the pod: %w: create it, or use a template", of.Name, err)
		}
		return claim, nil
	case of.ResourceClaimTemplateName == nil:
		return nil, fmt.Errorf("claim %s of the pod: %w", of.Name, err)
	}
	template, err := e.state.Template(pod.Namespace, *of.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("claim %s of the pod: %w: the pod waits until it is created", of.Name, err)
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-" + of.Name}, Spec: template.Spec.Spec,
	}, nil
}

// extended is the claim that a scheduler makes for extended resources that classes stand for; nil
// where there are none, or where a device plugin serves them.
func (e *Explainer) extended(pod *corev1.Pod) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-extended-resources"}}
	for i, c := range pod.Spec.Containers {
		n := 0
		for name, amount := range c.Resources.Limits {
			class := e.classFor(string(name))
			if class == "" {
				continue
			}
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
				Name:    fmt.Sprintf("container-%d-request-%d", i, n),
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: amount.Value(), AllocationMode: resourceapi.DeviceAllocationModeExactCount},
			})
			n++
		}
		for name := range c.Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/") && e.classFor(string(name)) == "" && !e.plugged(name) {
				return nil, fmt.Errorf("container %s asks for %s, which no DeviceClass carries as extendedResourceName and no node's device plugin offers", c.Name, name)
			}
		}
	}
	if len(claim.Spec.Devices.Requests) == 0 {
		return nil, nil
	}
	return claim, nil
}

// classFor is the class that stands for an extended resource; of several the newest one.
func (e *Explainer) classFor(name string) string {
	if class, ok := strings.CutPrefix(name, resourceapi.ResourceDeviceClassPrefix); ok {
		return class
	}
	var best *resourceapi.DeviceClass
	for _, c := range e.state.Classes {
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
func (e *Explainer) plugged(name corev1.ResourceName) bool {
	for _, n := range e.state.Nodes {
		if amount, ok := n.Status.Allocatable[name]; ok && !amount.IsZero() {
			return true
		}
	}
	return false
}
