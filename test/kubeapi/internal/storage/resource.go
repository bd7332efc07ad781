package storage

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

// Object is what the server stores: an API type with metadata. A stored object is never changed.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource describes one served collection.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
	// Status: the type has a status that only the status subresource may change.
	Status bool
	// StatusOnCreate: a status given at creation is kept, as the API server does for nodes.
	StatusOnCreate bool
	// fixedSpec: the spec may not change after creation.
	fixedSpec bool
	// fields gives the selectable fields besides metadata.name and metadata.namespace; may be nil.
	fields func(Object) fields.Set
}

// GVK is the kind of the stored objects.
func (r *Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

// Served lists every resource of the server.
func Served() []*Resource {
	core, res := corev1.SchemeGroupVersion, resourceapi.SchemeGroupVersion
	return []*Resource{
		{GroupVersionResource: core.WithResource("nodes"), Kind: "Node", Status: true, StatusOnCreate: true},
		{GroupVersionResource: core.WithResource("namespaces"), Kind: "Namespace", Status: true},
		{GroupVersionResource: core.WithResource("pods"), Kind: "Pod", Namespaced: true, Status: true, fields: podFields},
		{GroupVersionResource: core.WithResource("configmaps"), Kind: "ConfigMap", Namespaced: true},
		{GroupVersionResource: core.WithResource("events"), Kind: "Event", Namespaced: true, fields: coreEventFields},
		{GroupVersionResource: eventsv1.SchemeGroupVersion.WithResource("events"), Kind: "Event", Namespaced: true, fields: eventFields},
		{GroupVersionResource: coordinationv1.SchemeGroupVersion.WithResource("leases"), Kind: "Lease", Namespaced: true},
		{GroupVersionResource: res.WithResource("deviceclasses"), Kind: "DeviceClass"},
		{GroupVersionResource: res.WithResource("devicetaintrules"), Kind: "DeviceTaintRule", Status: true},
		{GroupVersionResource: res.WithResource("resourceslices"), Kind: "ResourceSlice", fields: sliceFields},
		{GroupVersionResource: res.WithResource("resourceclaims"), Kind: "ResourceClaim", Namespaced: true, Status: true, fixedSpec: true},
		{GroupVersionResource: res.WithResource("resourceclaimtemplates"), Kind: "ResourceClaimTemplate", Namespaced: true, fixedSpec: true},
	}
}

func podFields(o Object) fields.Set {
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

func sliceFields(o Object) fields.Set {
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

func coreEventFields(o Object) fields.Set {
	e, ok := o.(*corev1.Event)
	if !ok {
		return nil
	}
	set := involved(e.InvolvedObject, "involvedObject")
	set["reason"], set["type"] = e.Reason, e.Type
	return set
}

func eventFields(o Object) fields.Set {
	e, ok := o.(*eventsv1.Event)
	if !ok {
		return nil
	}
	set := involved(e.Regarding, "regarding")
	set["reason"], set["type"] = e.Reason, e.Type
	return set
}

// Selectable returns every field of o that a field selector may name.
func (r *Resource) Selectable(o Object) fields.Set {
	set := fields.Set{}
	if r.fields != nil {
		set = r.fields(o)
	}
	set["metadata.name"] = o.GetName()
	if r.Namespaced {
		set["metadata.namespace"] = o.GetNamespace()
	}
	return set
}

// member returns the settable Go field of an API type ("Spec", "Status"), and whether the type has it.
func member(o Object, name string) (reflect.Value, bool) {
	v := reflect.ValueOf(o).Elem().FieldByName(name)
	return v, v.IsValid()
}

// copyMember makes dst's field equal to src's, where the type has such a field.
func copyMember(dst, src Object, name string) {
	d, ok := member(dst, name)
	if s, found := member(src, name); ok && found {
		d.Set(s)
	}
}

// clone returns a deep copy of o that may be changed.
func clone[T Object](o T) T {
	c, ok := o.DeepCopyObject().(T)
	if !ok { // A type whose DeepCopyObject returns another type would be a defect of the API package.
		return o
	}
	return c
}

// NewObject returns an empty object of r with its kind set.
func (r *Resource) NewObject(s *runtime.Scheme) (Object, error) {
	made, err := s.New(r.GVK())
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", r.GVK(), err)
	}
	o, ok := made.(Object)
	if !ok {
		return nil, fmt.Errorf("make %s: %T has no metadata", r.GVK(), made)
	}
	o.GetObjectKind().SetGroupVersionKind(r.GVK())
	return o, nil
}
