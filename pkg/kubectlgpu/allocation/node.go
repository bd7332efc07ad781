package allocation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Refusal says why a node does not take a pod, whatever its devices. Nodes of which only slices are
// known take every pod. It is empty when the node takes the pod.
func Refusal(node *corev1.Node, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) string {
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return "the pod is bound to node " + pod.Spec.NodeName
	}
	for _, c := range claims {
		if c.Status.Allocation == nil || c.Status.Allocation.NodeSelector == nil {
			continue
		}
		if selector, err := nodeaffinity.NewNodeSelector(c.Status.Allocation.NodeSelector); err == nil && !selector.Match(node) {
			return fmt.Sprintf("claim %s is allocated elsewhere", c.Name)
		}
	}
	if node.UID == "" && len(node.Labels) == 0 {
		return ""
	}
	if node.Spec.Unschedulable {
		return "the node is cordoned"
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return "the pod's node selector or affinity does not match"
	}
	taint, found := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, true)
	if found {
		return fmt.Sprintf("the pod does not tolerate the node's taint %s", taint.ToString())
	}
	return ""
}
