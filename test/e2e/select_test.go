//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// all turns the request of an example into one for every device that its selectors leave.
func all(t *testing.T, objects rig.Objects) {
	t.Helper()
	template, ok := objects[0].(*resourceapi.ResourceClaimTemplate)
	if !ok || template.Spec.Spec.Devices.Requests[0].Exactly == nil {
		t.Fatalf("the example begins with %T, not with a template of an exact request", objects[0])
	}
	request := template.Spec.Spec.Devices.Requests[0].Exactly
	request.AllocationMode, request.Count = resourceapi.DeviceAllocationModeAll, 0
}

// TestSelectors runs each example that selects by an attribute, on the machine with boards of
// several products, and asks for all that match: it must be those and no others.
func TestSelectors(t *testing.T) {
	for name, matches := range map[string]func(rig.GPU) bool{
		"memory-40gi":        func(g rig.GPU) bool { return g.Memory.Cmp(resource.MustParse("40Gi")) >= 0 },
		"product":            func(g rig.GPU) bool { return strings.Contains(strings.ToLower(g.Product), "h100") },
		"compute-capability": func(g rig.GPU) bool { return g.Capability >= "8" },
		"numa-node":          func(g rig.GPU) bool { return g.NUMA == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			objects := s.spec(name)
			all(t, objects)
			pin(mixed, objects.Pods()...)
			published, err := rig.GPUs(t.Context(), s.client)
			s.must(err)
			var want []rig.GPU
			others := 0
			for _, g := range published {
				switch {
				case g.Node != cluster.NodeName(mixed):
				case matches(g):
					want = append(want, g)
				default:
					others++
				}
			}
			if len(want) == 0 || others == 0 {
				t.Fatalf("of the machine's boards %d match and %d do not: nothing to tell apart", len(want), others)
			}
			got := s.holds(s.running(s.create(objects)...)[0], len(want))
			if diff := cmp.Diff(rig.UUIDs(want), rig.UUIDs(got)); diff != "" {
				t.Errorf("GPUs that match (-published +given):\n%s", diff)
			}
		})
	}
}

// TestSchedulerFindsTheNode leaves the choice of the node to the scheduler: only one machine has
// the product.
func TestSchedulerFindsTheNode(t *testing.T) {
	s := begin(t)
	pod := s.running(s.create(s.spec("product"))...)[0]
	if g := s.holds(pod, 1)[0]; g.Node != cluster.NodeName(mixed) || !strings.Contains(g.Product, "H100") {
		t.Errorf("%s, a %s, was given on %s", g.Device, g.Product, g.Node)
	}
}

// TestFirstAvailable takes the first alternative that the machine has, with the configuration of
// the main request.
func TestFirstAvailable(t *testing.T) {
	for name, c := range map[string]struct {
		node, count int
		request     string
	}{
		"large":      {node: mixed, count: 1, request: "gpu/large"},
		"two of any": {node: cube, count: 2, request: "gpu/two-of-any"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			objects := s.spec("first-available")
			pin(c.node, objects.Pods()...)
			for _, g := range s.holds(s.running(s.create(objects)...)[0], c.count) {
				if g.Request != c.request {
					t.Errorf("%s was given for %q, not for %q", g.Device, g.Request, c.request)
				}
			}
		})
	}
}

// TestBadConfig gives a claim a configuration with a field that does not exist: the pod must not
// start, the claim's Event must name the field, and the pod must still be able to end.
func TestBadConfig(t *testing.T) {
	s := begin(t)
	objects := newPod("typo", islands, request{})
	template, ok := objects[0].(*resourceapi.ResourceClaimTemplate)
	if !ok {
		t.Fatalf("%T is no template", objects[0])
	}
	template.Spec.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: rig.Driver,
		}},
	}}
	template.Spec.Spec.Devices.Config[0].Opaque.Parameters.Raw = []byte(
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharring":{}}`)
	s.create(objects)
	s.event("FailedPrepareDynamicResources", "sharring")
	if phase := s.getPod("typo").Status.Phase; phase != corev1.PodPending {
		t.Errorf("the pod is %s", phase)
	}
	s.event("PrepareFailed", "sharring")
	s.remove("typo")
}
