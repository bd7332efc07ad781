//go:build e2e

package e2e

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// as returns a client with a token of the plugin's service account, bound to what is given.
func (s *scene) as(bound *authenticationv1.BoundObjectReference) kubernetes.Interface {
	s.Helper()
	account := rig.DaemonSet
	token, err := s.client.CoreV1().ServiceAccounts(rig.Namespace).CreateToken(s.Context(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}, metav1.CreateOptions{})
	s.must(err)
	admin, err := s.Nodes.RESTConfig()
	s.must(err)
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	return client
}

// newSlice makes an empty slice of another pool generation, which allocators and the publisher
// of the node pass over.
func newSlice(node string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: rig.Driver, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: node, Generation: 0, ResourceSliceCount: 1},
		},
	}
}

// TestOnlyOwnSlices uses the token of one node's plugin, as somebody would who broke into that
// node: the slices of the other nodes are out of reach.
func TestOnlyOwnSlices(t *testing.T) {
	s := begin(t)
	ctx := t.Context()
	plugin := s.plugin(bridges)
	cheat := s.as(&authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: plugin.Name, UID: plugin.UID})
	node, err := s.client.CoreV1().Nodes().Get(ctx, cluster.NodeName(bridges), metav1.GetOptions{})
	s.must(err)
	byNode := s.as(&authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID})
	unbound := s.as(nil)

	list, err := rig.Slices(ctx, s.client)
	s.must(err)
	victims := slicesOfNode(list, islands)
	if len(victims) == 0 {
		t.Fatalf("%s has no slices", cluster.NodeName(islands))
	}
	victim := victims[0]
	changed := victim.DeepCopy()
	changed.Spec.Devices = nil
	moved := victim.DeepCopy()
	moved.Spec.NodeName, moved.Spec.Pool.Name = &node.Name, node.Name

	for _, client := range []kubernetes.Interface{cheat, byNode, unbound} {
		api := client.ResourceV1().ResourceSlices()
		// The node of a slice is immutable, whoever asks.
		if _, err := api.Update(ctx, moved, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("move to the own node: not refused: %v", err)
		}
		for what, try := range map[string]func() error{
			"create": func() error {
				_, err := api.Create(ctx, newSlice(cluster.NodeName(islands)), metav1.CreateOptions{})
				return err
			},
			"update": func() error { _, err := api.Update(ctx, changed, metav1.UpdateOptions{}); return err },
			"delete": func() error { return api.Delete(ctx, victim.Name, metav1.DeleteOptions{}) },
			"create in the other's pool": func() error {
				slice := newSlice(node.Name)
				slice.Spec.Pool.Name = cluster.NodeName(islands)
				_, err := api.Create(ctx, slice, metav1.CreateOptions{})
				return err
			},
		} {
			if err := try(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "own-slices") {
				t.Errorf("%s: not refused by the policy: %v", what, err)
			}
		}
	}
	if _, err := unbound.ResourceV1().ResourceSlices().Create(ctx, newSlice(node.Name), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a token that is bound to no node: not refused: %v", err)
	}
	after, err := s.client.ResourceV1().ResourceSlices().Get(ctx, victim.Name, metav1.GetOptions{})
	if err != nil || after.ResourceVersion != victim.ResourceVersion {
		t.Errorf("the slice was changed: %v", err)
	}

	// What is the node's own is allowed.
	for _, client := range []kubernetes.Interface{cheat, byNode} {
		own, err := client.ResourceV1().ResourceSlices().Create(ctx, newSlice(node.Name), metav1.CreateOptions{})
		if err != nil {
			t.Errorf("create a slice of the own node: %v", err)
			continue
		}
		err = client.ResourceV1().ResourceSlices().Delete(ctx, own.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete a slice of the own node: %v", err)
		}
	}
}

// warnings keeps what the API server warns of.
type warnings struct{ texts []string }

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

// TestMoreThanANode writes a claim that no node can have: it is taken, with a warning.
func TestMoreThanANode(t *testing.T) {
	s := begin(t)
	config, err := s.Nodes.RESTConfig()
	s.must(err)
	config = rest.CopyConfig(config)
	told := &warnings{}
	config.WarningHandler = told
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	for count, says := range map[int64]string{8: "", 17: "asks for 17 whole GPUs"} {
		told.texts = nil
		_, err := client.ResourceV1().ResourceClaims(s.namespace).Create(t.Context(), &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "many-"}, Spec: request{count: count}.spec(),
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		s.must(err)
		if got := strings.Join(told.texts, "\n"); (got == "") != (says == "") || !strings.Contains(got, says) {
			t.Errorf("for %d GPUs the API server warns %q, want %q", count, got, says)
		}
	}
}
