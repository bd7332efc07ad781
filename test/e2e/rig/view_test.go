package rig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// device is a published GPU with the attributes that are not empty.
func device(name, uuid, domain string) resourceapi.Device {
	d := resourceapi.Device{
		Name:     name,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"uuid":                  {StringValue: &uuid},
			"cudaComputeCapability": {VersionValue: ptr.To("9.0.0")},
		},
	}
	if domain != "" {
		d.Attributes["nvlinkDomain"] = resourceapi.DeviceAttribute{StringValue: &domain}
		d.Attributes["nvlinkDomainSize"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(4))}
		d.Attributes["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(1))}
	}
	return d
}

// part is a published partition.
func part(name, parent, profile string, start int64) resourceapi.Device {
	return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"parentUUID": {StringValue: &parent}, "profile": {StringValue: &profile}, "migPlacementStart": {IntValue: &start},
	}}
}

// Partitions are devices, but no GPUs.
func TestDevices(t *testing.T) {
	client := fake.NewClientset(slice("a", "node-0", 1, 1, part("gpu-a-mig", "GPU-a", "1g.10gb", 6), device("gpu-a", "GPU-a", "")))
	all, err := Devices(t.Context(), client)
	if err != nil || len(all) != 2 {
		t.Fatalf("devices %+v, %v", all, err)
	}
	if diff := cmp.Diff(GPU{Node: "node-0", Device: "gpu-a-mig", Parent: "GPU-a", Profile: "1g.10gb", Start: 6, NUMA: -1}, all[0]); diff != "" {
		t.Errorf("partition (-want +got):\n%s", diff)
	}
	whole, err := GPUs(t.Context(), client)
	if diff := cmp.Diff(all[1:], whole); err != nil || diff != "" {
		t.Errorf("GPUs, %v (-want +got):\n%s", err, diff)
	}
}

func slice(name, node string, generation, count int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: Driver, NodeName: &node, Devices: devices,
			Pool: resourceapi.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: count},
		},
	}
}

func TestGPUs(t *testing.T) {
	client := fake.NewClientset(
		slice("b", "node-1", 2, 1, device("gpu-b", "GPU-b", "")),
		slice("a-old", "node-0", 1, 1, device("gpu-old", "GPU-old", "")),
		slice("a", "node-0", 2, 1, device("gpu-a", "GPU-a", "d1")),
		slice("half", "node-2", 1, 2, device("gpu-half", "GPU-half", "")),
	)
	got, err := GPUs(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	memory := resource.MustParse("80Gi")
	want := []GPU{
		{Node: "node-0", Device: "gpu-a", UUID: "GPU-a", Capability: "9.0.0", Domain: "d1", DomainSize: 4, NUMA: 1, Memory: memory},
		{Node: "node-1", Device: "gpu-b", UUID: "GPU-b", Capability: "9.0.0", NUMA: -1, Memory: memory},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("GPUs of complete pools (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"", "d1"}, Domains(got)); diff != "" {
		t.Errorf("domains (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"GPU-a", "GPU-b"}, UUIDs([]GPU{got[1], got[0]})); diff != "" {
		t.Errorf("UUIDs (-want +got):\n%s", diff)
	}
}

// result is one device of an allocation.
func result(request, pool, name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: Driver, Pool: pool, Device: name}
}

func claim(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
	if len(results) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	}
	return c
}

func podWith(names ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "ns"}}
	for _, name := range names {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
	return pod
}

func TestGiven(t *testing.T) {
	admin := result("all", "node-0", "gpu-a")
	admin.AdminAccess = ptr.To(true)
	client := fake.NewClientset(
		slice("a", "node-0", 1, 1, device("gpu-a", "GPU-a", "d1"), device("gpu-b", "GPU-b", "d1")),
		claim("shared", result("gpu", "node-0", "gpu-b")), claim("watch", admin), claim("waits"), claim("stale", result("gpu", "node-0", "gpu-x")),
	)
	got, err := Given(t.Context(), client, podWith("shared", "watch"))
	if err != nil {
		t.Fatal(err)
	}
	type given struct {
		UUID, Claim, Request string
		Admin                bool
	}
	var short []given
	for _, g := range got {
		short = append(short, given{g.UUID, g.Claim, g.Request, g.Admin})
	}
	want := []given{{"GPU-b", "shared", "gpu", false}, {"GPU-a", "watch", "all", true}}
	if diff := cmp.Diff(want, short); diff != "" {
		t.Errorf("GPUs of the pod (-want +got):\n%s", diff)
	}
	for name, words := range map[string]string{"waits": "not allocated", "stale": "not published", "absent": "not found"} {
		if _, err := Given(t.Context(), client, podWith(name)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("claim %s: %v, want words like %q", name, err, words)
		}
	}
}

func TestClaimNames(t *testing.T) {
	pod := podWith("named")
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "made", ResourceClaimTemplateName: ptr.To("t")})
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "made", ResourceClaimName: ptr.To("pod-made-x")}, {Name: "not yet"}}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "pod-extended-y"}
	if diff := cmp.Diff([]string{"named", "pod-made-x", "pod-extended-y"}, ClaimNames(pod)); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

func TestTable(t *testing.T) {
	gpus := []GPU{
		{Device: "gpu-a", UUID: "GPU-a", Product: "A100", Domain: "0123456789abcdef", Root: "pci0000:00", NUMA: 1, Memory: resource.MustParse("80Gi")},
		{Device: "gpu-bb", UUID: "GPU-b", NUMA: -1, Memory: resource.MustParse("15Gi")},
	}
	want := `
DEVICE  PRODUCT  MEMORY  NVLINK DOMAIN  PCIE ROOT   NUMA  POD
gpu-a   A100     80Gi    01234567       pci0000:00  1     user
gpu-bb  -        15Gi    -              -           -     -
`
	if diff := cmp.Diff(want, "\n"+Table(gpus, map[string]string{"GPU-a": "user"})); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
