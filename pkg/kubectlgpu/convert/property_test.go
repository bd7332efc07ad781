package convert_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/convert"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// legacyPod is a pod from the time of the device plugin.
func legacyPod(t *rapid.T) *corev1.Pod {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	resources := []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "cpu", "memory"}
	for i := range rapid.IntRange(1, 4).Draw(t, "containers") {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "x:1"}
		amounts := rapid.MapOfN(rapid.SampledFrom(resources), rapid.Int64Range(1, 4), 0, 4).Draw(t, "limits")
		c.Resources.Limits = corev1.ResourceList{}
		for name, amount := range amounts {
			c.Resources.Limits[name] = *resource.NewQuantity(amount, resource.DecimalSI)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	if product := rapid.SampledFrom([]string{"", "NVIDIA-H100-80GB-HBM3", "Tesla-T4"}).Draw(t, "product"); product != "" {
		pod.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": product, "disk": "ssd"}
	}
	return pod
}

// gpus adds up what containers ask of the device plugin.
func gpus(spec corev1.PodSpec) int64 {
	var sum int64
	for _, c := range spec.Containers {
		for name, amount := range c.Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/") {
				sum += amount.Value()
			}
		}
	}
	return sum
}

// A pod asks for as many devices after as before: each of them by a request that one of its containers
// names, of a claim that the pod has. What is not about GPUs stays.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := legacyPod(t)
		text, err := yaml.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		documents, err := convert.Convert(text, options())
		if err != nil {
			t.Fatal(err)
		}
		out, err := convert.Render(documents)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := state.Decode(out)
		if err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		requests, classes := map[string]int64{}, map[string]bool{"gpu.nvidia.com": true, "shared.gpu.nvidia.com": true}
		var template string
		var after *corev1.Pod
		for _, o := range objects {
			switch o := o.(type) {
			case *resourceapi.DeviceClass:
				classes[o.Name] = true
			case *resourceapi.ResourceClaimTemplate:
				template = o.Name
				for _, r := range o.Spec.Spec.Devices.Requests {
					if !classes[r.Exactly.DeviceClassName] {
						t.Fatalf("no class %s before its use in\n%s", r.Exactly.DeviceClassName, out)
					}
					if pod.Spec.NodeSelector != nil && len(r.Exactly.Selectors) == 0 {
						t.Fatalf("request %s lost the product:\n%s", r.Name, out)
					}
					requests[r.Name] = r.Exactly.Count
				}
			case *corev1.Pod:
				after = o
			}
		}
		if after == nil || len(after.Spec.Containers) != len(pod.Spec.Containers) || gpus(after.Spec) != 0 {
			t.Fatalf("pod:\n%s", out)
		}
		var sum int64
		for i, c := range after.Spec.Containers {
			for _, use := range c.Resources.Claims {
				if after.Spec.ResourceClaims[0].Name != use.Name || *after.Spec.ResourceClaims[0].ResourceClaimTemplateName != template {
					t.Fatalf("container %s names claim %s of\n%s", c.Name, use.Name, out)
				}
				sum += requests[use.Request]
			}
			for _, kept := range []corev1.ResourceName{"cpu", "memory"} {
				was, is := pod.Spec.Containers[i].Resources.Limits[kept], c.Resources.Limits[kept]
				if was.Cmp(is) != 0 {
					t.Fatalf("%s of %s was %s, is %s", kept, c.Name, was.String(), is.String())
				}
			}
		}
		if want := gpus(pod.Spec); sum != want {
			t.Fatalf("%d devices, %d were asked for:\n%s", sum, want, out)
		}
		if pod.Spec.NodeSelector != nil && after.Spec.NodeSelector["disk"] != "ssd" {
			t.Fatalf("the node selector is %v", after.Spec.NodeSelector)
		}
		again, err := convert.Convert(out, options())
		if err != nil {
			t.Fatal(err)
		}
		if len(again) != len(documents) {
			t.Fatalf("%d documents become %d", len(documents), len(again))
		}
	})
}
