package state_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// metrics is a part of what an API server of 1.37 answers.
const metrics = `# HELP apiserver_request_total Counter of requests
# TYPE apiserver_request_total counter
apiserver_request_total{verb="LIST"} 3
# HELP kubernetes_feature_enabled [BETA] This metric records the data about the stage and enablement of a k8s feature.
# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="BETA"} 1
kubernetes_feature_enabled{name="DRAListTypeAttributes",stage="ALPHA"} 0
kubernetes_feature_enabled{name="DynamicResourceAllocation",stage=""} 1
kubernetes_feature_enabled_elsewhere{name="Other"} 1
`

// asked gives what is known after an API server answered so.
func asked(t *testing.T, code int, answer string) *state.State {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			t.Errorf("%s is asked for", r.URL.Path)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	s := &state.State{}
	s.ReadFeatures(t.Context(), client.Discovery().RESTClient())
	return s
}

func TestFeatures(t *testing.T) {
	s := asked(t, http.StatusOK, metrics)
	want := map[string]bool{"DRAConsumableCapacity": true, "DRAListTypeAttributes": false, "DynamicResourceAllocation": true}
	if diff := cmp.Diff(want, s.Features); diff != "" || len(s.Unread) > 0 {
		t.Errorf("unread %v, features (-want +got):\n%s", s.Unread, diff)
	}
}

// Who may not read them is told so, and knows nothing.
func TestFeaturesThatCannotBeRead(t *testing.T) {
	for name, tc := range map[string]struct {
		code   int
		answer string
		want   string
	}{
		"forbidden": {http.StatusForbidden, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no, you"}`, "no, you"},
		"garbage":   {http.StatusOK, `kubernetes_feature_enabled{name="a" 1`, "metric kubernetes_feature_enabled"},
	} {
		s := asked(t, tc.code, tc.answer)
		if s.Features != nil || len(s.Unread) != 1 || !strings.Contains(s.Unread[0].String(), "feature gates") || !strings.Contains(s.Unread[0].String(), tc.want) {
			t.Errorf("%s: features %v, unread %v", name, s.Features, s.Unread)
		}
	}
	if s := asked(t, http.StatusOK, ""); s.Features == nil || len(s.Features) > 0 || len(s.Unread) > 0 {
		t.Errorf("a server without the metric: %v, %v", s.Features, s.Unread)
	}
}

// The gates go into a file and come back.
func TestFeaturesOfFiles(t *testing.T) {
	if (&state.State{}).FeaturesObject() != nil {
		t.Error("nothing is known, and is saved")
	}
	want := map[string]bool{"A": true, "B": false}
	text, err := yaml.Marshal((&state.State{Features: want}).FeaturesObject())
	if err != nil {
		t.Fatal(err)
	}
	s := &state.State{}
	objects, err := state.Decode([]byte(string(text) + "---\napiVersion: kubectl-gpu/v1alpha1\nkind: Other\nfeatures: {C: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if err := s.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, s.Features); diff != "" {
		t.Errorf("features (-want +got):\n%s", diff)
	}
	odd, err := state.Decode([]byte("apiVersion: kubectl-gpu/v1alpha1\nkind: ClusterFeatures\nfeatures: {A: maybe, B: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(odd[0]); err != nil || cmp.Diff(map[string]bool{"B": true}, s.Features) != "" {
		t.Errorf("%v, %v", s.Features, err)
	}
}
