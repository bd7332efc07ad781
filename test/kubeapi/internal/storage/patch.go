package storage

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

// Patched applies a JSON, merge or strategic merge patch to o.
func Patched(r *Resource, kind types.PatchType, o Object, patch []byte) (Object, error) {
	before, err := json.Marshal(o)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	result, err := r.NewObject(scheme.Scheme)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var after []byte
	switch kind {
	case types.JSONPatchType:
		after, err = jsonPatched(before, patch)
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, patch)
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, patch, result)
	default:
		return nil, Unsupported(string(kind))
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("apply %s: %v", kind, err))
	}
	if err := json.Unmarshal(after, result); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the patched object is no %s: %v", r.Kind, err))
	}
	return result, nil
}

// jsonPatched applies a JSON patch. The library panics at some malformed operations, such as a
// replacement of the whole document without a value: that is the client's fault like any other.
func jsonPatched(before, patch []byte) (after []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("malformed operation: %v", p)
		}
	}()
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	return operations.Apply(before)
}

// Unsupported is the error of an encoding or patch that is not known.
func Unsupported(media string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("Content-Type %q is not supported", media),
	}}
}

// FieldOwners keeps metadata.managedFields. Owners are tracked from the first apply on: objects
// that nobody applies stay free of them, which keeps plain writes cheap.
type FieldOwners struct {
	converter func() managedfields.TypeConverter
}

// NewFieldOwners makes the bookkeeping; the schema is parsed at the first apply.
func NewFieldOwners() FieldOwners {
	return FieldOwners{converter: sync.OnceValue(func() managedfields.TypeConverter {
		return applyconfigurations.NewTypeConverter(scheme.Scheme)
	})}
}

// Warm reads the schema of all types, which the first apply needs and which takes a second or more. Call
// it before the storage is locked.
func (f FieldOwners) Warm() { f.converter() }

func (f FieldOwners) manager(r *Resource, subresource string) (*managedfields.FieldManager, error) {
	m, err := managedfields.NewDefaultFieldManager(f.converter(), scheme.Scheme, scheme.Scheme, scheme.Scheme, r.GVK(), r.GroupVersion(), subresource, nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return m, nil
}

// Track notes who owns what o changed against old, where old has owners.
func (f FieldOwners) Track(r *Resource, subresource, who string, old, o Object) (Object, error) {
	if len(old.GetManagedFields()) == 0 {
		return o, nil
	}
	m, err := f.manager(r, subresource)
	if err != nil {
		return nil, err
	}
	return asObject(m.UpdateNoErrors(old, o, who))
}

// Apply merges an applied configuration into an object and notes who owns which field.
func (f FieldOwners) Apply(r *Resource, subresource, who string, force bool, old Object, applied *unstructured.Unstructured) (Object, error) {
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

func sameButOwners(a, b Object) bool {
	strip := func(o Object) string {
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

func asObject(o runtime.Object) (Object, error) {
	typed, ok := o.(Object)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T has no metadata", o))
	}
	return typed, nil
}
