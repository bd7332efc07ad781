package state

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// State is one look at a cluster. It is never changed after it was loaded.
type State struct {
	Slices     []*resourceapi.ResourceSlice
	Classes    []*resourceapi.DeviceClass
	Claims     []*resourceapi.ResourceClaim
	Templates  []*resourceapi.ResourceClaimTemplate
	TaintRules []*resourceapi.DeviceTaintRule
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	Events     []*corev1.Event
	// Features are the API server's feature gates that it knows, and whether they are on; nil where
	// that is not known.
	Features map[string]bool
	// Unread says what could not be read, and why. What follows from it is not known.
	Unread []Unread
}

// Unread is a kind of objects that could not be listed.
type Unread struct {
	Kind string
	Err  error
}

func (u Unread) String() string { return fmt.Sprintf("%s could not be read: %v", u.Kind, u.Err) }

// Add puts an object, or each object of a list, into the state. Kinds that nothing here looks at
// are passed over: saved files often have more than is asked for. It fails for versions of the
// resource.k8s.io group that are older than v1.
func (s *State) Add(object runtime.Object) error {
	switch o := object.(type) {
	case *resourceapi.ResourceSlice:
		s.Slices = append(s.Slices, o)
	case *resourceapi.DeviceClass:
		s.Classes = append(s.Classes, o)
	case *resourceapi.ResourceClaim:
		s.Claims = append(s.Claims, o)
	case *resourceapi.ResourceClaimTemplate:
		s.Templates = append(s.Templates, o)
	case *resourceapi.DeviceTaintRule:
		s.TaintRules = append(s.TaintRules, o)
	case *corev1.Pod:
		s.Pods = append(s.Pods, o)
	case *corev1.Node:
		s.Nodes = append(s.Nodes, o)
	case *corev1.Event:
		s.Events = append(s.Events, o)
	default:
		if raw, ok := object.(*unstructured.Unstructured); ok {
			s.addFeatures(raw)
		}
		if kind := object.GetObjectKind().GroupVersionKind(); kind.Group == resourceapi.GroupName {
			return fmt.Errorf("%s of %s: only %s is understood; save the objects anew from a cluster of 1.34 or later",
				kind.Kind, kind.GroupVersion(), resourceapi.SchemeGroupVersion)
		}
	}
	return nil
}

// sort puts every list into an order of its own, so that equal clusters give equal answers. Slices
// keep the order of their names, which is the scheduler's.
func (s *State) sort() {
	byName(s.Slices)
	byName(s.Classes)
	byName(s.Claims)
	byName(s.Templates)
	byName(s.TaintRules)
	byName(s.Pods)
	byName(s.Nodes)
	byName(s.Events)
}

func byName[T metav1.Object](all []T) {
	slices.SortStableFunc(all, func(a, b T) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
}

// NotFound says that an object is not in the state.
type NotFound struct {
	Kind            schema.GroupKind
	Namespace, Name string
}

func (e *NotFound) Error() string {
	if e.Namespace == "" {
		return fmt.Sprintf("%s %s was not found", e.Kind.Kind, e.Name)
	}
	return fmt.Sprintf("%s %s was not found in namespace %s", e.Kind.Kind, e.Name, e.Namespace)
}

func find[T metav1.Object](all []T, kind schema.GroupKind, namespace, name string) (T, error) {
	for _, o := range all {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o, nil
		}
	}
	var none T
	return none, &NotFound{Kind: kind, Namespace: namespace, Name: name}
}

func resourceKind(kind string) schema.GroupKind {
	return schema.GroupKind{Group: resourceapi.GroupName, Kind: kind}
}

// Pod finds a pod, or fails with a [*NotFound].
func (s *State) Pod(namespace, name string) (*corev1.Pod, error) {
	return find(s.Pods, schema.GroupKind{Kind: "Pod"}, namespace, name)
}

// Claim finds a claim, or fails with a [*NotFound].
func (s *State) Claim(namespace, name string) (*resourceapi.ResourceClaim, error) {
	return find(s.Claims, resourceKind("ResourceClaim"), namespace, name)
}

// Template finds a template of claims, or fails with a [*NotFound].
func (s *State) Template(namespace, name string) (*resourceapi.ResourceClaimTemplate, error) {
	return find(s.Templates, resourceKind("ResourceClaimTemplate"), namespace, name)
}

// Class finds a DeviceClass, or fails with a [*NotFound].
func (s *State) Class(name string) (*resourceapi.DeviceClass, error) {
	return find(s.Classes, resourceKind("DeviceClass"), "", name)
}

// Node finds a node. One that is known by its slices alone is a node without labels and taints:
// saved files and presets often have no nodes.
func (s *State) Node(name string) *corev1.Node {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// NodeNames are the nodes of the cluster and those that slices name, sorted.
func (s *State) NodeNames() []string {
	var names []string
	for _, n := range s.Nodes {
		names = append(names, n.Name)
	}
	for _, slice := range s.Slices {
		if slice.Spec.NodeName != nil {
			names = append(names, *slice.Spec.NodeName)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
