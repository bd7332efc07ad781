package chart

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/kubernetes/scheme"
)

// limitedNamespaces are values with which a label lets a namespace share, and another look.
const limitedNamespaces = `
admissionPolicy:
  sharing: {namespaceLabels: {example.com/gpu-sharing: ""}, deviceClasses: [small]}
  adminAccess: {namespaceLabels: {team: ops, stage: prod}, deviceClasses: [big]}
deviceClasses: {extendedResourceName: "", sharedExtendedResourceName: nvidia.com/gpu.shared}
`

// policiesOf renders the policies of limited namespaces and compiles them.
func policiesOf(t *testing.T, values string) (claims, pods validating.Validator) {
	t.Helper()
	rendered, err := Render(t.Context(), Release{Name: "gpu-dra-driver", Namespace: "x", Chart: chartDir, Values: inFile(t, values)}, reference)
	if err != nil {
		t.Fatal(err)
	}
	policies := every[*admissionv1.ValidatingAdmissionPolicy](decode(t, rendered.Manifest))
	bindings := every[*admissionv1.ValidatingAdmissionPolicyBinding](decode(t, rendered.Manifest))
	for _, suffix := range []string{"-namespaces", "-namespaces-pods"} {
		if b := named(t, bindings, suffix); b.Spec.PolicyName != named(t, policies, suffix).Name || b.Spec.ValidationActions[0] != admissionv1.Deny {
			t.Errorf("the binding %+v", b.Spec)
		}
	}
	return compile(t, named(t, policies, "-namespaces")), compile(t, named(t, policies, "-namespaces-pods"))
}

// created gives the message with which a policy refuses an object in a namespace with those labels.
func created(t *testing.T, v validating.Validator, object runtime.Object, kind, plural string, labels map[string]string) string {
	t.Helper()
	gv := resourcev1.SchemeGroupVersion
	if kind == "Pod" {
		gv = corev1.SchemeGroupVersion
	}
	gvk, gvr := gv.WithKind(kind), gv.WithResource(plural)
	attributes := admission.NewAttributesRecord(object, nil, gvk, "ns", "x", gvr, "", admission.Create, nil, false, plugin("x:y", ""))
	versioned, err := admission.NewVersionedAttributes(attributes, gvk, admission.NewObjectInterfacesFromScheme(scheme.Scheme))
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: labels}}
	for _, decision := range v.Validate(t.Context(), gvr, versioned, nil, namespace, celconfig.RuntimeCELCostBudget, nil).Decisions {
		if decision.Evaluation == validating.EvalError {
			t.Fatalf("evaluating: %s", decision.Message)
		}
		if decision.Action == validating.ActionDeny {
			return decision.Message
		}
	}
	return ""
}

func asking(class string, admin bool) resourcev1.DeviceRequest {
	r := resourcev1.DeviceRequest{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class}}
	if admin {
		r.Exactly.AdminAccess = &admin
	}
	return r
}

func alternatives(classes ...string) resourcev1.DeviceRequest {
	r := resourcev1.DeviceRequest{Name: "gpu"}
	for _, c := range classes {
		r.FirstAvailable = append(r.FirstAvailable, resourcev1.DeviceSubRequest{Name: c, DeviceClassName: c})
	}
	return r
}

func configured(driver, parameters string) resourcev1.DeviceClaim {
	return resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{asking("gpu.nvidia.com", false)},
		Config: []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{
			Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
		}}},
	}
}

