package chart

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/cel"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
)

// spec is one example, read strictly.
type spec struct {
	name    string
	objects []runtime.Object
}

func specs(t *testing.T) []spec {
	t.Helper()
	var all []spec
	for _, folder := range []string{"", "scenarios"} {
		files, err := filepath.Glob(filepath.Join(specsDir, folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no examples: %v", err)
		}
		for _, file := range files {
			all = append(all, spec{filepath.Join(folder, filepath.Base(file)), decode(t, string(readFile(t, file)))})
		}
	}
	return all
}

// pods are the pods, and those that workloads make.
func (s spec) pods() []*manifest.Pod {
	var found []*manifest.Pod
	for _, object := range s.objects {
		found = append(found, manifest.PodsOf(object)...)
	}
	return found
}

// claims gives the spec of each claim and template by its name.
func (s spec) claims() map[string]resourcev1.ResourceClaimSpec {
	found := map[string]resourcev1.ResourceClaimSpec{}
	for _, claim := range every[*resourcev1.ResourceClaim](s.objects) {
		found[claim.Name] = claim.Spec
	}
	for _, template := range every[*resourcev1.ResourceClaimTemplate](s.objects) {
		found[template.Name] = template.Spec.Spec
	}
	return found
}

// selectors gives every expression, and the names of the classes that are asked for.
func (s spec) selectors() (expressions, classNames []string) {
	add := func(class string, selectors []resourcev1.DeviceSelector) {
		classNames = append(classNames, class)
		for _, selector := range selectors {
			expressions = append(expressions, selector.CEL.Expression)
		}
	}
	for _, claim := range s.claims() {
		for _, request := range claim.Devices.Requests {
			if request.Exactly != nil {
				add(request.Exactly.DeviceClassName, request.Exactly.Selectors)
			}
			for _, alternative := range request.FirstAvailable {
				add(alternative.DeviceClassName, alternative.Selectors)
			}
		}
	}
	for _, class := range every[*resourcev1.DeviceClass](s.objects) {
		add(class.Name, class.Spec.Selectors)
	}
	return expressions, classNames
}

func TestSpecsReferToWhatIsThere(t *testing.T) {
	known := classes(t, valuesFrom(""), reference)
	for _, s := range specs(t) {
		t.Run(s.name, func(t *testing.T) {
			claims := s.claims()
			pods := s.pods()
			if len(pods) == 0 && len(claims) > 0 {
				t.Error("no pod uses the claim")
			}
			for _, pod := range pods {
				checkReferences(t, pod, claims)
			}
			own := every[*resourcev1.DeviceClass](s.objects)
			_, names := s.selectors()
			for _, name := range names {
				if known[name] == nil && !slices.ContainsFunc(own, func(c *resourcev1.DeviceClass) bool { return c.Name == name }) {
					t.Errorf("DeviceClass %s is neither the chart's nor the example's", name)
				}
			}
		})
	}
}

// checkReferences follows a pod's claims to objects of the same example and back to containers.
func checkReferences(t *testing.T, pod *manifest.Pod, claims map[string]resourcev1.ResourceClaimSpec) {
	t.Helper()
	named := map[string]bool{}
	for _, reference := range pod.Spec.ResourceClaims {
		named[reference.Name] = true
		for _, name := range []*string{reference.ResourceClaimName, reference.ResourceClaimTemplateName} {
			if _, ok := claims[deref(name)]; name != nil && !ok {
				t.Errorf("%s names claim %s, which is not there", pod.Subject, *name)
			}
		}
	}
	for _, container := range pod.Spec.Containers {
		gpus := container.Resources.Limits["nvidia.com/gpu"]
		if len(container.Resources.Claims) == 0 && gpus.IsZero() {
			t.Errorf("container %s of %s asks for nothing", container.Name, pod.Subject)
		}
		for _, claim := range container.Resources.Claims {
			if !named[claim.Name] {
				t.Errorf("container %s of %s uses claim %s, which it does not have", container.Name, pod.Subject, claim.Name)
			}
		}
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// samples are devices that have what the examples select by, and one that has nothing but its type.
func samples() (full []cel.Device, empty cel.Device) {
	gpu, empty := gpuSamples()
	h200, _ := gpuSamples()
	h200.Attributes["productName"] = resourcev1.DeviceAttribute{StringValue: new("NVIDIA H200")}
	full = []cel.Device{gpu, h200}
	for profile, size := range map[string]string{"3g.40gb": "40448Mi", "1g.10gb": "9856Mi"} {
		part := deviceOf("gpu.nvidia.com", "mig", false)
		part.Attributes["profile"] = resourcev1.DeviceAttribute{StringValue: &profile}
		part.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse(size)}}
		full = append(full, part)
	}
	for _, enforcement := range []string{"none", "cooperative"} {
		shared := deviceOf("gpu.nvidia.com", "gpu", true)
		shared.Attributes["sharingEnforcement"] = resourcev1.DeviceAttribute{StringValue: &enforcement}
		full = append(full, shared)
	}
	return full, empty
}

func gpuSamples() (full, empty cel.Device) {
	full, empty = deviceOf("gpu.nvidia.com", "gpu", false), deviceOf("gpu.nvidia.com", "gpu", false)
	for name, value := range map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		"productName":                     {StringValue: new("NVIDIA H100 80GB HBM3")},
		"cudaComputeCapability":           {VersionValue: new("9.0.0")},
		"nvlinkDomainSize":                {IntValue: new(int64(8))},
		"resource.kubernetes.io/numaNode": {IntValue: new(int64(0))},
	} {
		full.Attributes[name] = value
	}
	full.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}
	return full, empty
}

