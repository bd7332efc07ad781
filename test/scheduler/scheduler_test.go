package scheduler_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is an API with two nodes of four GPUs each.
func cluster(t *testing.T, more ...runtime.Object) (*kubeapi.Server, kubernetes.Interface) {
	t.Helper()
	api, err := kubeapi.Start(kubeapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	config := api.RESTConfig("scheduler")
	hc, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hc.CloseIdleConnections()
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := kubernetes.NewForConfigAndClient(config, hc)
	if err != nil {
		t.Fatal(err)
	}
	objects := append([]runtime.Object{node("n1"), node("n2"), gpus("n1", 4, 4), gpus("n2", 4, 4), class()}, more...)
	if err := api.Put(objects...); err != nil {
		t.Fatal(err)
	}
	return api, client
}

func get(t *testing.T, c kubernetes.Interface, name string) *resourceapi.ResourceClaim {
	t.Helper()
	claim, err := c.ResourceV1().ResourceClaims("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func TestAllocateReserveRelease(t *testing.T) {
	_, client := cluster(t, request(3))
	s, ctx := scheduler.New(client), t.Context()
	p1 := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "p1", UID: "u1"}
	p2 := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "p2", UID: "u2"}
	first, err := s.Allocate(ctx, "default", "c", "n1", p1)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Allocate(ctx, "default", "c", "n1", p2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.Status.Allocation, second.Status.Allocation); diff != "" || len(second.Status.ReservedFor) != 2 {
		t.Errorf("reserved for %v, allocation changed (-first +second):\n%s", second.Status.ReservedFor, diff)
	}
	if err := client.ResourceV1().ResourceClaims("default").Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if get(t, client, "c").DeletionTimestamp == nil {
		t.Error("an allocated claim is not held back from deletion")
	}
	left, err := s.Release(ctx, "default", "c", p1)
	if err != nil || left.Status.Allocation == nil {
		t.Fatalf("after the first release: %v, %v", left, err)
	}
	if _, err := s.Release(ctx, "default", "c", p2); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ResourceV1().ResourceClaims("default").Get(ctx, "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a deleted claim stays after its last release: %v", err)
	}
}

func TestScheduleFromTemplate(t *testing.T) {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "three"}}
	template.Spec.Spec = request(3).Spec
	template.Spec.Labels = map[string]string{"from": "template"}
	api, client := cluster(t, template)
	s, ctx := scheduler.New(client), t.Context()
	var pods []*corev1.Pod
	for _, want := range []string{"n1", "n2", ""} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: "default"}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("three")}}
		pod, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		bound, err := s.Schedule(ctx, pod)
		if want == "" {
			if _, misfit := scheduler.AsDoesNotFit(err); !misfit || !strings.Contains(err.Error(), "none of 2 nodes") {
				t.Errorf("third pod: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if bound.Spec.NodeName != want {
			t.Errorf("bound to %s, want %s", bound.Spec.NodeName, want)
		}
		pods = append(pods, bound)
	}
	claim := get(t, client, *pods[0].Status.ResourceClaimStatuses[0].ResourceClaimName)
	if claim.Annotations[resourceapi.PodResourceClaimAnnotation] != "gpu" || claim.Labels["from"] != "template" || !metav1.IsControlledBy(claim, pods[0]) {
		t.Errorf("claim from template: %+v", claim.ObjectMeta)
	}
	if diff := cmp.Diff([]resourceapi.ResourceClaimConsumerReference{scheduler.Consumer(pods[0])}, claim.Status.ReservedFor); diff != "" {
		t.Errorf("reservation (-want +got):\n%s", diff)
	}
	if err := s.Remove(ctx, pods[0]); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"pod":   second(client.CoreV1().Pods("default").Get(ctx, pods[0].Name, metav1.GetOptions{})),
		"claim": second(client.ResourceV1().ResourceClaims("default").Get(ctx, claim.Name, metav1.GetOptions{})),
	} {
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s after removal: %v, want not found", what, err)
		}
	}
	if n := len(api.Requests(kubeapi.Match{Verbs: []string{"create"}, Resource: "resourceclaims"})); n != 3 {
		t.Errorf("%d claims made, want 3", n)
	}
}

func second[T any](_ T, err error) error { return err }

func TestSharedClaimStaysOnItsNode(t *testing.T) {
	_, client := cluster(t, request(1))
	s, ctx := scheduler.New(client), t.Context()
	if _, err := s.Allocate(ctx, "default", "c", "n2"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ pinned, want string }{{"", "n2"}, {"n2", "n2"}, {"n1", ""}} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: "default"}}
		pod.Spec.NodeName = tc.pinned
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: ptr.To("c")}, {Name: "b", ResourceClaimName: ptr.To("c")}}
		pod, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		bound, err := s.Schedule(ctx, pod)
		switch {
		case tc.want == "" && (err == nil || !strings.Contains(err.Error(), "allocated elsewhere")):
			t.Errorf("pinned to %s: %v", tc.pinned, err)
		case tc.want != "" && (err != nil || bound.Spec.NodeName != tc.want):
			t.Errorf("pinned to %q: %v", tc.pinned, err)
		}
	}
}

func TestAPIErrorsComeThrough(t *testing.T) {
	api, client := cluster(t, request(1))
	s, ctx := scheduler.New(client), t.Context()
	for _, m := range []kubeapi.Match{
		{Resource: "resourceclaims", Verbs: []string{"get"}},
		{Resource: "nodes"},
		{Resource: "resourceslices"},
		{Resource: "deviceclasses"},
		{Resource: "resourceclaims", Verbs: []string{"list"}},
		{Resource: "resourceclaims", Verbs: []string{"update"}},
		{Resource: "resourceclaims", Subresource: "status"},
	} {
		remove := api.Inject(kubeapi.Fault{Match: m, Code: http.StatusForbidden})
		if _, err := s.Allocate(ctx, "default", "c", "n1"); !apierrors.IsForbidden(err) {
			t.Errorf("%+v: %v, want forbidden", m, err)
		}
		remove()
	}
	if get(t, client, "c").Status.Allocation != nil {
		t.Error("a failed allocation left something")
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("absent")}}
	if _, err := s.Schedule(ctx, pod); !apierrors.IsNotFound(err) {
		t.Errorf("absent template: %v, want not found", err)
	}
}