// Claims and templates that share, or look at GPUs of others, are for namespaces with the labels;
// what is no business of this driver passes everywhere.
func TestNamespacesThatShareAndLook(t *testing.T) {
	const kind = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"`
	sharers, lookers := map[string]string{"example.com/gpu-sharing": ""}, map[string]string{"team": "ops", "stage": "prod"}
	of := func(requests ...resourcev1.DeviceRequest) resourcev1.DeviceClaim {
		return resourcev1.DeviceClaim{Requests: requests}
	}
	claims, _ := policiesOf(t, limitedNamespaces)
	for name, tt := range map[string]struct {
		claim resourcev1.DeviceClaim
		// shares and looks tell what the claim does.
		shares, looks bool
	}{
		"nothing":                       {of(), false, false},
		"a whole GPU":                   {of(asking("gpu.nvidia.com", false)), false, false},
		"a partition":                   {of(asking("mig.nvidia.com", false)), false, false},
		"a share":                       {of(asking("gpu.nvidia.com", false), asking("shared.gpu.nvidia.com", false)), true, false},
		"a share by another class":      {of(asking("small", false)), true, false},
		"a share at worst":              {of(alternatives("gpu.nvidia.com", "shared.gpu.nvidia.com")), true, false},
		"either whole":                  {of(alternatives("gpu.nvidia.com", "mig.nvidia.com")), false, false},
		"time slices":                   {configured("gpu.nvidia.com", kind+`,"sharing":{"strategy":"TimeSlicing"}}`), true, false},
		"a config without sharing":      {configured("gpu.nvidia.com", kind+`}`), false, false},
		"a config with no sharing":      {configured("gpu.nvidia.com", kind+`,"sharing":null}`), false, false},
		"another driver's sharing":      {configured("nic.example.com", `{"sharing":{"strategy":"TimeSlicing"}}`), false, false},
		"another driver's class":        {of(asking("nic.example.com", false)), false, false},
		"admin access":                  {of(asking("gpu.nvidia.com", true)), false, true},
		"admin access to partitions":    {of(asking("mig.nvidia.com", true)), false, true},
		"admin access by another class": {of(asking("nic.example.com", false), asking("big", true)), false, true},
		"admin access to other devices": {of(asking("nic.example.com", true)), false, false},
		"admin access to shares":        {of(asking("small", true)), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			for where, labels := range map[string]map[string]string{
				"without labels": nil, "of sharers": sharers, "of lookers": lookers, "of half a looker": {"team": "ops", "example.com/gpu-sharing": "x"},
				"of others": {"example.com/gpu-sharing": "x", "team": "dev", "stage": "prod"},
			} {
				want := ""
				if _, mayLook := labels["stage"]; tt.looks && (!mayLook || labels["team"] != "ops") {
					want = "label stage=prod,team=ops only"
				}
				if value, mayShare := labels["example.com/gpu-sharing"]; tt.shares && (!mayShare || value != "") {
					want = "label example.com/gpu-sharing= only"
				}
				template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: tt.claim}}}
				for what, message := range map[string]string{
					"claim":    created(t, claims, &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: tt.claim}}, "ResourceClaim", "resourceclaims", labels),
					"template": created(t, claims, template, "ResourceClaimTemplate", "resourceclaimtemplates", labels),
				} {
					if (message == "") != (want == "") || !strings.Contains(message, want) {
						t.Errorf("a %s in a namespace %s is refused with %q, want %q", what, where, message, want)
					}
				}
			}
		})
	}
}

// Pods that ask for shares without a claim are refused themselves.
func TestPodsOfNamespacesThatDoNotShare(t *testing.T) {
	_, pods := policiesOf(t, limitedNamespaces)
	limits := func(name string) corev1.Container {
		return corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}}}
	}
	for name, tt := range map[string]struct {
		spec   corev1.PodSpec
		shares bool
	}{
		"nothing":              {corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, false},
		"a share":              {corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}, limits("nvidia.com/gpu.shared")}}, true},
		"a share at the start": {corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}, InitContainers: []corev1.Container{limits("nvidia.com/gpu.shared")}}, true},
		"another resource":     {corev1.PodSpec{Containers: []corev1.Container{limits("example.com/gpu")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: tt.spec}
			if message := created(t, pods, pod, "Pod", "pods", nil); (message != "") != tt.shares || tt.shares && !strings.Contains(message, "nvidia.com/gpu.shared is a share") {
				t.Errorf("refused with %q", message)
			}
			if message := created(t, pods, pod, "Pod", "pods", map[string]string{"example.com/gpu-sharing": ""}); message != "" {
				t.Errorf("with the label it is refused with %q", message)
			}
		})
	}
}

// Nothing is limited unless it is asked for, and what is asked for alone.
func TestNamespacesAreNotLimitedByDefault(t *testing.T) {
	for name, tt := range map[string]struct {
		text       string
		namespaces int
		validates  int
	}{
		"default": {"", 0, 0},
		"empty":   {"admissionPolicy: {sharing: {namespaceLabels: {}}, adminAccess: {namespaceLabels: null}}", 0, 0},
		"sharing": {"admissionPolicy: {sharing: {namespaceLabels: {a: b}}}", 1, 1},
		"admins":  {"admissionPolicy: {adminAccess: {namespaceLabels: {a: b}}}", 1, 1},
		"both":    {limitedNamespaces, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			rendered, err := Render(t.Context(), Release{Name: "x", Namespace: "x", Chart: chartDir, Values: inFile(t, tt.text)}, reference)
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, p := range every[*admissionv1.ValidatingAdmissionPolicy](decode(t, rendered.Manifest)) {
				if !strings.Contains(p.Name, "-namespaces") {
					continue
				}
				found++
				if !strings.HasSuffix(p.Name, "-pods") && len(p.Spec.Validations) != tt.validates {
					t.Errorf("%d validations, want %d", len(p.Spec.Validations), tt.validates)
				}
				compile(t, p)
			}
			if found != tt.namespaces {
				t.Errorf("%d policies, want %d", found, tt.namespaces)
			}
		})
	}
	for _, set := range valueSets(t) {
		text := render(t, valuesFrom(set), reference).Manifest
		if filepath.Base(set) != "full-values.yaml" && strings.Contains(text, "-namespaces") {
			t.Errorf("%s limits namespaces", set)
		}
	}
}

