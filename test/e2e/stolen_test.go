//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// stolen returns a client with the token of a node's plugin, and the node's name.
func (s *scene) stolen(node int) (kubernetes.Interface, string) {
	s.Helper()
	plugin := s.plugin(node)
	return s.as(&authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: plugin.Name, UID: plugin.UID}), cluster.NodeName(node)
}

// TestStolenToken tries with the token of one node's plugin what an intruder would: everything is
// refused that the plugin does not need.
func TestStolenToken(t *testing.T) {
	s := begin(t)
	thief, own := s.stolen(bridges)
	other := cluster.NodeName(islands)
	const dra, ours = "/apis/resource.k8s.io/v1", "/api/v1/namespaces/" + rig.Namespace
	for _, try := range []struct{ verb, path string }{
		{"GET", "/api/v1/secrets"},
		{"GET", ours + "/secrets"},
		{"GET", ours + "/configmaps"},
		{"POST", ours + "/serviceaccounts/" + rig.DaemonSet + "/token"},
		{"GET", "/api/v1/pods"},
		{"POST", ours + "/pods"},
		{"DELETE", ours + "/pods/x"},
		{"POST", ours + "/pods/x/exec"},
		{"GET", "/api/v1/nodes"},
		{"PATCH", "/api/v1/nodes/" + own},
		{"PATCH", "/api/v1/nodes/" + own + "/status"},
		{"PATCH", "/api/v1/nodes/" + other},
		{"DELETE", "/api/v1/nodes/" + other},
		{"GET", dra + "/resourceclaims"},
		{"POST", dra + "/namespaces/" + s.namespace + "/resourceclaims"},
		{"PATCH", dra + "/namespaces/" + s.namespace + "/resourceclaims/x"},
		{"DELETE", dra + "/namespaces/" + s.namespace + "/resourceclaims/x"},
		{"DELETE", dra + "/resourceslices"},
		{"POST", dra + "/deviceclasses"},
		{"PATCH", dra + "/deviceclasses/gpu.nvidia.com"},
		{"POST", "/apis/resource.k8s.io/v1beta2/devicetaintrules"},
		{"POST", "/apis/resource.k8s.io/v1alpha3/devicetaintrules"},
		{"PATCH", "/apis/apps/v1/namespaces/" + rig.Namespace + "/daemonsets/" + rig.DaemonSet},
		{"POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"},
		{"PATCH", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gpu-dra-driver-own-slices"},
		{"DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/gpu-dra-driver-own-slices"},
		{"POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"},
		{"POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests"},
	} {
		kind := "application/json"
		if try.verb == "PATCH" {
			kind = "application/merge-patch+json"
		}
		// Never more than a try, should it be allowed.
		r := thief.CoreV1().RESTClient().Verb(try.verb).AbsPath(try.path).Param("dryRun", metav1.DryRunAll)
		if try.verb != "GET" {
			r = r.SetHeader("Content-Type", kind).Body([]byte("{}"))
		}
		if err := r.Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
			t.Errorf("%s %s is not refused: %v", try.verb, try.path, err)
		}
	}
	// The same client is somebody: what the plugin needs is let through.
	if _, err := thief.CoreV1().Nodes().Get(t.Context(), own, metav1.GetOptions{}); err != nil {
		t.Errorf("the own node: %v", err)
	}
}

// dry creates something for a try.
func dry() metav1.CreateOptions { return metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}} }

