package kubeapi

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// manager names the field manager of a request the way the API server does.
func manager(req *http.Request) string {
	if m := req.URL.Query().Get("fieldManager"); m != "" {
		return m
	}
	name, _, _ := strings.Cut(req.UserAgent(), "/")
	return name
}

func (s *Server) patch(w http.ResponseWriter, req *http.Request, r *resource, call Request) (runtime.Object, error) {
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
	return s.store.update(r, call.Subresource, call.key(), dryRun(req), func(old object) (object, error) {
		patched, err := patched(r, kind, old, data)
		if err != nil {
			return nil, err
		}
		return s.fields.track(r, call.Subresource, manager(req), old, patched)
	})
}

// patched applies a JSON, merge or strategic merge patch to o.
func patched(r *resource, kind types.PatchType, o object, patch []byte) (object, error) {
	before, err := json.Marshal(o)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	result, err := r.newObject(scheme.Scheme)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var after []byte
	switch kind {
	case types.JSONPatchType:
		var operations jsonpatch.Patch
		if operations, err = jsonpatch.DecodePatch(patch); err == nil {
			after, err = operations.Apply(before)
		}
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, patch)
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, patch, result)
	default:
		return nil, unsupported(string(kind))
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("apply %s: %v", kind, err))
	}
	if err := json.Unmarshal(after, result); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the patched object is no %s: %v", r.kind, err))
	}
	return result, nil
}

// apply carries out a server-side apply, which creates what does not exist.
func (s *Server) apply(req *http.Request, r *resource, call Request, data []byte) (runtime.Object, error) {
	applied := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(data, &applied.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode applied object: %v", err))
	}
	who := req.URL.Query().Get("fieldManager")
	if who == "" {
		return nil, apierrors.NewBadRequest("fieldManager: is required for apply patch")
	}
	force := req.URL.Query().Get("force") == "true"
	merge := func(old object) (object, error) {
		return s.fields.apply(r, call.Subresource, who, force, old, applied)
	}
	o, err := s.store.update(r, call.Subresource, call.key(), dryRun(req), merge)
	if !apierrors.IsNotFound(err) || call.Subresource != "" {
		return o, err
	}
	empty, err := r.newObject(scheme.Scheme)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	empty.SetName(call.Name)
	empty.SetNamespace(call.Namespace)
	made, err := merge(empty)
	if err != nil {
		return nil, err
	}
	return s.store.create(r, made, false, dryRun(req))
}

// fieldOwners keeps metadata.managedFields. Owners are tracked from the first apply on: objects
// that nobody applies stay free of them, which keeps plain writes cheap.
type fieldOwners struct {
	converter func() managedfields.TypeConverter
}

func newFieldOwners() fieldOwners {
	return fieldOwners{converter: sync.OnceValue(func() managedfields.TypeConverter {
		return applyconfigurations.NewTypeConverter(scheme.Scheme)
	})}
}

func (f fieldOwners) manager(r *resource, subresource string) (*managedfields.FieldManager, error) {
	m, err := managedfields.NewDefaultFieldManager(f.converter(), scheme.Scheme, scheme.Scheme, scheme.Scheme, r.gvk(), r.GroupVersion(), subresource, nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return m, nil
}

// track notes who owns what o changed against old, where old has owners.
func (f fieldOwners) track(r *resource, subresource, who string, old, o object) (object, error) {
	if len(old.GetManagedFields()) == 0 {
		return o, nil
	}
	m, err := f.manager(r, subresource)
	if err != nil {
		return nil, err
	}
	return asObject(m.UpdateNoErrors(old, o, who))
}

func (f fieldOwners) apply(r *resource, subresource, who string, force bool, old object, applied *unstructured.Unstructured) (object, error) {
	if v := applied.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(r.GroupResource(), old.GetName(), fmt.Errorf("resourceVersion: %s is not the stored %s", v, old.GetResourceVersion()))
	}
	m, err := f.manager(r, subresource)
	if err != nil {
		return nil, err
	}
	before := clone(old)
	merged, err := m.Apply(old, applied.DeepCopy(), who, force)
	if err != nil {
		return nil, err
	}
	o, err := asObject(merged)
	if err != nil {
		return nil, err
	}
	// An apply that changes nothing but the time of its own entry changes nothing.
	if len(before.GetManagedFields()) == len(o.GetManagedFields()) && sameButOwners(before, o) {
		return before, nil
	}
	return o, nil
}

func sameButOwners(a, b object) bool {
	strip := func(o object) string {
		c := clone(o)
		managed := c.GetManagedFields()
		for i := range managed {
			managed[i].Time = nil
		}
		c.SetManagedFields(managed)
		data, err := json.Marshal(c)
		if err != nil {
			return ""
		}
		return string(data)
	}
	return strip(a) == strip(b)
}

func asObject(o runtime.Object) (object, error) {
	typed, ok := o.(object)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T has no metadata", o))
	}
	return typed, nil
}