// Every selector is one that a scheduler takes, that some GPU meets, and that a GPU without
// the attribute does not meet: it must not end in an error, which would stop the whole pod.
func TestSpecSelectors(t *testing.T) {
	full, empty := samples()
	seen := 0
	for _, s := range specs(t) {
		expressions, _ := s.selectors()
		for _, expression := range expressions {
			seen++
			met := false
			for _, d := range full {
				ok, err := matches(t, cel.Features{EnableConsumableCapacity: true}, expression, d)
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
				}
				met = met || ok
			}
			if !met {
				t.Errorf("%s: no device meets %s", s.name, expression)
			}
			if ok, err := matches(t, cel.Features{EnableConsumableCapacity: true}, expression, empty); ok || err != nil {
				t.Errorf("%s: a GPU without attributes gives %t, %v for %s", s.name, ok, err, expression)
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d selectors", seen)
	}
}

// published is every name that examples may use.
func published() map[string]bool {
	names := map[string]bool{}
	for _, attribute := range device.Attributes() {
		name := attribute.Name
		if !strings.Contains(name, "/") {
			name = "gpu.nvidia.com/" + name
		}
		names[name] = true
	}
	return names
}

func TestSpecsUsePublishedNames(t *testing.T) {
	names := published()
	access := regexp.MustCompile(`device\.(?:attributes|capacity)\["([^"]+)"\]\.\??(\w+)`)
	check := func(file, name string) {
		if !names[name] {
			t.Errorf("%s uses %s, which is not published; there are: %v", file, name, slices.Sorted(maps.Keys(names)))
		}
	}
	for _, s := range specs(t) {
		expressions, _ := s.selectors()
		for _, expression := range expressions {
			for _, found := range access.FindAllStringSubmatch(expression, -1) {
				check(s.name, found[1]+"/"+found[2])
			}
		}
		for _, claim := range s.claims() {
			for _, constraint := range claim.Devices.Constraints {
				check(s.name, string(*constraint.MatchAttribute))
			}
		}
	}
}

func TestSpecConfigsAreValid(t *testing.T) {
	seen := 0
	for _, s := range specs(t) {
		for name, claim := range s.claims() {
			for i, config := range claim.Devices.Config {
				seen++
				if _, err := configapi.Load(config.Opaque.Parameters.Raw); err != nil || config.Opaque.Driver != "gpu.nvidia.com" {
					t.Errorf("%s: config %d of %s: driver %s, %v", s.name, i, name, config.Opaque.Driver, err)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no example has a config")
	}
}

func TestSpecsAreListed(t *testing.T) {
	readme := string(readFile(t, specsDir, "README.md"))
	names := map[string]string{}
	for _, s := range specs(t) {
		if !strings.Contains(readme, "]("+s.name+")") {
			t.Errorf("README.md does not list %s", s.name)
		}
		for _, object := range s.objects {
			named, err := meta.Accessor(object)
			if err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprintf("%s %s/%s", object.GetObjectKind().GroupVersionKind().Kind, named.GetNamespace(), named.GetName())
			if other := names[id]; other != "" {
				t.Errorf("%s and %s both make %s: they cannot run side by side", other, s.name, id)
			}
			names[id] = s.name
		}
	}
	links := map[string]bool{}
	for _, link := range regexp.MustCompile(`\]\(([^)]+\.yaml)\)`).FindAllStringSubmatch(readme, -1) {
		links[link[1]] = true
	}
	if len(links) != len(specs(t)) {
		t.Errorf("README.md lists %d files, there are %d", len(links), len(specs(t)))
	}
}