// TestLimitedNamespaces tries to share and to look in a namespace with the labels and in one without.
func TestLimitedNamespaces(t *testing.T) {
	s := begin(t)
	s.with(rig.Values{
		"deviceClasses.sharedExtendedResourceName":            "example.com/gpu-share",
		"admissionPolicy.sharing.namespaceLabels.e2e-sharing": "allowed", "admissionPolicy.adminAccess.namespaceLabels.e2e-team": "ops",
	})
	ctx := t.Context()
	allowed := s.makeNamespace(map[string]string{"e2e-sharing": "allowed", "e2e-team": "ops", "resource.kubernetes.io/admin-access": "true"})
	denied := s.makeNamespace(map[string]string{"e2e-sharing": "no", "resource.kubernetes.io/admin-access": "true"})
	claim := func(change func(*resourceapi.DeviceClaim)) func(namespace string) error {
		q := request{}.spec()
		change(&q.Devices)
		return func(namespace string) error {
			_, err := s.client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"}, Spec: q,
			}, dry())
			if err != nil {
				return err
			}
			_, err = s.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: q},
			}, dry())
			return err
		}
	}
	for name, c := range map[string]struct {
		create func(namespace string) error
		// says is a part of the refusal; empty where everybody may.
		says string
	}{
		"a whole GPU": {claim(func(*resourceapi.DeviceClaim) {}), ""},
		"a share": {claim(func(d *resourceapi.DeviceClaim) {
			d.Requests[0].Exactly.DeviceClassName = "shared.gpu.nvidia.com"
		}), "e2e-sharing=allowed"},
		"time slices": {claim(func(d *resourceapi.DeviceClaim) {
			opaque := &resourceapi.OpaqueDeviceConfiguration{Driver: rig.Driver}
			opaque.Parameters.Raw = []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing"}}`)
			d.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque}}}
		}), "e2e-sharing=allowed"},
		"admin access": {claim(func(d *resourceapi.DeviceClaim) { d.Requests[0].Exactly.AdminAccess = new(true) }), "e2e-team=ops"},
		"a pod's share": {func(namespace string) error {
			pod := plainPod("try", islands)
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/gpu-share": resource.MustParse("1")}
			_, err := s.client.CoreV1().Pods(namespace).Create(ctx, pod, dry())
			return err
		}, "e2e-sharing=allowed"},
	} {
		// A policy counts a moment after it was made.
		s.must(rig.Wait(ctx, podLimit, name+" is refused in a namespace without labels", func(context.Context) (string, error) {
			switch err := c.create(denied); {
			case c.says == "":
				return "", err
			case err == nil:
				return "it is allowed", nil
			case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.says):
				return "", err
			}
			return "", nil
		}))
		if err := c.create(allowed); err != nil {
			t.Errorf("%s in a namespace with the labels: %v", name, err)
		}
	}
}

// TestClaimsOfOthers writes, with the token of one node's plugin, into claims of that node and of another.
func TestClaimsOfOthers(t *testing.T) {
	s := begin(t)
	s.running(s.create(append(newPod("mine", bridges, request{}), newPod("theirs", islands, request{})...))...)
	thief, _ := s.stolen(bridges)
	ready := func(c *resourceapi.ResourceClaim) {
		r := c.Status.Allocation.Devices.Results[0]
		c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
			Driver: r.Driver, Pool: r.Pool, Device: r.Device,
			Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Try", LastTransitionTime: metav1.Now()}},
		}}
	}
	reserved := func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil }
	for what, try := range map[string]struct {
		pod     string
		change  func(*resourceapi.ResourceClaim)
		allowed bool
	}{
		"the state of an own device":           {"mine", ready, true},
		"the state of another node's device":   {"theirs", ready, false},
		"whom a claim is reserved for":         {"mine", reserved, false},
		"whom another's claim is reserved for": {"theirs", reserved, false},
		"an allocation":                        {"mine", func(c *resourceapi.ResourceClaim) { c.Status = resourceapi.ResourceClaimStatus{} }, false},
	} {
		s.must(rig.Wait(t.Context(), podLimit, fmt.Sprintf("%s can be written: %t", what, try.allowed), func(ctx context.Context) (string, error) {
			claims := s.client.ResourceV1().ResourceClaims(s.namespace)
			claim, err := claims.Get(ctx, rig.ClaimNames(s.getPod(try.pod))[0], metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			try.change(claim)
			_, err = thief.ResourceV1().ResourceClaims(s.namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			// Where the API server itself knows whose devices a plugin may write of, the object is invalid for it.
			refused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "is forbidden")
			switch {
			case apierrors.IsConflict(err):
				return "the node's own plugin writes, too", nil
			case err != nil && (try.allowed || !refused):
				return "", err
			case err == nil && !try.allowed:
				return "", errors.New("it is allowed")
			}
			return "", nil
		}))
	}
}
