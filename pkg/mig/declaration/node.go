package declaration

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Watch follows the labels of one Node until the context ends, and calls seen with each state of
// it. While the API server is away the last state holds.
func Watch(ctx context.Context, client kubernetes.Interface, name string, seen func(Node)) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceNone, selector)
	tell := func(object any) {
		if n, ok := object.(*corev1.Node); ok {
			seen(Node{Labels: n.Labels, Annotations: n.Annotations})
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(nodes, client), ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    tell,
			UpdateFunc: func(_, after any) { tell(after) },
		},
	})
	informer.RunWithContext(ctx)
}

// Tell writes a state to the Node, if that is not there already.
func (s *Source) Tell(ctx context.Context, client kubernetes.Interface, name string, state State) error {
	patch := s.Patch(state)
	if patch == nil {
		return nil
	}
	data, err := json.Marshal(patch)
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("write label %s of node %s: %w", StateLabel, name, err)
	}
	return nil
}
