package kubeapi_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	applyresource "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-dra/driver/test/kubeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driver = "gpu.example.com"

// start runs a server that ends with the test.
func start(t testing.TB, o kubeapi.Options) *kubeapi.Server {
	t.Helper()
	s, err := kubeapi.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client returns a client whose idle connections end with the test.
func client(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	hc, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hc.CloseIdleConnections)
	c, err := kubernetes.NewForConfigAndClient(config, hc)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func must[T any](t testing.TB) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func slice(node, pool string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "00000-" + driver + "-" + node + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0"}},
		},
	}
}

func claim(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu"}},
		}}},
	}
}

// transports are all the ways in which a client may be configured.
func transports() map[string]func(*rest.Config) {
	return map[string]func(*rest.Config){
		"default":  func(*rest.Config) {},
		"json":     func(c *rest.Config) { c.ContentType = runtime.ContentTypeJSON },
		"protobuf": func(c *rest.Config) { c.ContentType = runtime.ContentTypeProtobuf },
		"accept": func(c *rest.Config) {
			c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		},
	}
}

func TestObjectLifeOverEveryTransport(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for name, set := range transports() {
			t.Run(fmt.Sprintf("%s/plain=%t", name, plain), func(t *testing.T) {
				s := start(t, kubeapi.Options{PlainHTTP: plain})
				config := s.RESTConfig("tester")
				set(config)
				life(t, client(t, config))
			})
		}
	}
}

// life walks a slice through create, get, list, update, delete.
func life(t *testing.T, c kubernetes.Interface) {
	ctx := t.Context()
	slices := c.ResourceV1().ResourceSlices()
	made := must[*resourceapi.ResourceSlice](t)(slices.Create(ctx, slice("n1", "n1"), metav1.CreateOptions{}))
	if !strings.HasPrefix(made.Name, "00000-"+driver) || made.UID == "" || made.ResourceVersion == "" || made.Generation != 1 || made.CreationTimestamp.IsZero() {
		t.Errorf("created without identity: %+v", made.ObjectMeta)
	}
	got := must[*resourceapi.ResourceSlice](t)(slices.Get(ctx, made.Name, metav1.GetOptions{}))
	if diff := cmp.Diff(made, got); diff != "" {
		t.Errorf("get differs from what create answered (-created +got):\n%s", diff)
	}
	same := must[*resourceapi.ResourceSlice](t)(slices.Update(ctx, got, metav1.UpdateOptions{}))
	if same.ResourceVersion != made.ResourceVersion {
		t.Errorf("an update without change made version %s of %s", same.ResourceVersion, made.ResourceVersion)
	}
	changed := got.DeepCopy()
	changed.Spec.Devices[0].Name = "gpu-1"
	changed = must[*resourceapi.ResourceSlice](t)(slices.Update(ctx, changed, metav1.UpdateOptions{}))
	if changed.Generation != 2 || changed.ResourceVersion == made.ResourceVersion {
		t.Errorf("after a change of the spec: %+v", changed.ObjectMeta)
	}
	if _, err := slices.Update(ctx, got, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update from an old version: %v, want a conflict", err)
	}
	list := must[*resourceapi.ResourceSliceList](t)(slices.List(ctx, metav1.ListOptions{}))
	if len(list.Items) != 1 || list.Items[0].Kind != "" || list.ResourceVersion != changed.ResourceVersion {
		t.Errorf("list: %d items, kind %q, version %s", len(list.Items), list.Items[0].Kind, list.ResourceVersion)
	}
	wrong := types.UID("other")
	if err := slices.Delete(ctx, made.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}); !apierrors.IsConflict(err) {
		t.Errorf("delete of another UID: %v, want a conflict", err)
	}
	if err := slices.Delete(ctx, made.Name, *metav1.NewPreconditionDeleteOptions(string(made.UID))); err != nil {
		t.Error(err)
	}
	if _, err := slices.Get(ctx, made.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v, want not found", err)
	}
}

