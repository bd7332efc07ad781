package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EnsureClaims makes the claims that the pod wants from templates and notes their names in the pod's
// status, as the claim controller does. Claims that are noted already are not made again.
func (s *Scheduler) EnsureClaims(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	var made []corev1.PodResourceClaimStatus
	for _, ref := range pod.Spec.ResourceClaims {
		known := slices.ContainsFunc(pod.Status.ResourceClaimStatuses, func(st corev1.PodResourceClaimStatus) bool { return st.Name == ref.Name })
		if ref.ResourceClaimTemplateName == nil || known {
			continue
		}
		template, err := s.client.ResourceV1().ResourceClaimTemplates(pod.Namespace).Get(ctx, *ref.ResourceClaimTemplateName, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("claim %s of pod %s/%s: %w", ref.Name, pod.Namespace, pod.Name, err)
		}
		claim, err := s.client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, fromTemplate(pod, ref.Name, template), metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("make claim %s of pod %s/%s: %w", ref.Name, pod.Namespace, pod.Name, err)
		}
		made = append(made, corev1.PodResourceClaimStatus{Name: ref.Name, ResourceClaimName: &claim.Name})
	}
	if len(made) == 0 {
		return pod, nil
	}
	pod = pod.DeepCopy()
	pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, made...)
	updated, err := s.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("note claims of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return updated, nil
}

func fromTemplate(pod *corev1.Pod, ref string, template *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaim {
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourceapi.PodResourceClaimAnnotation] = ref
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: pod.Name + "-" + ref + "-", Namespace: pod.Namespace,
			Labels: template.Spec.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// Remove deletes a pod whose containers have ended: its reservations go, claims without another consumer lose
// their allocation, and claims that were made for it are deleted. Call it after the kubelet has unprepared.
func (s *Scheduler) Remove(ctx context.Context, pod *corev1.Pod) error {
	claims, err := s.claimsOf(ctx, pod)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if _, err := s.Release(ctx, c.Namespace, c.Name, Consumer(pod)); err != nil {
			return err
		}
		if !metav1.IsControlledBy(c, pod) {
			continue
		}
		err := s.client.ResourceV1().ResourceClaims(c.Namespace).Delete(ctx, c.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete claim of pod: %w", err)
		}
	}
	err = s.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod: %w", err)
	}
	return nil
}
