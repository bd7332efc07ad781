package kubeapi

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

// manager names the field manager of a request the way the API server does.
func manager(req *http.Request) string {
	if m := req.URL.Query().Get("fieldManager"); m != "" {
		return m
	}
	name, _, _ := strings.Cut(req.UserAgent(), "/")
	return name
}

func (s *Server) patch(w http.ResponseWriter, req *http.Request, r *storage.Resource, call Request) (runtime.Object, error) {
	data, err := body(w, req)
	if err != nil {
		return nil, err
	}
	media, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Content-Type: %v", err))
	}
	kind := types.PatchType(media)
	if kind == types.ApplyYAMLPatchType {
		return s.apply(req, r, call, data)
	}
	return s.store.Update(r, call.Subresource, call.key(), dryRun(req), func(old storage.Object) (storage.Object, error) {
		patched, err := storage.Patched(r, kind, old, data)
		if err != nil {
			return nil, err
		}
		return s.fields.Track(r, call.Subresource, manager(req), old, patched)
	})
}

// apply carries out a server-side apply, which creates what does not exist.
func (s *Server) apply(req *http.Request, r *storage.Resource, call Request, data []byte) (runtime.Object, error) {
	applied := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(data, &applied.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode applied object: %v", err))
	}
	who := req.URL.Query().Get("fieldManager")
	if who == "" {
		return nil, apierrors.NewBadRequest("fieldManager: is required for apply patch")
	}
	force := req.URL.Query().Get("force") == "true"
	s.fields.Warm()
	merge := func(old storage.Object) (storage.Object, error) {
		return s.fields.Apply(r, call.Subresource, who, force, old, applied)
	}
	o, err := s.store.Update(r, call.Subresource, call.key(), dryRun(req), merge)
	if !apierrors.IsNotFound(err) || call.Subresource != "" {
		return o, err
	}
	empty, err := r.NewObject(scheme.Scheme)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	empty.SetName(call.Name)
	empty.SetNamespace(call.Namespace)
	made, err := merge(empty)
	if err != nil {
		return nil, err
	}
	return s.store.Create(r, made, dryRun(req))
}