func TestFieldSelectors(t *testing.T) {
	s := start(t, kubeapi.Options{})
	c := client(t, s.RESTConfig("tester"))
	ctx := t.Context()
	for _, node := range []string{"n1", "n1", "n2"} {
		must[*resourceapi.ResourceSlice](t)(c.ResourceV1().ResourceSlices().Create(ctx, slice(node, "pool-"+node), metav1.CreateOptions{}))
	}
	count := func(selector string) int {
		list, err := c.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Errorf("%s: %v", selector, err)
			return -1
		}
		return len(list.Items)
	}
	for selector, want := range map[string]int{
		"": 3, "spec.nodeName=n1": 2, "spec.nodeName=n1,spec.driver=" + driver: 2, "spec.driver=other": 0,
		"spec.pool.name=pool-n2": 1, "spec.nodeName!=n1": 1, "metadata.name=absent": 0,
	} {
		if got := count(selector); got != want {
			t.Errorf("%q selects %d, want %d", selector, got, want)
		}
	}
	if _, err := c.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.devices=x"}); !apierrors.IsBadRequest(err) {
		t.Errorf("unknown field: %v, want bad request", err)
	}
	err := c.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	if err != nil || count("") != 1 {
		t.Errorf("after deletecollection of n1: %v, %d left, want 1", err, count(""))
	}
}

func TestStatusIsApart(t *testing.T) {
	s := start(t, kubeapi.Options{})
	c := client(t, s.RESTConfig("tester"))
	ctx, claims := t.Context(), c.ResourceV1().ResourceClaims("default")
	want := resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}}
	given := claim("c")
	given.Status = want
	made := must[*resourceapi.ResourceClaim](t)(claims.Create(ctx, given, metav1.CreateOptions{}))
	if len(made.Status.ReservedFor) != 0 {
		t.Error("create kept a status")
	}
	made.Status = want
	made.Labels = map[string]string{"a": "b"}
	made = must[*resourceapi.ResourceClaim](t)(claims.UpdateStatus(ctx, made, metav1.UpdateOptions{}))
	if diff := cmp.Diff(want, made.Status); diff != "" || made.Labels != nil {
		t.Errorf("status update: labels %v, status (-want +got):\n%s", made.Labels, diff)
	}
	made.Status, made.Labels = resourceapi.ResourceClaimStatus{}, map[string]string{"a": "b"}
	made = must[*resourceapi.ResourceClaim](t)(claims.Update(ctx, made, metav1.UpdateOptions{}))
	if diff := cmp.Diff(want, made.Status); diff != "" || made.Labels["a"] != "b" {
		t.Errorf("update: labels %v, status (-want +got):\n%s", made.Labels, diff)
	}
	made.Spec.Devices.Requests[0].Name = "other"
	if _, err := claims.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("change of a claim's spec: %v, want invalid", err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}
	if got := must[*corev1.Node](t)(c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})); got.Status.Phase != corev1.NodeRunning {
		t.Error("create of a node lost its status")
	}
}

func TestFinalizerHoldsDeletion(t *testing.T) {
	s := start(t, kubeapi.Options{})
	claims := client(t, s.RESTConfig("tester")).ResourceV1().ResourceClaims("default")
	given := claim("c")
	given.Finalizers = []string{"example.com/hold"}
	must[*resourceapi.ResourceClaim](t)(claims.Create(t.Context(), given, metav1.CreateOptions{}))
	if err := claims.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	held := must[*resourceapi.ResourceClaim](t)(claims.Get(t.Context(), "c", metav1.GetOptions{}))
	if held.DeletionTimestamp == nil {
		t.Error("no deletionTimestamp")
	}
	held.Finalizers = nil
	must[*resourceapi.ResourceClaim](t)(claims.Update(t.Context(), held, metav1.UpdateOptions{}))
	if _, err := claims.Get(t.Context(), "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer: %v, want not found", err)
	}
}

func TestPatches(t *testing.T) {
	s := start(t, kubeapi.Options{})
	claims := client(t, s.RESTConfig("tester")).ResourceV1().ResourceClaims("default")
	must[*resourceapi.ResourceClaim](t)(claims.Create(t.Context(), claim("c"), metav1.CreateOptions{}))
	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType:          `{"metadata":{"labels":{"merge":"1"}}}`,
		types.StrategicMergePatchType: `{"metadata":{"labels":{"strategic":"1"}}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/metadata/annotations","value":{"json":"1"}}]`,
	} {
		if _, err := claims.Patch(t.Context(), "c", kind, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := claims.Patch(t.Context(), "c", kind, []byte(`{`), metav1.PatchOptions{}); !apierrors.IsBadRequest(err) {
			t.Errorf("%s of broken JSON: %v, want bad request", kind, err)
		}
		if _, err := claims.Patch(t.Context(), "absent", kind, []byte(patch), metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s of nothing: %v, want not found", kind, err)
		}
	}
	got := must[*resourceapi.ResourceClaim](t)(claims.Get(t.Context(), "c", metav1.GetOptions{}))
	if diff := cmp.Diff(map[string]string{"merge": "1", "strategic": "1"}, got.Labels); diff != "" || got.Annotations["json"] != "1" {
		t.Errorf("annotations %v, labels (-want +got):\n%s", got.Annotations, diff)
	}
	stale := `{"metadata":{"resourceVersion":"1","labels":{"merge":"2"}}}`
	if _, err := claims.Patch(t.Context(), "c", types.MergePatchType, []byte(stale), metav1.PatchOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("patch with an old version: %v, want a conflict", err)
	}
}

