package process_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/scheduler"
)

// schedule makes a claim and allocates it by the scheduler's allocator.
func schedule(t testing.TB, b *process.Bed, claim *resourceapi.ResourceClaim, consumers ...resourceapi.ResourceClaimConsumerReference) kubelet.Claim {
	t.Helper()
	claims := b.Client.ResourceV1().ResourceClaims(claim.Namespace)
	_, err := claims.Create(t.Context(), claim, metav1.CreateOptions{})
	must(t, err)
	allocated, err := b.Scheduler.Allocate(t.Context(), claim.Namespace, claim.Name, process.NodeName, consumers...)
	must(t, err)
	return kubelet.ClaimOf(allocated)
}

// pod uses a claim in one container.
func pod(name, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Spec: corev1.PodSpec{
			NodeName:       process.NodeName,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(claim)}},
			Containers: []corev1.Container{{
				Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}
}

// Two pods share a claim, over a restart of the kubelet; the last one's end unprepares it.
func TestPodsShareAClaim(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	first, second := pod("first", "shared"), pod("second", "shared")
	claim := b.Allocated("shared", []int{2}, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{scheduler.Consumer(first), scheduler.Consumer(second)}
	})
	ids, err := b.Kubelet.PreparePod(b.Context(), first)
	must(t, err)
	if len(ids["main"]) == 0 {
		t.Fatal("the container gets no CDI device")
	}
	b.StartKubelet(b.Kubelet.Stop())
	must(t, b.Kubelet.WaitForDriver(b.Context(), process.Driver))
	again, err := b.Kubelet.PreparePod(b.Context(), second)
	must(t, err)
	if diff := cmp.Diff(ids, again); diff != "" {
		t.Errorf("the second pod gets other devices: %s", diff)
	}
	must(t, b.Kubelet.UnpreparePod(b.Context(), first.UID))
	if !b.Record(claim.UID) {
		t.Error("the first pod's end took the claim from the second")
	}
	must(t, b.Kubelet.UnpreparePod(b.Context(), second.UID))
	clean(t, b)
}
