package kubeapi

import (
	"fmt"
	"reflect"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// object is what the server stores: an API type with metadata. A stored object is never changed.
type object interface {
	runtime.Object
	metav1.Object
}

// resource describes one served collection.
type resource struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
	// status: the type has a status that only the status subresource may change.
	status bool
	// statusOnCreate: a status given at creation is kept, as the API server does for nodes.
	statusOnCreate bool
	// fixedSpec: the spec may not change after creation.
	fixedSpec bool
	// fields gives the selectable fields besides metadata.name and metadata.namespace; may be nil.
	fields func(object) fields.Set
}

func (r *resource) gvk() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.kind) }

// served lists every resource of the server.
func served() []*resource {
	core, res := corev1.SchemeGroupVersion, resourceapi.SchemeGroupVersion
	return []*resource{
		{GroupVersionResource: core.WithResource("nodes"), kind: "Node", status: true, statusOnCreate: true},
		{GroupVersionResource: core.WithResource("namespaces"), kind: "Namespace", status: true},
		{GroupVersionResource: core.WithResource("pods"), kind: "Pod", namespaced: true, status: true, fields: podFields},
		{GroupVersionResource: core.WithResource("configmaps"), kind: "ConfigMap", namespaced: true},
		{GroupVersionResource: core.WithResource("events"), kind: "Event", namespaced: true, fields: coreEventFields},
		{GroupVersionResource: eventsv1.SchemeGroupVersion.WithResource("events"), kind: "Event", namespaced: true, fields: eventFields},
		{GroupVersionResource: coordinationv1.SchemeGroupVersion.WithResource("leases"), kind: "Lease", namespaced: true},
		{GroupVersionResource: res.WithResource("deviceclasses"), kind: "DeviceClass"},
		{GroupVersionResource: res.WithResource("devicetaintrules"), kind: "DeviceTaintRule", status: true},
		{GroupVersionResource: res.WithResource("resourceslices"), kind: "ResourceSlice", fields: sliceFields},
		{GroupVersionResource: res.WithResource("resourceclaims"), kind: "ResourceClaim", namespaced: true, status: true, fixedSpec: true},
		{GroupVersionResource: res.WithResource("resourceclaimtemplates"), kind: "ResourceClaimTemplate", namespaced: true, fixedSpec: true},
	}
}

func podFields(o object) fields.Set {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	return fields.Set{
		"spec.nodeName":      p.Spec.NodeName,
		"spec.schedulerName": p.Spec.SchedulerName,
		"status.phase":       string(p.Status.Phase),
	}
}

func sliceFields(o object) fields.Set {
	s, ok := o.(*resourceapi.ResourceSlice)
	if !ok {
		return nil
	}
	return fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: ptr.Deref(s.Spec.NodeName, ""),
		resourceapi.ResourceSliceSelectorDriver:   s.Spec.Driver,
		"spec.pool.name":                          s.Spec.Pool.Name,
	}
}

func involved(ref corev1.ObjectReference, prefix string) fields.Set {
	return fields.Set{
		prefix + ".kind":      ref.Kind,
		prefix + ".namespace": ref.Namespace,
		prefix + ".name":      ref.Name,
		prefix + ".uid":       string(ref.UID),
	}
}

func coreEventFields(o object) fields.Set {
	e, ok := o.(*corev1.Event)
	if !ok {
		return nil
	}
	set := involved(e.InvolvedObject, "involvedObject")
	set["reason"], set["type"] = e.Reason, e.Type
	return set
}

func eventFields(o object) fields.Set {
	e, ok := o.(*eventsv1.Event)
	if !ok {
		return nil
	}
	set := involved(e.Regarding, "regarding")
	set["reason"], set["type"] = e.Reason, e.Type
	return set
}

// selectable returns every field of o that a field selector may name.
func (r *resource) selectable(o object) fields.Set {
	set := fields.Set{}
	if r.fields != nil {
		set = r.fields(o)
	}
	set["metadata.name"] = o.GetName()
	if r.namespaced {
		set["metadata.namespace"] = o.GetNamespace()
	}
	return set
}

// member returns the settable Go field of an API type ("Spec", "Status"), and whether the type has it.
func member(o object, name string) (reflect.Value, bool) {
	v := reflect.ValueOf(o).Elem().FieldByName(name)
	return v, v.IsValid()
}

// copyMember makes dst's field equal to src's, where the type has such a field.
func copyMember(dst, src object, name string) {
	d, ok := member(dst, name)
	if s, found := member(src, name); ok && found {
		d.Set(s)
	}
}

// clone returns a deep copy of o that may be changed.
func clone[T object](o T) T {
	c, ok := o.DeepCopyObject().(T)
	if !ok { // A type whose DeepCopyObject returns another type would be a defect of the API package.
		return o
	}
	return c
}

// newObject returns an empty object of r with its kind set.
func (r *resource) newObject(s *runtime.Scheme) (object, error) {
	made, err := s.New(r.gvk())
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", r.gvk(), err)
	}
	o, ok := made.(object)
	if !ok {
		return nil, fmt.Errorf("make %s: %T has no metadata", r.gvk(), made)
	}
	o.GetObjectKind().SetGroupVersionKind(r.gvk())
	return o, nil
}
