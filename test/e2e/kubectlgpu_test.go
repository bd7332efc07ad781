//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/command"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// kubectlGPU runs a command of kubectl gpu against the cluster, with a manifest as its input.
func (s *scene) kubectlGPU(manifest string, args ...string) string {
	s.Helper()
	out, err := s.tryKubectlGPU(manifest, args...)
	if err != nil {
		s.Fatalf("kubectl gpu %v: %v\n%s", args, err, out)
	}
	return out
}

// tryKubectlGPU is kubectlGPU for a command that may end with an error.
func (s *scene) tryKubectlGPU(manifest string, args ...string) (string, error) {
	var out strings.Builder
	cmd := command.New("v0.0.0-e2e", command.Streams{In: strings.NewReader(manifest), Out: &out, Err: &out})
	cmd.SetArgs(append(args, "--kubeconfig", s.Nodes.Kubeconfig(), "--namespace", s.namespace))
	err := cmd.ExecuteContext(s.Context())
	return out.String(), err
}

// prints checks the words of a command.
func (s *scene) prints(out string, words ...string) {
	s.Helper()
	for _, w := range words {
		if !strings.Contains(out, w) {
			s.Errorf("no %q in\n%s", w, out)
		}
	}
}

const fourOfADomain = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: planned}
spec:
  devices:
    requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, count: 4}}]
    constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]
`

// TestKubectlGPU asks the command line about a real cluster: what is there, who has it, why a pod
// waits, what a claim would get, and whether all is well.
func TestKubectlGPU(t *testing.T) {
	s := begin(t)
	node := cluster.NodeName(islands)
	s.prints(s.kubectlGPU("", "get", "--node", node), "8 GPUs on 1 node, 8 free", "fit now: 2 (whole domains of 4 free: 2)")
	s.prints(s.kubectlGPU(fourOfADomain, "plan", "-f", "-"), "ResourceClaim planned: fits node", "link cost 6: every two share an NVLink domain")

	_, taken := s.start("taken", islands, request{count: 2, match: domain})
	_, other := s.start("other", islands, request{count: 3, match: domain})
	s.prints(s.kubectlGPU("", "tree", "--node", node), "8 GPUs, 3 free", s.namespace+"/taken", "→ taken", taken[0].Domain[:12], other[0].Domain[:12])
	s.create(newPod("waits", islands, request{count: 4, match: domain}))
	s.unallocatable("waits")
	s.prints(s.kubectlGPU("", "explain", "pod", "waits"), "does not fit", "node "+node, "then it fits node "+node)

	s.prints(s.kubectlGPU("", "doctor", "-o", "wide"), "ready, publishes devices", "DRAConsumableCapacity is on", " 0 errors")
}

// TestSliceTemplate holds what the command line says a node will publish against what a node does,
// byte for byte but for the identity of its boards and its own name in the object.
func TestSliceTemplate(t *testing.T) {
	s := begin(t)
	machine, err := preset.Get("two-islands")
	s.must(err)
	node := cluster.NodeName(islands)
	thought, err := machine.Slices(node, preset.Settings{DriverName: "gpu.nvidia.com", Settings: offer.Settings{Vocabulary: device.VocabularyFull}})
	s.must(err)
	// Another test may have changed the node just before.
	s.must(rig.Wait(s.Context(), podLimit, "the slices are as thought", func(ctx context.Context) (string, error) {
		list, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return "", err
		}
		var real []*resourceapi.ResourceSlice
		for i := range list.Items {
			real = append(real, &list.Items[i])
		}
		slices.SortFunc(real, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
		if diff := cmp.Diff(s.anonymous(real), s.anonymous(thought)); diff != "" {
			return "slices (-real +thought):\n" + diff, nil
		}
		return "", nil
	}))
}

// anonymous renders the specs of slices with UUIDs, serial numbers and domains by their order, and
// without the generation of the pool, which counts changes.
func (s *scene) anonymous(all []*resourceapi.ResourceSlice) string {
	s.Helper()
	var names []string
	seen := map[string]bool{}
	var specs []resourceapi.ResourceSliceSpec
	for _, slice := range all {
		spec := *slice.Spec.DeepCopy()
		spec.Pool.Generation = 0
		specs = append(specs, spec)
		for _, d := range spec.Devices {
			for _, name := range []resourceapi.QualifiedName{"uuid", "serial", "nvlinkDomain"} {
				if v := d.Attributes[name].StringValue; v != nil && !seen[*v] {
					seen[*v] = true
					names = append(names, `"`+*v+`"`, fmt.Sprintf(`"%s %d"`, name, len(seen)))
				}
			}
		}
	}
	text, err := json.MarshalIndent(specs, "", " ")
	s.must(err)
	return strings.NewReplacer(names...).Replace(string(text))
}
