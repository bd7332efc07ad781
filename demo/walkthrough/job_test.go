package walkthrough

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

func TestClaimsAreWhatTheyShow(t *testing.T) {
	for name, count := range map[string]int64{"pair": 2, "four": 4} {
		text, err := manifest(name)
		if err != nil {
			t.Fatal(err)
		}
		claim, err := claimFrom(text)
		if err != nil {
			t.Fatal(err)
		}
		domain := resourceapi.FullyQualifiedName("gpu.nvidia.com/nvlinkDomain")
		want := resourceapi.DeviceClaim{
			Requests:    []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", Count: count}}},
			Constraints: []resourceapi.DeviceConstraint{{Requests: []string{"gpus"}, MatchAttribute: &domain}},
		}
		if diff := cmp.Diff(want, claim.Spec.Devices); diff != "" || claim.Name != name {
			t.Errorf("claim %s (-want +got):\n%s", claim.Name, diff)
		}
	}
}

func TestWrongManifests(t *testing.T) {
	if _, err := manifest("absent"); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("no manifest: %v", err)
	}
	if _, err := claimFrom("spec: {devices: {request: []}}"); err == nil || !strings.Contains(err.Error(), "request") {
		t.Errorf("a field that is none: %v", err)
	}
}

// TestClassIsTheCharts renders the chart's template as an installation with default values on
// Kubernetes 1.37 does.
func TestClassIsTheCharts(t *testing.T) {
	text, err := os.ReadFile("../../deployments/helm/gpu-dra-driver/templates/deviceclasses.yaml")
	if err != nil {
		t.Fatal(err)
	}
	functions := template.FuncMap{
		"include": func(name string, _ any) string {
			if strings.HasSuffix(name, ".consumableCapacity") {
				return "on"
			}
			return "{}"
		},
		// No class is left to others.
		"fromJsonArray": func(string) []string { return nil },
		"has":           func(name string, in []string) bool { return slices.Contains(in, name) },
		"nindent":       func(_ int, text string) string { return " " + text },
	}
	parsed, err := template.New("classes").Funcs(functions).Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{"driverName": driverName, "deviceClasses": map[string]any{"create": true, "extendedResourceName": "nvidia.com/gpu"}}
	var rendered bytes.Buffer
	if err := parsed.Execute(&rendered, map[string]any{"Values": values}); err != nil {
		t.Fatal(err)
	}
	shown, err := manifest("class")
	if err != nil {
		t.Fatal(err)
	}
	var chart, demo resourceapi.DeviceClass
	first, _, _ := strings.Cut(rendered.String(), "\n---\n")
	for text, into := range map[string]*resourceapi.DeviceClass{first: &chart, shown: &demo} {
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
	if diff := cmp.Diff(chart.Spec, demo.Spec); diff != "" || chart.Name != demo.Name {
		t.Errorf("class %s is not the chart's %s (-chart +demo):\n%s", demo.Name, chart.Name, diff)
	}
}

func TestPodUsesTheClaim(t *testing.T) {
	pod := podFor("four")
	container, ref := pod.Spec.Containers[0], pod.Spec.ResourceClaims[0]
	if *ref.ResourceClaimName != "four" || container.Resources.Claims[0].Name != ref.Name || container.Name != containerName {
		t.Errorf("%+v", pod.Spec)
	}
}

func TestAllocatedGPUs(t *testing.T) {
	claim := func(devices ...string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
		for _, d := range devices {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Device: d})
		}
		return c
	}
	gpus := islands("aabb")
	if got, err := allocatedGPUs(gpus, claim("gpu-3", "gpu-1")); err != nil || numbers(got) != "#1 #3" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := allocatedGPUs(gpus, claim("gpu-3", "gpu-9")); err == nil || !strings.Contains(err.Error(), "2 devices, of which 1") {
		t.Errorf("a foreign device: %v", err)
	}
	if _, err := allocatedGPUs(gpus, &resourceapi.ResourceClaim{}); err == nil || !strings.Contains(err.Error(), "no allocation") {
		t.Errorf("none: %v", err)
	}
}