func TestApplyOwnsItsDevices(t *testing.T) {
	s := start(t, kubeapi.Options{})
	claims := client(t, s.RESTConfig("tester")).ResourceV1().ResourceClaims("default")
	must[*resourceapi.ResourceClaim](t)(claims.Create(t.Context(), claim("c"), metav1.CreateOptions{}))
	apply := func(who string, devices ...string) *resourceapi.ResourceClaim {
		status := applyresource.ResourceClaimStatus()
		for _, d := range devices {
			status.WithDevices(applyresource.AllocatedDeviceStatus().WithDriver(who).WithPool("p").WithDevice(d))
		}
		return must[*resourceapi.ResourceClaim](t)(claims.ApplyStatus(t.Context(),
			applyresource.ResourceClaim("c", "default").WithStatus(status), metav1.ApplyOptions{FieldManager: who, Force: true}))
	}
	apply("a.example.com", "d0", "d1")
	both := apply("b.example.com", "d0")
	if n := len(both.Status.Devices); n != 3 {
		t.Errorf("%d devices after two drivers applied, want 3", n)
	}
	again := apply("b.example.com", "d0")
	if again.ResourceVersion != both.ResourceVersion {
		t.Error("the same apply again made a new version")
	}
	one := apply("a.example.com", "d1")
	var left []string
	for _, d := range one.Status.Devices {
		left = append(left, d.Driver+"/"+d.Device)
	}
	if diff := cmp.Diff([]string{"a.example.com/d1", "b.example.com/d0"}, left); diff != "" {
		t.Errorf("after an apply without d0 (-want +got):\n%s", diff)
	}
}

func TestBadRequests(t *testing.T) {
	s := start(t, kubeapi.Options{})
	for _, tc := range []struct {
		name, method, path, auth, contentType, body string
		want                                        int
	}{
		{"no token", "GET", "/api/v1/nodes", "", "", "", http.StatusUnauthorized},
		{"unknown resource", "GET", "/api/v1/secrets", "u", "", "", http.StatusNotFound},
		{"unknown version", "GET", "/apis/resource.k8s.io/v1beta1/resourceslices", "u", "", "", http.StatusNotFound},
		{"unknown subresource", "GET", "/api/v1/nodes/n1/proxy", "u", "", "", http.StatusNotFound},
		{"unknown path", "GET", "/metrics", "u", "", "", http.StatusNotFound},
		{"unknown group", "GET", "/apis/apps/v1", "u", "", "", http.StatusNotFound},
		{"broken JSON", "POST", "/api/v1/nodes", "u", "application/json", "{", http.StatusBadRequest},
		{"other kind", "POST", "/api/v1/nodes", "u", "application/json", `{"kind":"Pod","apiVersion":"v1"}`, http.StatusBadRequest},
		{"unknown encoding", "POST", "/api/v1/nodes", "u", "text/plain", "x", http.StatusUnsupportedMediaType},
		{"no name", "POST", "/api/v1/nodes", "u", "application/json", `{"kind":"Node","apiVersion":"v1"}`, http.StatusUnprocessableEntity},
		{"bad name", "POST", "/api/v1/nodes", "u", "application/json", `{"metadata":{"name":"A_b"}}`, http.StatusUnprocessableEntity},
		{"other namespace", "POST", "/api/v1/namespaces/a/pods", "u", "application/json", `{"metadata":{"name":"p","namespace":"b"}}`, http.StatusBadRequest},
		{"bad selector", "GET", "/api/v1/pods?labelSelector=a%3D%3D%3Db", "u", "", "", http.StatusBadRequest},
		{"bad version", "GET", "/api/v1/pods?watch=1&resourceVersion=x", "u", "", "", http.StatusBadRequest},
		{"half a watch list", "GET", "/api/v1/pods?watch=1&sendInitialEvents=true", "u", "", "", http.StatusBadRequest},
		{"ready", "GET", "/readyz", "", "", "", http.StatusOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), tc.method, s.URL()+tc.path, strings.NewReader(tc.body)))
			if tc.auth != "" {
				req.Header.Set("Authorization", "Bearer "+tc.auth)
			}
			req.Header.Set("Content-Type", tc.contentType)
			transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			answer := must[*http.Response](t)(transport.RoundTrip(req))
			defer answer.Body.Close()
			if answer.StatusCode != tc.want {
				t.Errorf("status %d, want %d", answer.StatusCode, tc.want)
			}
		})
	}
}

