package walkthrough

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func slice(driver, pool string, generation, count int64, devices ...resourceapi.Device) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count}, Devices: devices,
	}}
}

// published is a device with everything that the walk reads.
func published(name, pci, domain string) resourceapi.Device {
	d := resourceapi.Device{
		Name: name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: ptr.To("gpu")}, "uuid": {StringValue: ptr.To("GPU-" + name)}, "productName": {StringValue: ptr.To("A100")},
			"resource.kubernetes.io/pciBusID": {StringValue: ptr.To(pci)}, "resource.kubernetes.io/pcieRoot": {StringValue: ptr.To("pci0000:00")},
			"resource.kubernetes.io/numaNode": {IntValue: ptr.To[int64](1)},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
	}
	if domain != "" {
		d.Attributes["nvlinkDomain"] = resourceapi.DeviceAttribute{StringValue: &domain}
	}
	return d
}

func TestGPUsOfSlices(t *testing.T) {
	bare := resourceapi.Device{Name: "bare", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": {StringValue: ptr.To("gpu")}, "resource.kubernetes.io/pciBusID": {StringValue: ptr.To("0000:03:00.0")},
	}}
	partition := resourceapi.Device{Name: "partition", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("mig")}}}
	got := fromSlices([]resourceapi.ResourceSlice{
		slice(driverName, "n", 1, 2, published("second", "0000:02:00.0", "d"), partition),
		slice("other.example.com", "n", 1, 1, published("foreign", "0000:00:00.0", "")),
		slice(driverName, "n", 1, 2, bare, published("first", "0000:01:00.0", "d")),
	})
	want := []gpu{
		{number: 0, name: "first", uuid: "GPU-first", product: "A100", memory: 80 << 30, domain: "d", pci: "0000:01:00.0", pcieRoot: "pci0000:00", numa: "1"},
		{number: 1, name: "second", uuid: "GPU-second", product: "A100", memory: 80 << 30, domain: "d", pci: "0000:02:00.0", pcieRoot: "pci0000:00", numa: "1"},
		{number: 2, name: "bare", pci: "0000:03:00.0"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(gpu{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPoolIsComplete(t *testing.T) {
	for name, tc := range map[string]struct {
		slices []resourceapi.ResourceSlice
		want   bool
	}{
		"nothing":               {nil, false},
		"one of one":            {[]resourceapi.ResourceSlice{slice(driverName, "n", 1, 1)}, true},
		"one of two":            {[]resourceapi.ResourceSlice{slice(driverName, "n", 1, 2)}, false},
		"another pool":          {[]resourceapi.ResourceSlice{slice(driverName, "m", 1, 1)}, false},
		"another driver":        {[]resourceapi.ResourceSlice{slice("other.example.com", "n", 1, 1)}, false},
		"old and new":           {[]resourceapi.ResourceSlice{slice(driverName, "n", 1, 1), slice(driverName, "n", 2, 1)}, true},
		"new, then old":         {[]resourceapi.ResourceSlice{slice(driverName, "n", 2, 1), slice(driverName, "n", 1, 1)}, true},
		"old complete, new not": {[]resourceapi.ResourceSlice{slice(driverName, "n", 1, 1), slice(driverName, "n", 2, 2)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := complete(tc.slices, "n"); got != tc.want {
				t.Errorf("complete is %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	gpus := []gpu{
		{number: 0, name: "gpu-a", product: "NVIDIA A100", memory: 80 << 30, domain: "0123456789abcdef", pcieRoot: "pci0000:00", numa: "0"},
		{number: 1, name: "gpu-b", memory: 0},
	}
	want := strings.TrimPrefix(`
#  DEVICE  PRODUCT      MEMORY  NVLINK DOMAIN  PCIE ROOT   NUMA  CLAIM
0  gpu-a   NVIDIA A100  80 GiB  0123456789ab…  pci0000:00  0     four
1  gpu-b   -            -       -              -           -     -
`, "\n")
	if diff := cmp.Diff(want, table(gpus, map[string]string{"gpu-a": "four"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMemoryInWords(t *testing.T) {
	for bytes, want := range map[int64]string{0: "-", 80 << 30: "80 GiB", 1<<40 - 1<<29: "1024 GiB", 23 << 29: "11.5 GiB"} {
		if got := gibibytes(bytes); got != want {
			t.Errorf("%d bytes are %q, want %q", bytes, got, want)
		}
	}
}
