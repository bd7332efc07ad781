package allocation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
)

const driver = "gpu.example.com"

// node is a node with labels, and pool its slice of so many devices, two to a group.
func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"name": name}}}
}

func pool(name string, devices int) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	slice.Spec.Driver, slice.Spec.NodeName = driver, &name
	slice.Spec.Pool = resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1}
	for i := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"group": {IntValue: ptr.To(int64(i / 2))}},
		})
	}
	return slice
}

func class(name string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`}}},
	}}
}

// claim leaves to the defaults what the API server would fill in.
func claim(name string, count int64, expressions ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}}
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", Count: count}
	for _, e := range expressions {
		exactly.Selectors = append(exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: exactly}}
	return c
}

func cluster(devices int, claims ...*resourceapi.ResourceClaim) allocation.Cluster {
	return allocation.Cluster{
		Slices: []*resourceapi.ResourceSlice{pool("node-0", devices)}, Classes: []*resourceapi.DeviceClass{class("gpu")}, Claims: claims,
	}
}

// devices are the names that a result has.
func devices(results []resourceapi.AllocationResult) []string {
	var names []string
	for _, r := range results {
		for _, d := range r.Devices.Results {
			names = append(names, d.Device)
		}
	}
	return names
}

func TestAttempt(t *testing.T) {
	a := allocation.New(allocation.Default137())
	held := claim("held", 1)
	held.Status.Allocation = &resourceapi.AllocationResult{}
	held.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "node-0", Device: "gpu-0"}}
	watching := held.DeepCopy()
	watching.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	pair := claim("pair", 2)
	pair.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(driver + "/group"))}}
	for name, tc := range map[string]struct {
		cluster allocation.Cluster
		claims  []*resourceapi.ResourceClaim
		want    []string
	}{
		"first fit":               {cluster(4), []*resourceapi.ResourceClaim{claim("c", 0)}, []string{"gpu-0"}},
		"count":                   {cluster(4), []*resourceapi.ResourceClaim{claim("c", 3)}, []string{"gpu-0", "gpu-1", "gpu-2"}},
		"two claims at once":      {cluster(4), []*resourceapi.ResourceClaim{claim("c", 1), claim("d", 2)}, []string{"gpu-0", "gpu-1", "gpu-2"}},
		"selector":                {cluster(4), []*resourceapi.ResourceClaim{claim("c", 1, `device.attributes["gpu.example.com"].group == 1`)}, []string{"gpu-2"}},
		"in use":                  {cluster(4, held), []*resourceapi.ResourceClaim{claim("c", 1)}, []string{"gpu-1"}},
		"watched, not in use":     {cluster(4, watching), []*resourceapi.ResourceClaim{claim("c", 1)}, []string{"gpu-0"}},
		"constraint around one":   {cluster(4, held), []*resourceapi.ResourceClaim{pair}, []string{"gpu-2", "gpu-3"}},
		"too many":                {cluster(4), []*resourceapi.ResourceClaim{claim("c", 5)}, nil},
		"too many together":       {cluster(4), []*resourceapi.ResourceClaim{claim("c", 3), claim("d", 2)}, nil},
		"constraint without room": {cluster(1), []*resourceapi.ResourceClaim{pair}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := a.Attempt(t.Context(), tc.cluster, node("node-0"), tc.claims...)
			if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, devices(got)); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
		})
	}
	if got, err := a.Attempt(t.Context(), cluster(4), node("node-1"), claim("c", 1)); len(got) != 0 {
		t.Errorf("on another node: %v, %v", got, err)
	}
}

// Input that no scheduler takes is an error that names what is wrong, and a search that is given up
// says so.
func TestAttemptThatFails(t *testing.T) {
	a := allocation.New(allocation.Default137())
	other := claim("c", 1)
	other.Spec.Devices.Requests[0].Exactly.DeviceClassName = "absent"
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"absent":      other,
		"no such key": claim("c", 1, `device.attributes["gpu.example.com"].absent == 1`),
		"oops":        claim("c", 1, `oops`),
	} {
		if got, err := a.Attempt(t.Context(), cluster(2), node("node-0"), c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Attempt(ended, cluster(2), node("node-0"), claim("c", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a search that was given up: %v", err)
	}
	if _, err := (allocation.Cluster{}).Get("gpu"); !apierrors.IsNotFound(err) {
		t.Errorf("a class that is not there: %v", err)
	}
	if all, err := cluster(1).List(); len(all) != 1 || err != nil {
		t.Errorf("classes: %v, %v", all, err)
	}
}

// Shares hold a part of a device; where the cluster does not know shares, all of it.
func TestAllocated(t *testing.T) {
	share := claim("s", 1)
	id := types.UID("5f2a7c1e-0b1d-4c3e-8f6a-1a2b3c4d5e6f")
	share.Status.Allocation = &resourceapi.AllocationResult{}
	share.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{
		Request: "r", Driver: driver, Pool: "node-0", Device: "gpu-0", ShareID: &id,
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("4Gi")},
	}}
	claims := []*resourceapi.ResourceClaim{share, claim("pending", 1)}
	known := allocation.New(allocation.Default137()).Allocated(claims)
	if len(known.AllocatedDevices) != 0 || len(known.AllocatedSharedDeviceIDs) != 1 || len(known.AggregatedCapacity) != 1 {
		t.Errorf("with shares: %+v", known)
	}
	unknown := allocation.New(structured.Features{}).Allocated(claims)
	if len(unknown.AllocatedDevices) != 1 || len(unknown.AllocatedSharedDeviceIDs) != 0 {
		t.Errorf("without shares: %+v", unknown)
	}
}

// Defaults are those of the API server, twice is as once, and the claim itself stays.
func TestWithDefaults(t *testing.T) {
	c := claim("c", 0)
	c.Spec.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "k"}, {Key: "l", Operator: resourceapi.DeviceTolerationOpExists}}
	c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "either", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "gpu"},
		{Name: "b", DeviceClassName: "gpu", Count: 2},
		{Name: "c", DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeAll},
	}})
	before := c.DeepCopy()
	got := allocation.WithDefaults(c)
	if diff := cmp.Diff(before, c); diff != "" {
		t.Errorf("the claim was changed (-before +after):\n%s", diff)
	}
	exactly, either := got.Spec.Devices.Requests[0].Exactly, got.Spec.Devices.Requests[1].FirstAvailable
	if exactly.Count != 1 || exactly.AllocationMode != resourceapi.DeviceAllocationModeExactCount {
		t.Errorf("exact request: %+v", exactly)
	}
	if exactly.Tolerations[0].Operator != resourceapi.DeviceTolerationOpEqual || exactly.Tolerations[1].Operator != resourceapi.DeviceTolerationOpExists {
		t.Errorf("tolerations: %+v", exactly.Tolerations)
	}
	if either[0].Count != 1 || either[1].Count != 2 || either[2].Count != 0 || either[2].AllocationMode != resourceapi.DeviceAllocationModeAll {
		t.Errorf("alternatives: %+v", either)
	}
	if diff := cmp.Diff(got, allocation.WithDefaults(got)); diff != "" {
		t.Errorf("twice (-once +twice):\n%s", diff)
	}
}

// Whatever is asked for in turn, nobody gets what another has, and what there is room for is given.
func TestNobodyGetsWhatAnotherHas(t *testing.T) {
	a := allocation.New(allocation.Default137())
	rapid.Check(t, func(t *rapid.T) {
		c := cluster(rapid.IntRange(1, 8).Draw(t, "devices"))
		left := len(c.Slices[0].Spec.Devices)
		taken := map[string]string{}
		for i, count := range rapid.SliceOfN(rapid.Int64Range(1, 4), 1, 6).Draw(t, "counts") {
			next := claim(fmt.Sprintf("c%d", i), count)
			got, err := a.Attempt(context.Background(), c, node("node-0"), next)
			if fits := int(count) <= left; fits != (len(got) == 1) {
				t.Fatalf("%d of %d left: %v, %v", count, left, got, err)
			}
			if len(got) == 0 {
				continue
			}
			for _, name := range devices(got) {
				if other := taken[name]; other != "" {
					t.Fatalf("%s and %s both have %s", other, next.Name, name)
				}
				taken[name] = next.Name
			}
			left -= int(count)
			next.Status.Allocation = &got[0]
			c.Claims = append(c.Claims, next)
		}
	})
}

func TestRefusal(t *testing.T) {
	elsewhere := claim("c", 1)
	elsewhere.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}},
	}}}}
	tainted := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: effect}}
		}
	}
	tolerates := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
	}
	for name, tc := range map[string]struct {
		node   func(*corev1.Node)
		pod    func(*corev1.Pod)
		claims []*resourceapi.ResourceClaim
		want   string
	}{
		"taken":                     {},
		"bound here":                {pod: func(p *corev1.Pod) { p.Spec.NodeName = "node-0" }},
		"bound elsewhere":           {pod: func(p *corev1.Pod) { p.Spec.NodeName = "node-1" }, want: "the pod is bound to node node-1"},
		"claim is elsewhere":        {claims: []*resourceapi.ResourceClaim{claim("d", 1), elsewhere}, want: "claim c is allocated elsewhere"},
		"cordoned":                  {node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: "the node is cordoned"},
		"selected":                  {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"name": "node-0"} }},
		"not selected":              {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"name": "x"} }, want: "node selector or affinity does not match"},
		"tainted":                   {node: tainted(corev1.TaintEffectNoSchedule), want: "does not tolerate the node's taint nvidia.com/gpu=present:NoSchedule"},
		"tainted, tolerated":        {node: tainted(corev1.TaintEffectNoSchedule), pod: tolerates},
		"evicting":                  {node: tainted(corev1.TaintEffectNoExecute), want: "taint nvidia.com/gpu=present:NoExecute"},
		"only avoided":              {node: tainted(corev1.TaintEffectPreferNoSchedule)},
		"node known by slices only": {node: func(n *corev1.Node) { n.UID, n.Labels, n.Spec.Unschedulable = "", nil, true }},
	} {
		t.Run(name, func(t *testing.T) {
			n, p := node("node-0"), &corev1.Pod{}
			if tc.node != nil {
				tc.node(n)
			}
			if tc.pod != nil {
				tc.pod(p)
			}
			got := allocation.Refusal(n, p, tc.claims)
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("refusal %q, want %q", got, tc.want)
			}
		})
	}
}
