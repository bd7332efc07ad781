// Package apiserver is how the node plugin talks to the API server: one client with its limits,
// the slices of its own node, and a gate before their writing. It is for package agent. It must
// not know devices, or what is published.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/config"
)

// NewClient makes the API client of the plugin. Its limits are far above client-go's defaults of 5 requests a
// second: every prepare reads its claim, and a throttled client would make pods wait.
//
// The gate lets slices be written until it is closed.
func NewClient(c *config.Config, version string, gate *Gate) (kubernetes.Interface, error) {
	var rc *rest.Config
	var err error
	if c.Kubeconfig != "" {
		rc, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	} else {
		rc, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("API client: %w (outside a pod, give --kubeconfig)", err)
	}
	rc.QPS, rc.Burst = c.APIQPS, c.APIBurst
	rc.Wrap(gate.wrap)
	rc.UserAgent = "gpu-kubelet-plugin/" + version
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	return client, nil
}

// errNotSynced is what the library does not say: its first publication waits for ever until the
// node's slices could be listed.
var errNotSynced = errors.New("ResourceSlices cannot be listed and watched: see that the API server can be reached " +
	"and that the service account may do so")

// publishLimit bounds one hand-over to the library; its first takes about a second.
const publishLimit = 10 * time.Second

// helper is what the slice client uses of the library's Helper.
type helper interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// Slices is the publisher's view of the API server; it implements kubeletplugin.Slices.
type Slices struct {
	client   kubernetes.Interface
	helper   helper
	selector string
	// turn is held while the library has a publication in hand.
	turn chan struct{}
	// late is called when a publication that nobody waits for any longer has ended.
	late func()
}

// NewSlices makes the view of a node's slices of a driver. late is called when a publication that
// nobody waits for any longer has ended.
func NewSlices(client kubernetes.Interface, helper helper, driver, node string, late func()) *Slices {
	return &Slices{client: client, helper: helper, turn: make(chan struct{}, 1), late: late, selector: fields.AndSelectors(
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, driver),
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, node)).String()}
}

// Publish implements kubeletplugin.Slices. The library ignores the context and may block until
// the API server can be reached, or until it is stopped; this does not.
func (s *Slices) Publish(ctx context.Context, desired resourceslice.DriverResources) error {
	ctx, cancel := context.WithTimeoutCause(ctx, publishLimit, errNotSynced)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	go func() {
		err := s.helper.PublishResources(ctx, desired)
		<-s.turn
		done <- err
		if ctx.Err() != nil {
			s.late()
		}
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("publish ResourceSlices: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// List implements kubeletplugin.Slices.
func (s *Slices) List(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: s.selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// NodeUID reads the node's UID, which makes its Events show in kubectl describe. Without an API
// server it is empty, and the Events still carry the node's name.
func NodeUID(ctx context.Context, client kubernetes.Interface, name string) types.UID {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return node.UID
}
