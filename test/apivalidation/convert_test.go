package apivalidation

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // types and their defaults
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	internal "k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/apis/resource/validation"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/convert"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// judge gives what the API server says about a new object, after its defaults; nil for kinds that
// conversion passes on as they are.
func judge(t *testing.T, document []byte) field.ErrorList {
	t.Helper()
	object, _, err := legacyscheme.Codecs.UniversalDecoder().Decode(document, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return judgeTemplates(t, document)
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	options := corevalidation.PodValidationOptions{}
	spec := field.NewPath("spec")
	switch o := object.(type) {
	case *internal.DeviceClass:
		return validation.ValidateDeviceClass(o)
	case *internal.ResourceClaimTemplate:
		o.Namespace = "default" // Which the API server fills in from the path.
		return validation.ValidateResourceClaimTemplate(o)
	case *core.Pod:
		o.Namespace = "default"
		if o.GenerateName != "" {
			o.Name = o.GenerateName + "x"
		}
		return corevalidation.ValidatePodCreate(o, options)
	case *core.ResourceQuota:
		o.Namespace = "default"
		return corevalidation.ValidateResourceQuota(o)
	case *apps.Deployment:
		return corevalidation.ValidatePodTemplateSpec(&o.Spec.Template, spec, options)
	case *batch.Job:
		return corevalidation.ValidatePodTemplateSpec(&o.Spec.Template, spec, options)
	}
	return nil
}

// judgeTemplates is about the pods that another project's controller makes of an object.
func judgeTemplates(t *testing.T, document []byte) field.ErrorList {
	t.Helper()
	objects, err := state.Decode(document)
	if err != nil {
		t.Fatal(err)
	}
	var all field.ErrorList
	for _, object := range objects {
		for _, pod := range manifest.PodsOf(object) {
			if pod.Unknown != nil {
				continue // Left as it was, with a comment.
			}
			text, err := json.Marshal(corev1.PodTemplate{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodTemplate"}, Template: corev1.PodTemplateSpec{Spec: *pod.Spec},
			})
			if err != nil {
				t.Fatal(err)
			}
			decoded, _, err := legacyscheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			template, ok := decoded.(*core.PodTemplate)
			if !ok {
				t.Fatalf("%T is no template of a pod", decoded)
			}
			all = append(all, corevalidation.ValidatePodTemplateSpec(&template.Template, field.NewPath(pod.Subject), corevalidation.PodValidationOptions{})...)
		}
	}
	return all
}

func check(t *testing.T, text []byte) int {
	t.Helper()
	n := 0
	documents, err := convert.Convert(text, convert.Options{Driver: "gpu.nvidia.com", NVLink: true})
	if err != nil {
		return 0
	}
	out, err := convert.Render(documents)
	if err != nil {
		t.Fatal(err)
	}
	if err := state.Documents(out, func(document []byte) error {
		n++
		if errs := judge(t, document); len(errs) > 0 {
			t.Errorf("the API server refuses %s: %v", document, errs)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Everything that conversion makes of the examples is taken by the API server: names, selectors and
// what they cost, counts, quota.
func TestConvertedManifests(t *testing.T) {
	files, err := filepath.Glob("../../pkg/kubectlgpu/convert/testdata/*.in.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := check(t, text); n == 0 {
			t.Errorf("%s gives nothing", file)
		}
	}
}

// Pods with odd names and many labels, too.
func TestConvertedPods(t *testing.T) {
	long := "a234567890123456789012345678901234567890123456789012345678901-x"
	for _, text := range []string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + long + `"},"spec":{"nodeSelector":{"nvidia.com/gpu.product":"NVIDIA-H100-80GB-HBM3","nvidia.com/gpu.memory":"81559"},"containers":[{"name":"` + long[:63] + `","image":"x","resources":{"limits":{"nvidia.com/gpu":"32"}}}]}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"p-"},"spec":{"containers":[{"name":"a","image":"x","resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/mig-1g.10gb.me":"1","nvidia.com/mig-1c.2g.20gb":"2"}}},{"name":"b","image":"x","resources":{"limits":{"nvidia.com/gpu.shared":"1"}}}],"initContainers":[{"name":"i","image":"x","resources":{"limits":{"nvidia.com/gpu":"2"}}}]}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"nvidia.com/gpu.product","operator":"NotIn","values":["Tesla-T4","NVIDIA-L40S"]},{"key":"nvidia.com/gpu.memory","operator":"Gt","values":["40000"]}]}]}}},"containers":[{"name":"a","image":"x","resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}`,
	} {
		if n := check(t, []byte(text)); n < 2 {
			t.Errorf("%d documents of %s", n, text)
		}
	}
}

// The judge refuses something: a template without requests' names.
func TestJudgeIsAlive(t *testing.T) {
	bad := `{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","metadata":{"name":"x"},"spec":{"selectors":[{"cel":{"expression":"nonsense"}}]}}`
	if errs := judge(t, []byte(bad)); len(errs) == 0 {
		t.Error("nonsense is taken")
	}
}
