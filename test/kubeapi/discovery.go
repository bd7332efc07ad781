package kubeapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

// Reported is the Kubernetes version that the server claims to be, if it is not told otherwise.
const Reported = "v1.37.2"

// SetVersion has the server claim another version, such as "v1.34.4". It behaves as before.
func (s *Server) SetVersion(version string) { s.version.Store(&version) }

func (s *Server) info() version.Info {
	reported := Reported
	if v := s.version.Load(); v != nil {
		reported = *v
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(reported, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	return version.Info{Major: major, Minor: minor, GitVersion: reported, Platform: "linux/amd64"}
}

// discover answers everything that is not a collection: versions, groups, readiness.
func (s *Server) discover(w http.ResponseWriter, req *http.Request) {
	switch path := strings.Trim(req.URL.Path, "/"); path {
	case "version":
		asJSON(w, http.StatusOK, s.info())
	case "readyz", "livez", "healthz":
		_, _ = w.Write([]byte("ok"))
	case "api":
		asJSON(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case "apis":
		asJSON(w, http.StatusOK, groups())
	default:
		s.discoverVersion(w, path)
	}
}

// discoverVersion answers api/v1 and apis/GROUP/VERSION with their resources.
func (s *Server) discoverVersion(w http.ResponseWriter, path string) {
	path, core := strings.CutPrefix(path, "api/")
	path = strings.TrimPrefix(path, "apis/")
	gv, err := schema.ParseGroupVersion(path)
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: path}
	for _, r := range storage.Served() {
		if err != nil || r.GroupVersion() != gv || core != (gv.Group == "") {
			continue
		}
		entry := metav1.APIResource{
			Name: r.Resource, SingularName: strings.ToLower(r.Kind), Kind: r.Kind, Namespaced: r.Namespaced,
			Verbs: metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		}
		list.APIResources = append(list.APIResources, entry)
		if r.Status {
			entry.Name, entry.SingularName, entry.Verbs = r.Resource+"/status", "", metav1.Verbs{"get", "patch", "update"}
			list.APIResources = append(list.APIResources, entry)
		}
	}
	if len(list.APIResources) == 0 {
		status, code := statusOf(apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", "", 0, true))
		asJSON(w, code, status)
		return
	}
	asJSON(w, http.StatusOK, list)
}

func groups() metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, r := range storage.Served() {
		known := slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == r.Group })
		if r.Group == "" || known {
			continue
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: r.GroupVersion().String(), Version: r.Version}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: r.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	return list
}

func asJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A client that has gone cannot be told anything.
	_ = json.NewEncoder(w).Encode(v)
}
