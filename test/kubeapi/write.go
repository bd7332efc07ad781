package kubeapi

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

func dryRun(req *http.Request) bool { return req.URL.Query().Get("dryRun") == metav1.DryRunAll }

func (s *Server) create(w http.ResponseWriter, req *http.Request, r *storage.Resource, call Request) (runtime.Object, error) {
	if call.Name != "" {
		return nil, apierrors.NewMethodNotSupported(r.GroupResource(), "create "+call.Subresource)
	}
	o, err := decodeObject(w, req, r)
	if err != nil {
		return nil, err
	}
	if err := place(o, r, call); err != nil {
		return nil, err
	}
	return s.store.Create(r, o, dryRun(req))
}

// place makes the object's namespace that of the request, or refuses a contradiction.
func place(o storage.Object, r *storage.Resource, call Request) error {
	switch {
	case !r.Namespaced && o.GetNamespace() != "":
		return apierrors.NewBadRequest(fmt.Sprintf("metadata.namespace: %q is not allowed, %s have no namespace", o.GetNamespace(), r.Resource))
	case r.Namespaced && call.Namespace == "":
		return apierrors.NewBadRequest("namespace: an object of " + r.Resource + " needs one in its path")
	case o.GetNamespace() == "":
		o.SetNamespace(call.Namespace)
	case o.GetNamespace() != call.Namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("metadata.namespace: %q does not match the namespace %q of the request", o.GetNamespace(), call.Namespace))
	}
	return nil
}

func (s *Server) update(w http.ResponseWriter, req *http.Request, r *storage.Resource, call Request) (runtime.Object, error) {
	o, err := decodeObject(w, req, r)
	if err != nil {
		return nil, err
	}
	if err := place(o, r, call); err != nil {
		return nil, err
	}
	return s.store.Update(r, call.Subresource, call.key(), dryRun(req), func(old storage.Object) (storage.Object, error) {
		return s.fields.Track(r, call.Subresource, manager(req), old, o)
	})
}

func (s *Server) delete(w http.ResponseWriter, req *http.Request, r *storage.Resource, call Request) (runtime.Object, error) {
	opts, err := deleteOptions(w, req)
	if err != nil {
		return nil, err
	}
	return s.store.Delete(r, call.key(), opts.Preconditions, dryRun(req) || len(opts.DryRun) > 0)
}

func (s *Server) deleteCollection(w http.ResponseWriter, req *http.Request, r *storage.Resource, call Request) (runtime.Object, error) {
	match, err := filter(req, r, call)
	if err != nil {
		return nil, err
	}
	opts, err := deleteOptions(w, req)
	if err != nil {
		return nil, err
	}
	items, version := s.store.List(r, match)
	for _, o := range items {
		_, err := s.store.Delete(r, storage.KeyOf(o), opts.Preconditions, dryRun(req) || len(opts.DryRun) > 0)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return listOf(r, items, version)
}

func deleteOptions(w http.ResponseWriter, req *http.Request) (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	data, err := body(w, req)
	if err != nil || len(data) == 0 {
		return opts, err
	}
	// Clients send the options in the group of the object or in their own: the kind's name decides.
	info, media, err := encodingOf(req.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	kind := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
	_, got, err := info.Serializer.Decode(data, &kind, opts)
	if err != nil || (got != nil && got.Kind != kind.Kind) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode DeleteOptions as %s: got %v, %v", media, got, err))
	}
	return opts, nil
}