func TestKubeconfigReachesTheServer(t *testing.T) {
	for user, plain := range map[string]bool{"someone": false, "": true} {
		s := start(t, kubeapi.Options{PlainHTTP: plain})
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := s.WriteKubeconfig(path, "someone"); err != nil {
			t.Fatal(err)
		}
		config := must[*rest.Config](t)(clientcmd.BuildConfigFromFlags("", path))
		c := client(t, config)
		info, err := c.Discovery().ServerVersion()
		if err != nil || info.GitVersion != kubeapi.Reported || info.Minor != "37" {
			t.Errorf("version: %+v, %v", info, err)
		}
		_, lists, err := c.Discovery().ServerGroupsAndResources()
		if err != nil || len(lists) != 4 {
			t.Errorf("discovery: %d lists, %v, want 4", len(lists), err)
		}
		must[*corev1.NodeList](t)(c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))
		if got := s.Requests(kubeapi.Match{Verbs: []string{"list"}, Resource: "nodes"}); len(got) != 1 || got[0].Code != http.StatusOK || got[0].User != user {
			t.Errorf("request log: %+v, want one list by %q", got, user)
		}
	}
}

func TestLoadAndPut(t *testing.T) {
	s := start(t, kubeapi.Options{})
	const manifests = `
apiVersion: v1
kind: Node
metadata: {name: n1, uid: node-uid}
---
# nothing here
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
status:
  reservedFor: [{resource: pods, name: p, uid: u}]
`
	for range 2 { // the second time replaces
		if err := s.Load(strings.NewReader(manifests)); err != nil {
			t.Fatal(err)
		}
	}
	c := client(t, s.RESTConfig("tester"))
	if n := must[*corev1.Node](t)(c.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})); n.UID != "node-uid" {
		t.Errorf("UID %q", n.UID)
	}
	if c := must[*resourceapi.ResourceClaim](t)(c.ResourceV1().ResourceClaims("default").Get(t.Context(), "c", metav1.GetOptions{})); len(c.Status.ReservedFor) != 1 || c.Generation != 2 {
		t.Errorf("claim: %+v", c)
	}
	for _, bad := range []string{"kind: Node\napiVersion: v1\nspce: {}\n", "kind: Secret\napiVersion: v1\n", "kind: Unknown\napiVersion: v1\n", "{"} {
		if err := s.Load(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestDryRunStoresNothing(t *testing.T) {
	s := start(t, kubeapi.Options{})
	c := client(t, s.RESTConfig("tester"))
	dry := []string{metav1.DryRunAll}
	claims := c.ResourceV1().ResourceClaims("default")
	must[*resourceapi.ResourceClaim](t)(claims.Create(t.Context(), claim("c"), metav1.CreateOptions{DryRun: dry}))
	if _, err := claims.Get(t.Context(), "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry create: %v", err)
	}
	must[*resourceapi.ResourceClaim](t)(claims.Create(t.Context(), claim("c"), metav1.CreateOptions{}))
	if err := claims.Delete(t.Context(), "c", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	must[*resourceapi.ResourceClaim](t)(claims.Get(t.Context(), "c", metav1.GetOptions{}))
}

func BenchmarkGetClaim(b *testing.B) {
	s := start(b, kubeapi.Options{})
	claims := client(b, s.RESTConfig("bench")).ResourceV1().ResourceClaims("default")
	ctx := context.Background()
	if _, err := claims.Create(ctx, claim("c"), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := claims.Get(ctx, "c", metav1.GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// eventually waits until done, and fails the test after 10 s.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(10 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