// Whoever asks for more whole GPUs than a node has is warned, however the requests are split, and nobody
// is refused.
func TestMoreThanANode(t *testing.T) {
	objects := decode(t, render(t, valuesFrom("", "admissionPolicy.largestNode=8"), reference).Manifest)
	policy := named(t, every[*admissionv1.ValidatingAdmissionPolicy](objects), "-more-than-a-node")
	binding := named(t, every[*admissionv1.ValidatingAdmissionPolicyBinding](objects), "-more-than-a-node")
	if binding.Spec.PolicyName != policy.Name || len(binding.Spec.ValidationActions) != 1 || binding.Spec.ValidationActions[0] != admissionv1.Warn ||
		*policy.Spec.FailurePolicy != admissionv1.Ignore {
		t.Errorf("it may refuse: %+v", binding.Spec)
	}
	v := compile(t, policy)
	want := func(class string, count int64) resourcev1.DeviceRequest {
		r := asking(class, false)
		r.Exactly.Count = count
		return r
	}
	of := func(counts map[string]int64) resourcev1.DeviceRequest {
		r := resourcev1.DeviceRequest{Name: "gpu"}
		for _, class := range slices.Sorted(maps.Keys(counts)) {
			r.FirstAvailable = append(r.FirstAvailable, resourcev1.DeviceSubRequest{Name: "a", DeviceClassName: strings.TrimLeft(class, "0123456789"), Count: counts[class]})
		}
		return r
	}
	for name, tt := range map[string]struct {
		requests []resourcev1.DeviceRequest
		says     string
	}{
		"nothing":               {nil, ""},
		"a node's":              {[]resourcev1.DeviceRequest{want("gpu.nvidia.com", 8)}, ""},
		"more":                  {[]resourcev1.DeviceRequest{want("gpu.nvidia.com", 9)}, "asks for 9 whole GPUs"},
		"more together":         {[]resourcev1.DeviceRequest{want("gpu.nvidia.com", 4), want("gpu.nvidia.com", 5)}, "asks for 9 whole GPUs"},
		"all that there are":    {[]resourcev1.DeviceRequest{want("gpu.nvidia.com", 0)}, ""},
		"partitions":            {[]resourcev1.DeviceRequest{want("mig.nvidia.com", 30)}, ""},
		"other devices":         {[]resourcev1.DeviceRequest{want("nic.example.com", 30), want("gpu.nvidia.com", 8)}, ""},
		"less as a last resort": {[]resourcev1.DeviceRequest{of(map[string]int64{"1gpu.nvidia.com": 16, "2gpu.nvidia.com": 8})}, ""},
		"no alternative":        {[]resourcev1.DeviceRequest{of(map[string]int64{"1gpu.nvidia.com": 16, "2gpu.nvidia.com": 9})}, "asks for 9 whole GPUs"},
		"or something else":     {[]resourcev1.DeviceRequest{of(map[string]int64{"1gpu.nvidia.com": 16, "2mig.nvidia.com": 1})}, ""},
		"beside alternatives":   {[]resourcev1.DeviceRequest{want("gpu.nvidia.com", 8), of(map[string]int64{"1gpu.nvidia.com": 1})}, "asks for 9 whole GPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: tt.requests}}
			template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec}}
			for what, message := range map[string]string{
				"claim":    created(t, v, &resourcev1.ResourceClaim{Spec: spec}, "ResourceClaim", "resourceclaims", nil),
				"template": created(t, v, template, "ResourceClaimTemplate", "resourceclaimtemplates", nil),
			} {
				if (message == "") != (tt.says == "") || !strings.Contains(message, tt.says) {
					t.Errorf("the %s is told %q, want %q", what, message, tt.says)
				}
			}
		})
	}
	for _, set := range []string{"admissionPolicy.largestNode=0", "admissionPolicy.create=false"} {
		for _, p := range every[*admissionv1.ValidatingAdmissionPolicy](decode(t, render(t, valuesFrom("", set), reference).Manifest)) {
			if strings.HasSuffix(p.Name, "-more-than-a-node") {
				t.Errorf("%s makes the policy", set)
			}
		}
	}
}
