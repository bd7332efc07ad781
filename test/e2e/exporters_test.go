//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// exported is a device of a pod as an exporter of metrics tells it.
type exported struct{ Pod, Type, UUID, Parent, Profile string }

// mapped finds the devices of pods as NVIDIA's dcgm-exporter does: the kubelet's pod-resources API names
// pool and device of each container, and the node's slices, of the driver of that one name and in the
// version resource/v1beta1, have the type and the UUIDs of those.
func (s *scene) mapped(ctx context.Context, node int) ([]exported, error) {
	slicesOfNode, err := s.client.ResourceV1beta1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + cluster.NodeName(node)})
	if err != nil {
		return nil, err
	}
	attributes := map[string]map[resourcev1beta1.QualifiedName]resourcev1beta1.DeviceAttribute{}
	for _, slice := range slicesOfNode.Items {
		for _, d := range slice.Spec.Devices {
			if slice.Spec.Driver == "gpu.nvidia.com" && d.Basic != nil {
				attributes[slice.Spec.Pool.Name+"/"+d.Name] = d.Basic.Attributes
			}
		}
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(s.Nodes.KubeletRoot(node), "pod-resources", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	var out []exported
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, claim := range container.GetDynamicResources() {
				for _, r := range claim.GetClaimResources() {
					of := attributes[r.GetPoolName()+"/"+r.GetDeviceName()]
					text := func(name resourcev1beta1.QualifiedName) string {
						if value := of[name].StringValue; value != nil {
							return *value
						}
						return ""
					}
					if pod.GetNamespace() == s.namespace {
						out = append(out, exported{pod.GetName(), text("type"), text("uuid"), text("parentUUID"), text("profile")})
					}
				}
			}
		}
	}
	return sorted(out), nil
}

func sorted(all []exported) []exported {
	slices.SortFunc(all, func(a, b exported) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return all
}

// told asks the driver's own socket on the node.
func (s *scene) told(ctx context.Context, node int) ([]exported, error) {
	socket := filepath.Join(s.Nodes.KubeletRoot(node), "plugins", "gpu.nvidia.com", "devices.sock")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/v1/devices", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var document struct {
		Version string
		Devices []struct {
			Type, UUID, ParentUUID, Profile string
			Claims                          []struct {
				Namespace string
				Pods      []struct{ Name string }
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&document); err != nil || document.Version != "v1" {
		return nil, fmt.Errorf("version %q of the document: %w", document.Version, err)
	}
	var out []exported
	for _, d := range document.Devices {
		for _, claim := range d.Claims {
			for _, pod := range claim.Pods {
				if claim.Namespace == s.namespace {
					out = append(out, exported{pod.Name, d.Type, d.UUID, d.ParentUUID, d.Profile})
				}
			}
		}
	}
	return sorted(out), nil
}

// exportersSee holds what exporters find out about pods, by both ways and by the metrics, against what the
// pods were given. The slices have UUIDs of GPUs and of partitions that are always there; one that was made
// for a claim has one as long as that lasts, and the socket knows it.
func (s *scene) exportersSee(node int, pods ...string) {
	s.Helper()
	var published, real []exported
	var series []string
	for _, pod := range s.running(pods...) {
		for _, g := range s.given(pod) {
			e := exported{pod.Name, "gpu", g.UUID, g.Parent, g.Profile}
			if g.Profile != "" {
				e.Type = "mig"
			}
			published = append(published, e)
			if g.Profile != "" {
				e.UUID = s.part(pod, g).UUID
			}
			real = append(real, e)
			series = append(series, fmt.Sprintf("gpu_dra_claim_info{claim=%q,device=%q,namespace=%q,pod=%q,uuid=%q} 1", g.Claim, g.Device, s.namespace, pod.Name, e.UUID))
		}
	}
	for what, source := range map[string]struct {
		ask  func(context.Context, int) ([]exported, error)
		want []exported
	}{"kubelet and slices": {s.mapped, sorted(published)}, "the driver's socket": {s.told, sorted(real)}} {
		// The socket changes hands with the plugin's lease.
		s.must(rig.Wait(s.Context(), time.Minute, what+" tell of all devices", func(ctx context.Context) (string, error) {
			return said(source.ask(ctx, node))(func(got []exported) string { return cmp.Diff(source.want, got) })
		}))
	}
	s.must(rig.Wait(s.Context(), time.Minute, "the metrics tell of all devices", func(ctx context.Context) (string, error) {
		return said(s.page(ctx, s.plugin(node).Name, "/metrics"))(func(body []byte) string {
			lines := strings.Split(string(body), "\n")
			for _, want := range series {
				if !slices.Contains(lines, want) {
					return "not among the metrics: " + want
				}
			}
			return ""
		})
	}))
}

// said gives what is missing of an answer; while there is none, why.
func said[T any](answer T, err error) func(missing func(T) string) (string, error) {
	return func(missing func(T) string) (string, error) {
		if err != nil {
			return fmt.Sprint(err), nil //nolint:nilerr // it is asked again
		}
		return missing(answer), nil
	}
}
