package agent

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/config"
)

// newClient makes the API client. Its limits are far above client-go's defaults of 5 requests a
// second: every prepare reads its claim, and a throttled client would make pods wait.
func newClient(c *config.Config, version string) (kubernetes.Interface, error) {
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
	rc.UserAgent = "gpu-kubelet-plugin/" + version
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	return client, nil
}

// sliceClient is the publisher's view of the API server.
type sliceClient struct {
	client   kubernetes.Interface
	helper   *draplugin.Helper
	selector string
}

func newSliceClient(client kubernetes.Interface, helper *draplugin.Helper, driver, node string) *sliceClient {
	return &sliceClient{client: client, helper: helper, selector: fields.AndSelectors(
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, driver),
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, node)).String()}
}

// Publish implements kubeletplugin.Slices.
func (s *sliceClient) Publish(ctx context.Context, desired resourceslice.DriverResources) error {
	if err := s.helper.PublishResources(ctx, desired); err != nil {
		return fmt.Errorf("publish ResourceSlices: %w", err)
	}
	return nil
}

// List implements kubeletplugin.Slices.
func (s *sliceClient) List(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: s.selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// nodeUID reads the node's UID, which makes its Events show in kubectl describe. Without an API
// server it is empty, and the Events still carry the node's name.
func nodeUID(ctx context.Context, client kubernetes.Interface, name string) types.UID {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return node.UID
}
