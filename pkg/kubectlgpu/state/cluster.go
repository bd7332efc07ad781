package state

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

// FromCluster reads a cluster. Slices and classes are needed; whatever else the user may not read
// is named in Unread. Objects of all namespaces are read: devices are the cluster's, and who holds
// one may be anywhere.
func FromCluster(ctx context.Context, client kubernetes.Interface) (*State, error) {
	s := &State{}
	for _, l := range listings(client) {
		list, err := l.list(ctx)
		switch {
		case apierrors.IsNotFound(err) && l.optional:
			continue // The kind is not served: there is none of it.
		case err != nil && l.needed:
			return nil, fmt.Errorf("list %s: %w; is this a cluster of Kubernetes 1.34 or later, and may you read them?", l.kind, err)
		case err != nil:
			s.Unread = append(s.Unread, Unread{Kind: l.kind, Err: err})
			continue
		}
		if err := s.addList(list); err != nil {
			return nil, err
		}
	}
	s.sort()
	return s, nil
}

// listing is one kind of objects.
type listing struct {
	kind string
	// needed kinds end the load when they cannot be read; optional ones may not be served.
	needed, optional bool
	list             func(context.Context) (runtime.Object, error)
}

func listings(client kubernetes.Interface) []listing {
	all := metav1.ListOptions{}
	dra, core := client.ResourceV1(), client.CoreV1()
	// What a pod waits for and what the driver reports are in Events; they are many, and only
	// those about pods and claims matter.
	events := func(kind string) func(context.Context) (runtime.Object, error) {
		return func(ctx context.Context) (runtime.Object, error) {
			return core.Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind})
		}
	}
	return []listing{
		{"ResourceSlices", true, false, func(ctx context.Context) (runtime.Object, error) { return dra.ResourceSlices().List(ctx, all) }},
		{"DeviceClasses", true, false, func(ctx context.Context) (runtime.Object, error) { return dra.DeviceClasses().List(ctx, all) }},
		{"ResourceClaims", false, false, func(ctx context.Context) (runtime.Object, error) { return dra.ResourceClaims("").List(ctx, all) }},
		{"ResourceClaimTemplates", false, false, func(ctx context.Context) (runtime.Object, error) {
			return dra.ResourceClaimTemplates("").List(ctx, all)
		}},
		{"DeviceTaintRules", false, true, func(ctx context.Context) (runtime.Object, error) { return dra.DeviceTaintRules().List(ctx, all) }},
		{"Pods", false, false, func(ctx context.Context) (runtime.Object, error) { return core.Pods("").List(ctx, all) }},
		{"Nodes", false, false, func(ctx context.Context) (runtime.Object, error) { return core.Nodes().List(ctx, all) }},
		{"Events of pods", false, false, events("Pod")},
		{"Events of claims", false, false, events("ResourceClaim")},
	}
}

func (s *State) addList(list runtime.Object) error {
	return meta.EachListItem(list, s.Add)
}
