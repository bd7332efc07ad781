package scheduler_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
	"github.com/gpu-dra/driver/test/scheduler"
)

const driver = "gpu.example.com"

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// gpus is a slice of n devices on a node, perDomain of them in each NVLink domain.
func gpus(node string, n, perDomain int) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "00000-" + node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: ptr.To("gpu")}, "nvlinkDomain": {StringValue: ptr.To(fmt.Sprintf("dom-%d", i/perDomain))},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	return s
}

func class() *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	c.Spec.Selectors = selector(`device.driver == "` + driver + `" && device.attributes["` + driver + `"].type == "gpu"`)
	return c
}

func selector(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

// request asks for count devices of the class; mode is left to the defaults.
func request(count int64) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid"}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", Count: count}}}
	return c
}

func inOneDomain(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(driver + "/nvlinkDomain"))}}
	return c
}

// holder is an allocated claim of the devices.
func holder(pool string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "held-" + strings.Join(devices, "-")}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: driver, Pool: pool, Device: d})
	}
	return c
}

func names(r resourceapi.AllocationResult) []string {
	var all []string
	for _, d := range r.Devices.Results {
		all = append(all, d.Device)
	}
	return all
}

func TestFourInOneDomain(t *testing.T) {
	a := scheduler.NewAllocator(allocation.Default137())
	c := scheduler.Cluster{Slices: []*resourceapi.ResourceSlice{gpus("n1", 8, 4)}, Classes: []*resourceapi.DeviceClass{class()}}
	c.Claims = []*resourceapi.ResourceClaim{holder("n1", "gpu-1"), request(1)}
	got, err := a.Allocate(t.Context(), c, node("n1"), inOneDomain(request(4)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"gpu-4", "gpu-5", "gpu-6", "gpu-7"}, names(got[0])); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func TestReasons(t *testing.T) {
	tainted := gpus("n1", 2, 2)
	for i := range tainted.Spec.Devices {
		tainted.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "xid", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	half := gpus("n1", 2, 2)
	half.Spec.Pool.ResourceSliceCount = 2
	picky := request(1)
	picky.Spec.Devices.Requests[0].Exactly.Selectors = selector(`device.capacity["` + driver + `"].memory.isGreaterThan(quantity("90Gi"))`)
	either := request(1)
	either.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "gpus", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "many", DeviceClassName: "gpu", Count: 3}}}
	two := request(2)
	two.Spec.Devices.Requests = append(two.Spec.Devices.Requests, two.Spec.Devices.Requests[0])
	two.Spec.Devices.Requests[1].Name = "more"
	for name, tc := range map[string]struct {
		slice *resourceapi.ResourceSlice
		held  []string
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"in use":       {gpus("n1", 2, 2), []string{"gpu-0"}, request(2), "in use (1 allocated)"},
		"tainted":      {tainted, nil, request(1), "tainted"},
		"constraint":   {gpus("n1", 4, 2), nil, inOneDomain(request(3)), "matchAttribute " + driver + "/nvlinkDomain"},
		"too few":      {gpus("n1", 2, 2), nil, request(3), "fewer than 3 devices"},
		"selector":     {gpus("n1", 2, 2), nil, picky, "matches device.capacity"},
		"class":        {gpus("other", 2, 2), nil, request(1), "no device on the node"},
		"incomplete":   {half, nil, request(1), "1 of 2 slices"},
		"alternatives": {gpus("n1", 2, 2), nil, either, "none of its alternatives"},
		"together":     {gpus("n1", 3, 3), nil, two, "not all of them together"},
	} {
		t.Run(name, func(t *testing.T) {
			c := scheduler.Cluster{Slices: []*resourceapi.ResourceSlice{tc.slice}, Classes: []*resourceapi.DeviceClass{class()}}
			if tc.held != nil {
				c.Claims = append(c.Claims, holder("n1", tc.held...))
			}
			_, err := scheduler.NewAllocator(allocation.Default137()).Allocate(t.Context(), c, node("n1"), tc.claim)
			misfit, ok := scheduler.AsDoesNotFit(err)
			if !ok || !strings.Contains(misfit.Reason, tc.want) || !strings.Contains(misfit.Error(), "n1") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestBrokenInputIsNoMisfit(t *testing.T) {
	c := scheduler.Cluster{Slices: []*resourceapi.ResourceSlice{gpus("n1", 1, 1)}}
	_, err := scheduler.NewAllocator(allocation.Default137()).Allocate(t.Context(), c, node("n1"), request(1))
	if _, misfit := scheduler.AsDoesNotFit(err); err == nil || misfit {
		t.Errorf("unknown class: %v, want an error that is no misfit", err)
	}
}

func TestAdminAccessAndSharesHoldNoDevice(t *testing.T) {
	shared := gpus("n1", 1, 1)
	shared.Spec.Devices[0].AllowMultipleAllocations = ptr.To(true)
	shared.Spec.Devices[0].Capacity["memory"] = resourceapi.DeviceCapacity{Value: resource.MustParse("80Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: ptr.To(resource.MustParse("80Gi")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("1Gi"))},
	}}
	share := func(size string) *resourceapi.ResourceClaim {
		c := request(1)
		c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(size)}}
		return c
	}
	a := scheduler.NewAllocator(allocation.Default137())
	c := scheduler.Cluster{Slices: []*resourceapi.ResourceSlice{shared}, Classes: []*resourceapi.DeviceClass{class()}}
	admin := holder("n1", "gpu-0")
	admin.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	c.Claims = []*resourceapi.ResourceClaim{admin}
	for i, want := range []bool{true, true, false} { // 3 × 30Gi do not fit 80Gi
		claim := share("30Gi")
		got, err := a.Allocate(t.Context(), c, node("n1"), claim)
		if (err == nil) != want {
			t.Fatalf("share %d: %v", i, err)
		}
		if want {
			claim.Status.Allocation = &got[0]
			c.Claims = append(c.Claims, claim)
		}
	}
}

// TestNoDeviceTwice allocates random claims one after another.
func TestNoDeviceTwice(t *testing.T) {
	a := scheduler.NewAllocator(allocation.Default137())
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(rt, "devices")
		c := scheduler.Cluster{Slices: []*resourceapi.ResourceSlice{gpus("n1", n, rapid.IntRange(1, 4).Draw(rt, "perDomain"))}, Classes: []*resourceapi.DeviceClass{class()}}
		taken := map[string]bool{}
		for range rapid.IntRange(1, 6).Draw(rt, "claims") {
			claim := request(rapid.Int64Range(1, 3).Draw(rt, "count"))
			claim.UID = types.UID(fmt.Sprint(len(c.Claims)))
			if rapid.Bool().Draw(rt, "oneDomain") {
				inOneDomain(claim)
			}
			got, err := a.Allocate(rt.Context(), c, node("n1"), claim)
			if _, misfit := scheduler.AsDoesNotFit(err); misfit {
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			for _, d := range names(got[0]) {
				if taken[d] {
					rt.Fatalf("%s was given twice", d)
				}
				taken[d] = true
			}
			claim.Status.Allocation = &got[0]
			c.Claims = append(c.Claims, claim)
		}
	})
}

func BenchmarkFourInOneDomain(b *testing.B) {
	a := scheduler.NewAllocator(allocation.Default137())
	c := scheduler.Cluster{Slices: []*resourceapi.ResourceSlice{gpus("n1", 16, 8)}, Classes: []*resourceapi.DeviceClass{class()}, Claims: []*resourceapi.ResourceClaim{holder("n1", "gpu-1")}}
	for b.Loop() {
		if _, err := a.Allocate(b.Context(), c, node("n1"), inOneDomain(request(8))); err != nil {
			b.Fatal(err)
		}
	}
}
